package main

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inband/service/artifacts"
	"inband/service/plane/wire"
)

// A file is replaced, and nothing else is: not a device, not a folder.
func TestArtifactFileReplacesFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("pipe", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir + "/link", dir, os.DevNull} {
		var usage *usageError
		if _, err := new(client).artifactFile(t.Context(), "sha256:", path); !errors.As(err, &usage) {
			t.Errorf("%s: got %v, want a usage error", path, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"1B": 1, "1KiB": 1 << 10, "512MiB": 512 << 20, "4GiB": 4 << 30, "8589934591GiB": 8589934591 << 30,
		"": 0, "1": 0, "0B": 0, "-1MiB": 0, "+1MiB": 0, "MiB": 0, "1.5GiB": 0, "1 GiB": 0, "1GB": 0, "1gib": 0, "8589934592GiB": 0, "1KiBB": 0,
	} {
		var s sizeFlag
		if err := s.Set(text); (err == nil) != (want > 0) || int64(s) != want {
			t.Errorf("%q: got %d, %v; want %d", text, s, err, want)
		}
		if want == 0 {
			continue
		}
		var again sizeFlag
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%q is written %q: %v", text, s.String(), err)
		}
	}
	for bytes, want := range map[int64]string{0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 5 << 28: "1.2 GiB"} {
		if got := size(bytes); got != want {
			t.Errorf("%d bytes: got %q, want %q", bytes, got, want)
		}
	}
}

// What an attestation is worth is found out from its envelope alone.
func TestProve(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := wire.Digest([]byte("report"))
	said := artifacts.Predicate{Producer: "builder", Run: "r-1", Fence: 7, Test: &artifacts.Test{Command: []string{"make", "check"}}, CapturedAt: time.Unix(1e9, 0)}
	payload, err := artifacts.NewStatement("report.txt", artifacts.Digest(digest), said).Payload()
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(key ed25519.PrivateKey, payloadType string, payload []byte) []byte {
		b, err := wire.SealBytes(key, payloadType, payload)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	listed := func(change func(*attestationListing)) attestationListing {
		l := attestationListing{Name: "report.txt", Run: "r-1", Producer: "builder", Fence: 7, Key: wire.KeyID(public), Envelope: sealed(private, artifacts.AttestationType, payload)}
		if change != nil {
			change(&l)
		}
		return l
	}
	if s, err := prove(listed(nil), digest, public); err != nil || s.Name() != "report.txt" || s.Predicate.Test.Exit != 0 {
		t.Errorf("got %+v, %v", s, err)
	}
	for name, l := range map[string]attestationListing{
		"another key":    listed(func(l *attestationListing) { l.Envelope = sealed(other, artifacts.AttestationType, payload) }),
		"another type":   listed(func(l *attestationListing) { l.Envelope = sealed(private, wire.KindResult.PayloadType(), payload) }),
		"a cut envelope": listed(func(l *attestationListing) { l.Envelope = l.Envelope[:len(l.Envelope)-9] }),
		"a cut statement": listed(func(l *attestationListing) {
			l.Envelope = sealed(private, artifacts.AttestationType, payload[:len(payload)-1])
		}),
		"a changed one": listed(func(l *attestationListing) {
			l.Envelope = bytes.Replace(l.Envelope, []byte(`"payload":"e`), []byte(`"payload":"f`), 1)
		}),
		"no envelope":      listed(func(l *attestationListing) { l.Envelope = nil }),
		"another run":      listed(func(l *attestationListing) { l.Run = "r-2" }),
		"another fence":    listed(func(l *attestationListing) { l.Fence++ }),
		"another producer": listed(func(l *attestationListing) { l.Producer = "other" }),
		"another name":     listed(func(l *attestationListing) { l.Name = "x" }),
		"another key's id": listed(func(l *attestationListing) { l.Key = wire.KeyID(other.Public().(ed25519.PublicKey)) }),
	} {
		if s, err := prove(l, digest, public); err == nil {
			t.Errorf("%s is proved: %+v", name, s)
		}
	}
	if s, err := prove(listed(nil), wire.Digest(nil), public); err == nil {
		t.Errorf("other bytes are proved: %+v", s)
	}
	if s, err := prove(listed(nil), digest, nil); err == nil {
		t.Errorf("no key proves: %+v", s)
	}
}
