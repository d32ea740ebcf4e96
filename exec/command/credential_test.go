package command

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inband/exec/proc"
	"inband/ops"
)

const token = `tok<en>/"+é 42=`

// credentials is a folder with a token and with what is no credential.
func credentials(t *testing.T) Credentials {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "credentials")
	write := func(name, value string, mode os.FileMode) error {
		return errors.Join(os.WriteFile(dir+"/"+name, []byte(value), 0o600), os.Chmod(dir+"/"+name, mode))
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), write("token", token+"\n", 0o600), write("open", "12345678", 0o640),
		write("short", "1234567\n", 0o600), write("least", "12345678\r\n", 0o400), write("lines", "-- begin\nsecond line\n\n", 0o600),
		write("long", strings.Repeat("a", MaxCredential+1), 0o600), write("longest", strings.Repeat("a", MaxCredential)+"\r\n", 0o600),
		write("nul", "123\x00456789", 0o600), write("empty", "", 0o600),
		os.Symlink("token", dir+"/link"), os.Mkdir(dir+"/folder", 0o700), unix.Mkfifo(dir+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	return Credentials{Folder: dir, Env: map[string]string{"NAMED": "from the environment"}}
}

func TestResolve(t *testing.T) {
	c := credentials(t)
	c.System = filepath.Join(t.TempDir(), "system")
	if err := errors.Join(os.Mkdir(c.System, 0o750), os.WriteFile(c.System+"/unit", []byte("of the unit"), 0o600), os.Chmod(c.System+"/unit", 0o440)); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[ops.CredentialRef]string{
		"file:token": token, "file:least": "12345678", "file:lines": "-- begin\nsecond line\n", "file:longest": strings.Repeat("a", MaxCredential),
		"file:nul": "123\x00456789", "env:NAMED": "from the environment", "systemd:unit": "of the unit",
	} {
		if s, err := c.resolve(ref); err != nil || string(s.value) != want {
			t.Errorf("%s: got %q, %v", ref, s.value, err)
		}
	}
	for ref, want := range map[ops.CredentialRef]string{
		"file:missing": "no such file", "file:open": "mode is 0640", "file:short": "shorter than 8", "file:long": "longer than 65536",
		"file:empty": "shorter", "file:link": "not a regular file", "file:folder": "not a regular file", "file:fifo": "not a regular file",
		"file:../x": "form", "env:PATH": "does not name it", "systemd:other": "no such file", "token": "form", "other:x": "form", "": "form",
	} {
		s, err := c.resolve(ref)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), string(ref)) || strings.Contains(err.Error(), "1234567") ||
			strings.Contains(err.Error(), c.Folder) {
			t.Errorf("%s: got %q, %v; want %q", ref, s.value, err, want)
		}
	}
	if err := os.Chmod(c.Folder, 0o710); err != nil {
		t.Fatal(err)
	}
	if _, err := c.resolve("file:token"); err == nil || !strings.Contains(err.Error(), "its folder: its mode is 0710") {
		t.Errorf("an open folder: got %v", err)
	}
	for _, c := range []Credentials{{}, {Folder: "/nonexistent"}} {
		for _, ref := range []ops.CredentialRef{"file:a", "env:a", "systemd:a"} {
			if _, err := c.resolve(ref); err == nil {
				t.Errorf("%v has %s", c, ref)
			}
		}
	}
	if os.Geteuid() == 0 {
		c := credentials(t)
		if err := os.Chown(c.Folder+"/token", 4321, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := c.resolve("file:token"); err == nil || !strings.Contains(err.Error(), "belongs to user 4321") {
			t.Errorf("foreign: got %v", err)
		}
	}
}

// However a secret is printed, logged or marshalled, it is its name.
func TestSecretPrints(t *testing.T) {
	s := secret{"file:token", []byte(token)}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "one", s, "in", []secret{s}, "pointer", &s)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "one", s, "in", map[string]secret{"a": s})
	j, err := json.Marshal(map[string]any{"a": s, "b": &s, "c": []secret{s}})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %+v %s %s", s, s, s, s, s, s, s, []secret{s}, &s, log.String(), j)
	for _, f := range forms(s.value) {
		if strings.Contains(all, f) {
			t.Errorf("%q is in %s", f, all)
		}
	}
	if !strings.Contains(all, "[secret file:token]") {
		t.Errorf("the name is not in %s", all)
	}
}

// A secret reaches the program in each of its ways, and nothing else learns it: not the
// argv, the result, the fault or the receipt (x63).
func TestSecrets(t *testing.T) {
	config := testConfig
	config.Credentials = credentials(t)
	secretOp := func(program string, words ...ops.Arg) ops.Op {
		o := op(t, "")
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+program+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		o.Command.Argv = append([]ops.Arg{word(path)}, words...)
		o.Command.FS.Exec = []string{"/usr/bin", "/bin"}
		return o
	}
	const digest = "sha256sum | cut -c 1-64" // which proves that the value arrived
	inEnv := secretOp(`printf %s "$TOKEN" | ` + digest)
	inEnv.Command.Env = []ops.EnvVar{{Name: "LANG", Value: "C"}, {Name: "TOKEN", Credential: "file:token"}}
	onStdin := secretOp(digest)
	onStdin.Params = ops.Params{{Name: "token", Type: ops.Secret, Values: []string{"file:token", "file:missing"}}}
	byDescriptor := secretOp(`case $1 in /dev/fd/*) cat "$1" | `+digest+`; esac`, param("token"))
	byDescriptor.Params = ops.Params{{Name: "token", Type: ops.Secret, Values: []string{"file:token"}, As: ops.AsDescriptor}}
	byDescriptor.Command.FS.Read = []string{"/proc"}

	const given = `{"token":"file:token"}`
	for name, c := range map[string]struct {
		op     ops.Op
		params string
	}{"env": {inEnv, `{}`}, "stdin": {onStdin, given}, "descriptor": {byDescriptor, given}} {
		e, err := New(c.op, config)
		if err != nil {
			t.Fatal(err)
		}
		out, err := e.Execute(t.Context(), ops.Call{Params: json.RawMessage(c.params)})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha(token)
		if got := success(t, out); strings.TrimSpace(got.Stdout) != sum {
			t.Errorf("%s: got %q %q, want %s", name, got.Stdout, got.Stderr, sum)
		}
		r := received(t, out)
		if r.Blotted != 0 || len(r.Credentials) != 1 || r.Credentials[0] != "file:token" {
			t.Errorf("%s: receipt %+v", name, r)
		}
	}

	// A program that tells all it knows, and fails.
	leak := `t=$(cat)
printf '%s|' "$t"; printf %s "$t" | base64; printf 'user:%s' "$t" | base64; printf %s "$t" | od -An -v -tx1 | tr -d ' \n'
printf '\nlast line %s' "$t" >&2; exit 3`
	o := secretOp(leak)
	o.Params = onStdin.Params
	e, err := New(o, config)
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Execute(t.Context(), ops.Call{Params: json.RawMessage(given)})
	if err != nil {
		t.Fatal(err)
	}
	f := failure(t, out, ops.Failed, ops.OpFailed)
	const mark = "[secret file:token]"
	if !strings.Contains(f.Message, "last line "+mark) || !strings.HasPrefix(f.Details["stdout"].(string), mark+"|"+mark) {
		t.Errorf("got %v %v", f, f.Details)
	}
	whole, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range forms([]byte(token)) {
		if bytes.Contains(whole, []byte(form)) {
			t.Errorf("%q is in %s", form, whole)
		}
	}
	cut := secretOp(`printf %3000s; printf %s "$TOKEN"; printf %3000s`)
	cut.Command.Env, cut.Command.OutputMax = []ops.EnvVar{{Name: "TOKEN", Credential: "file:token"}}, 1024
	cutter, err := New(cut, config)
	if err != nil {
		t.Fatal(err)
	}
	told, err := cutter.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	success(t, told)
	if r := received(t, told); r.Stdout.SHA256 != "" || r.Blotted != 0 || !r.Truncated {
		t.Errorf("a digest over a secret that was dropped: %+v", r)
	}
	if r := received(t, out); r.Blotted != 5 || r.Stdout.SHA256 != "" || r.Stderr.SHA256 != "" || r.Stdout.Bytes == 0 {
		t.Errorf("receipt %+v", r)
	}

	out, err = e.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{"token":"file:missing"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Failed, ops.Unavailable); f.Details["started"] != false || f.Details["credential"] != ops.CredentialRef("file:missing") ||
		!strings.Contains(f.Message, "credential file:missing: no such file") {
		t.Errorf("missing: got %v %v", f, f.Details)
	}
	inEnv.Command.Env[1].Credential = "file:nul"
	if e, err = New(inEnv, config); err != nil {
		t.Fatal(err)
	}
	if out, err = e.Execute(t.Context(), ops.Call{Params: json.RawMessage(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if f := failure(t, out, ops.Failed, ops.Unavailable); !strings.Contains(f.Message, "NUL") {
		t.Errorf("NUL: got %v", f)
	}
}

func TestBlot(t *testing.T) {
	b := newBlotter([]secret{{"file:a", []byte("abcabcab")}, {"file:b", []byte("p+/?&= x")}})
	for in, want := range map[string]string{
		"":                 "",
		"nothing here":     "nothing here",
		"abcabcab":         "[secret file:a]",
		"xabcabcabcabx":    "x[secret file:a]x", // it overlaps itself
		"abcabcababcabcab": "[secret file:a][secret file:a]",
		"p+/?&= x, p%2B%2F%3F%26%3D+x, p+%2f%3F&=%20x, p%2b%2f%3f%26%3d+x": "[secret file:b], [secret file:b], p+%2f%3F&=%20x, [secret file:b]",
		`"p+/?\u0026= x"`:                                        `"[secret file:b]"`,
		hex.EncodeToString([]byte("p+/?&= x")):                   "[secret file:b]",
		strings.ToUpper(hex.EncodeToString([]byte("p+/?&= x"))):  "[secret file:b]",
		base64.StdEncoding.EncodeToString([]byte("abcabcab")):    "[secret file:a]",
		base64.RawURLEncoding.EncodeToString([]byte("p+/?&= x")): "[secret file:b]",
		"-abcabcabp+/?&= x-":                                     "-[secret file:a][secret file:b]-",
	} {
		if got := string(b.text([]byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	for before := range 3 {
		in := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("u", before) + "abcabcab:tail"))
		if got := string(b.text([]byte(in))); !strings.Contains(got, "[secret file:a]") {
			t.Errorf("in base64 behind %d bytes: got %q of %q", before, got, in)
		}
	}
}

// What a cut leaves of a secret is dropped, and what stands whole beside it is blotted.
func TestBlotCut(t *testing.T) {
	const value = "0123456789"
	for _, c := range []struct {
		head, tail, wantHead, wantTail string
		dropped                        int64
		count                          int
	}{
		{"a", "b", "a", "b", 5, 0},
		{"a 012345678", "9 b", "a ", " b", 15, 1},
		{"a 0", "123456789 b", "a ", " b", 15, 1},
		{"a 0123", "x", "a ", "x", 9, 0},
		{"0123456789", "0123456789", "[secret file:x]", "[secret file:x]", 5, 2},
		{"01234567890123", "789", "[secret file:x]", "", 12, 1},
		{"", "", "", "", 5, 0},
	} {
		b := newBlotter([]secret{{"file:x", []byte(value)}})
		got := b.output(proc.Output{Head: []byte(c.head), Tail: []byte(c.tail), Dropped: 5})
		if string(got.Head) != c.wantHead || string(got.Tail) != c.wantTail || got.Dropped != c.dropped || b.count != c.count {
			t.Errorf("%q … %q: got %q … %q, %d dropped, %d blotted; want %q … %q, %d, %d",
				c.head, c.tail, got.Head, got.Tail, got.Dropped, b.count, c.wantHead, c.wantTail, c.dropped, c.count)
		}
	}
	b := newBlotter([]secret{{"file:x", []byte(value)}})
	if got := b.output(proc.Output{Head: []byte("a 012345678")}); string(got.Head) != "a 012345678" || got.Dropped != 0 {
		t.Errorf("nothing was dropped: got %q", got.Head)
	}
	b = newBlotter([]secret{{"file:x", []byte("abcdabcdab")}})
	if got := b.output(proc.Output{Head: []byte("-abcdabcdab"), Dropped: 1}); string(got.Head) != "-[secret file:x]" {
		t.Errorf("a secret whose end is its beginning: got %q", got.Head)
	}
}

// No form of a secret is left of anything, however it is cut.
func FuzzBlot(f *testing.F) {
	f.Add([]byte("password"), []byte("before "), []byte(" after"), uint8(3), uint8(9), uint8(0))
	f.Add([]byte("aaaaaaaaab"), []byte("aaa"), []byte("aab"), uint8(9), uint8(4), uint8(2))
	f.Add([]byte("\xff\x00\"<&+ü%"), []byte("%"), []byte("2"), uint8(0), uint8(255), uint8(5))
	f.Fuzz(func(t *testing.T, value, before, after []byte, cut, resume, which uint8) {
		if len(value) < MinCredential || len(value) > 1000 || len(before)+len(after) > 1000 {
			return
		}
		s := secret{"file:x", value}
		all := forms(value)
		for _, form := range all {
			if strings.ContainsAny(form, "[]") || strings.Contains(s.String(), form) {
				return // which stands in the mark itself
			}
		}
		text := append(append(bytes.Clone(before), all[int(which)%len(all)]...), after...)
		b := newBlotter([]secret{s})
		out := b.output(proc.Output{Head: bytes.Clone(text)})
		if b.count == 0 {
			t.Errorf("nothing was blotted of %q", text)
		}
		from, to := min(int(cut), len(text)), min(max(int(cut)+1, int(resume)), len(text))
		if from < to {
			cut := newBlotter([]secret{s})
			parts := cut.output(proc.Output{Head: bytes.Clone(text[:from]), Tail: bytes.Clone(text[to:]), Dropped: int64(to - from)})
			for _, form := range all {
				for n := range len(form) {
					if bytes.HasSuffix(text[:from], []byte(form[:n])) && cut.count == 0 && len(parts.Head) > from-n {
						t.Errorf("%q is left of %q, where %q may have begun", parts.Head, text[:from], form)
					}
				}
			}
			out.Head = append(append(out.Head, "[]"...), append(append(parts.Head, "[]"...), parts.Tail...)...)
		}
		for _, form := range all {
			if bytes.Contains(out.Head, []byte(form)) {
				t.Errorf("%q is left in %q", form, out.Head)
			}
		}
	})
}

// The value of a credential is not what the URL or JSON of a program would escape it to
// by a list of ours alone.
func TestFormsAreThoseOfTheLibraries(t *testing.T) {
	all := strings.Join(forms([]byte(token)), "\n")
	j, _ := json.Marshal(token)
	for _, want := range []string{url.QueryEscape(token), url.PathEscape(token), string(j[1 : len(j)-1]), hex.EncodeToString([]byte(token))} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among the forms", want)
		}
	}
}
