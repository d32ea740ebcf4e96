package httpapi

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLocalCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	now := time.Now()
	load := func(at time.Time, hosts ...string) (*x509.Certificate, []byte) {
		t.Helper()
		cert, ca, err := loadOrMakeCA(dir, hosts, at)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		for _, name := range append([]string{"localhost", "127.0.0.1", "::1"}, hosts...) {
			if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: at}); err != nil {
				t.Errorf("verify for %s: %v", name, err)
			}
		}
		return cert.Leaf, ca
	}
	first, ca := load(now)
	for name, want := range map[string]os.FileMode{caFile: 0o644, caKeyFile: 0o600, serverFile: 0o644, serverKeyFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	steps := []struct {
		name  string
		at    time.Time
		hosts []string
		fresh bool
	}{
		{"the next start", now.Add(time.Hour), nil, false},
		{"another host", now.Add(time.Hour), []string{"box.example", "192.0.2.7"}, true},
		{"the same hosts in another order and case", now.Add(2 * time.Hour), []string{"192.0.2.7", "BOX.example"}, false},
		{"a host less", now.Add(3 * time.Hour), []string{"box.example"}, true},
		{"far from its end", now.Add(serverLife - renewAhead - 24*time.Hour), []string{"box.example"}, false},
		{"near its end", now.Add(serverLife - renewAhead + 24*time.Hour), []string{"box.example"}, true},
	}
	last := first
	for _, s := range steps {
		leaf, again := load(s.at, s.hosts...)
		if fresh := !leaf.Equal(last); fresh != s.fresh {
			t.Errorf("%s: issued anew is %v, want %v", s.name, fresh, s.fresh)
		}
		if !bytes.Equal(ca, again) {
			t.Errorf("%s: another CA", s.name)
		}
		last = leaf
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

// What a crash between two writes leaves is completed by the next start.
func TestLocalCACompletes(t *testing.T) {
	for _, missing := range [][]string{
		{caFile, serverKeyFile, serverFile},
		{serverKeyFile, serverFile},
		{serverFile},
	} {
		dir := t.TempDir()
		if _, _, err := LoadOrMakeCA(dir, nil); err != nil {
			t.Fatal(err)
		}
		for _, name := range missing {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		cert, ca, err := LoadOrMakeCA(dir, nil)
		if err != nil {
			t.Errorf("without %v: %v", missing, err)
			continue
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
			t.Errorf("without %v: %v", missing, err)
		}
	}
}

func TestLocalCARefuses(t *testing.T) {
	write := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	foreign := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			other := t.TempDir()
			if _, _, err := LoadOrMakeCA(other, nil); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(other, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	open := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, name), 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, string)
		at    time.Duration
		want  string // in the error
	}{
		{"a damaged CA", write(caFile, "-----BEGIN"), 0, "ca.pem is damaged"},
		{"a CA that is no certificate", write(caFile, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0, "ca.pem is damaged"},
		{"a damaged CA key", write(caKeyFile, "x"), 0, "ca.key is damaged"},
		{"an empty CA key", write(caKeyFile, ""), 0, "ca.key is damaged"},
		{"a damaged server certificate", write(serverFile, "x"), 0, "server.pem is damaged"},
		{"a damaged server key", write(serverKeyFile, "x"), 0, "server.key is damaged"},
		{"another CA's key", foreign(caKeyFile), 0, "ca.pem is not the certificate of"},
		{"another server's key", foreign(serverKeyFile), 0, "server.pem is not the certificate of"},
		{"a readable CA key", open(caKeyFile), 0, "chmod 600"},
		{"a readable server key", open(serverKeyFile), 0, "chmod 600"},
		{"no CA key", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, caKeyFile)) }, 0, "ca.key is missing"},
		{"a CA past its end", func(*testing.T, string) {}, caLife + time.Hour, "ended on"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if _, _, err := LoadOrMakeCA(dir, nil); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, dir)
			before := contents(t, dir)
			_, _, err := loadOrMakeCA(dir, nil, time.Now().Add(c.at))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if after := contents(t, dir); after != before {
				t.Errorf("the files have changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(e.Name() + "\n" + string(data))
	}
	return b.String()
}

func TestLoadKeyPair(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := LoadOrMakeCA(dir, nil); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	cert, err := LoadKeyPair(in(serverFile), in(serverKeyFile))
	if err != nil || cert.Leaf == nil {
		t.Fatalf("the local server's pair: %v", err)
	}
	past := t.TempDir()
	if _, _, err := loadOrMakeCA(past, nil, time.Now().Add(-serverLife-time.Hour)); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open.key")
	b, err := os.ReadFile(in(serverKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, b, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, cert, key, want string }{
		{"no certificate", in("none"), in(serverKeyFile), "no such file"},
		{"no key", in(serverFile), in("none"), "no such file"},
		{"not a pair", in(serverFile), in(caKeyFile), "does not match"},
		{"a readable key", in(serverFile), open, "chmod 600"},
		{"past its end", filepath.Join(past, serverFile), filepath.Join(past, serverKeyFile), "and not now"},
	} {
		if _, err := LoadKeyPair(c.cert, c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
}
