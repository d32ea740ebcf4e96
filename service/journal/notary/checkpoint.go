package notary

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// MaxCheckpoint is the length in bytes beyond which nothing is read as a checkpoint.
const MaxCheckpoint = 4 << 10

// Key is the public key of a notary: NAME+HASH+DATA, as note.NewVerifier reads it.
type Key struct {
	text     string
	verifier note.Verifier
}

// ParseKey reads a public key. It takes the one form that a notary writes.
func ParseKey(text string) (Key, error) {
	v, err := note.NewVerifier(text)
	if err != nil {
		return Key{}, fmt.Errorf("audit key: %w", err)
	}
	data := strings.SplitN(text, "+", 3)[2] // base64 has plus signs of its own
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil || fmt.Sprintf("%s+%08x+%s", v.Name(), v.KeyHash(), base64.StdEncoding.EncodeToString(raw)) != text {
		return Key{}, errors.New("audit key: not in the form in which it was written")
	}
	return Key{text, v}, nil
}

// String returns the key as ParseKey reads it.
func (k Key) String() string { return k.text }

// Checkpoint is a signed statement: the first Size events have the tree hash Hash.
type Checkpoint struct {
	Size int64 // events, which is the position of the last one
	Hash tlog.Hash
	Note string // the signed note itself
}

func checkpointText(name string, size int64, h tlog.Hash) string {
	return fmt.Sprintf("%s\n%d\n%s\n", name, size, h)
}

// OpenCheckpoint reads a signed checkpoint and checks its signature. Of the many ways
// to write a note it takes only the notary's: one signature and no byte to spare.
func (k Key) OpenCheckpoint(text string) (Checkpoint, error) {
	if len(text) > MaxCheckpoint {
		return Checkpoint{}, fmt.Errorf("a checkpoint of %d bytes, at most %d", len(text), MaxCheckpoint)
	}
	n, err := note.Open([]byte(text), note.VerifierList(k.verifier))
	var unknown *note.UnverifiedNoteError
	switch {
	case errors.As(err, &unknown):
		return Checkpoint{}, fmt.Errorf("the checkpoint is not signed by the key %s", k.verifier.Name())
	case err != nil:
		return Checkpoint{}, fmt.Errorf("the checkpoint's signature: %w", err)
	}
	signature, err := base64.StdEncoding.DecodeString(n.Sigs[0].Base64)
	if err != nil || text != n.Text+"\n— "+k.verifier.Name()+" "+base64.StdEncoding.EncodeToString(signature)+"\n" {
		return Checkpoint{}, errors.New("the checkpoint is not in the form in which it was signed")
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) != 4 {
		return Checkpoint{}, errors.New("the checkpoint does not have three lines")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 {
		return Checkpoint{}, errors.New("the checkpoint's second line is no number of events")
	}
	h, err := tlog.ParseHash(lines[2])
	if err != nil || n.Text != checkpointText(k.verifier.Name(), size, h) {
		return Checkpoint{}, errors.New("the checkpoint is not one of this key's log")
	}
	return Checkpoint{Size: size, Hash: h, Note: text}, nil
}

// signer is a private key with its public one.
type signer struct {
	note.Signer
	key Key
}

func (s signer) sign(size int64, h tlog.Hash) (Checkpoint, error) {
	b, err := note.Sign(&note.Note{Text: checkpointText(s.Name(), size, h)}, s)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("sign checkpoint: %w", err)
	}
	return Checkpoint{Size: size, Hash: h, Note: string(b)}, nil
}

// The files of a notary's folder.
const (
	privateFile = "notary.key" // mode 0600
	publicFile  = "notary.pub"
	// The last checkpoint, or one of about Config.Every before it.
	checkpointFile = "checkpoint"
)

// Remembered reads the checkpoint that a notary has left beside its key, false if there
// is none. One that key did not sign is a *Tampering.
func Remembered(folder string, key Key) (cp Checkpoint, found bool, err error) {
	path := filepath.Join(folder, checkpointFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, false, nil
	}
	if err != nil {
		return Checkpoint{}, false, fmt.Errorf("remembered checkpoint: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxCheckpoint+1))
	if err != nil {
		return Checkpoint{}, false, fmt.Errorf("remembered checkpoint: %w", err)
	}
	if cp, err = key.OpenCheckpoint(string(b)); err != nil {
		return Checkpoint{}, false, tampered(0, "%s: %v", path, err)
	}
	return cp, true, nil
}

// PublicKey reads the public key of a notary's folder.
func PublicKey(folder string) (Key, error) {
	b, err := os.ReadFile(filepath.Join(folder, publicFile))
	if err != nil {
		return Key{}, fmt.Errorf("audit key: %w", err)
	}
	return ParseKey(strings.TrimSuffix(string(b), "\n"))
}

// loadKey reads the keys of a folder. When there are none and fresh says that none
// can have signed yet, it makes them, under name.
func loadKey(folder, name string, fresh bool) (signer, error) {
	path := filepath.Join(folder, privateFile)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && fresh:
		return makeKey(folder, name)
	case errors.Is(err, fs.ErrNotExist):
		return signer{}, fmt.Errorf("the key that signed the log, %s, is missing; restore it from a backup", path)
	case err != nil:
		return signer{}, fmt.Errorf("audit key: %w", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		return signer{}, errors.Join(err, fmt.Errorf("audit key %s may be read by others; set its mode to 0600", path))
	}
	key, err := PublicKey(folder)
	if err != nil {
		return signer{}, err
	}
	private, err := note.NewSigner(strings.TrimSuffix(string(b), "\n"))
	if err != nil {
		return signer{}, fmt.Errorf("audit key %s: %w", path, err)
	}
	s := signer{private, key}
	// Proof that the two files belong together.
	cp, err := s.sign(0, tlog.Hash{})
	if err == nil {
		_, err = key.OpenCheckpoint(cp.Note)
	}
	if err != nil {
		return signer{}, fmt.Errorf("audit key: %s and %s do not belong together: %w", privateFile, publicFile, err)
	}
	return s, nil
}

// makeKey writes the public file first: a private one alone never stands there.
func makeKey(folder, name string) (signer, error) {
	private, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		return signer{}, fmt.Errorf("make audit key: %w", err)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return signer{}, fmt.Errorf("make audit key: %w", err)
	}
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{{publicFile, public, 0o644}, {privateFile, private, 0o600}} {
		if err := writeFile(filepath.Join(folder, f.name), f.text+"\n", f.mode); err != nil {
			return signer{}, fmt.Errorf("make audit key: %w", err)
		}
	}
	return loadKey(folder, name, false)
}

// writeFile makes a file whole or not at all, and durably. What a crash leaves beside it
// is written over by the next try.
func writeFile(path, text string, mode os.FileMode) (err error) {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.WriteString(text); err != nil {
		return err
	}
	if err = errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
