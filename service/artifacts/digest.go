package artifacts

import (
	"encoding/hex"
	"fmt"
	"path"
	"strings"
)

const algorithm = "sha256"

// Digest names bytes by what they are: "sha256:" and the 64 lower-case hex digits of
// their SHA-256.
type Digest string

// ParseDigest returns s as a digest. Any other spelling of one is an error: one name,
// one form.
func ParseDigest(s string) (Digest, error) {
	if d := Digest(s); d.Valid() {
		return d, nil
	}
	return "", fmt.Errorf("no digest: want %s: and 64 lower-case hex digits", algorithm)
}

// Valid reports whether d has the form of a digest. It says nothing about whether
// there are such bytes.
func (d Digest) Valid() bool {
	name, ok := strings.CutPrefix(string(d), algorithm+":")
	return ok && len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

func digestOf(sum []byte) Digest { return Digest(algorithm + ":" + hex.EncodeToString(sum)) }

// shard is the folder of d, and file the path below the store's. d is valid.
func (d Digest) shard() string { return path.Join(algorithm, d.name()[:2]) }
func (d Digest) file() string  { return path.Join(d.shard(), d.name()) }
func (d Digest) name() string  { return strings.TrimPrefix(string(d), algorithm+":") }
