package tests

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// disguises are the forms in which a secret could stand somewhere.
func disguises(secret string) map[string]string {
	quoted, err := json.Marshal(secret)
	if err != nil {
		panic(err) // a string
	}
	return map[string]string{
		"as it is":        secret,
		"in JSON":         strings.Trim(string(quoted), `"`),
		"in base64":       base64.RawStdEncoding.EncodeToString([]byte(secret)),
		"in base64url":    base64.RawURLEncoding.EncodeToString([]byte(secret)),
		"in a URL":        url.QueryEscape(secret),
		"in a path":       url.PathEscape(secret),
		"in hexadecimal":  hex.EncodeToString([]byte(secret)),
		"in a Go literal": strings.Trim(fmt.Sprintf("%q", secret), `"`),
	}
}

// The files of the gateway are nobody's parameter, however wide the root of an op is and
// whatever the gateway's user may read.
func TestStateFolderIsNoParameter(t *testing.T) {
	l := newSiteWith(t, `provider: test
title: Any file
ops:
  test.show:
    summary: Show a file.
    side_effecting: false
    params: {file: {type: path, root: /, kind: file}}
    argv: [/usr/bin/cat]
`, everything, func(l *lab) { l.credential("key", "hunter2-hunter2-hunter2") })
	if out, _, code := l.run(l.scout, "", "exec", "test.show", "file=/etc/passwd"); code != 0 || !strings.Contains(out, "root:") {
		t.Fatalf("/etc/passwd: exit code %d, %q", code, out)
	}
	for _, name := range []string{"operator.token", "journal.db", "audit/notary.key", "tls/ca.key", "policy.cedar", "credentials/key"} {
		if out, errs, code := l.run(l.scout, "", "exec", "test.show", "file="+filepath.Join(l.state, name)); code == 0 || !strings.Contains(errs, "nothing ran") {
			t.Errorf("%s: exit code %d, %q %q", name, code, out, errs)
		}
	}
}

// Case x63: a secret reaches its program and nothing else, even when the program tells
// it and fails.
func TestSecretsStayWhereTheyAre(t *testing.T) {
	const secret, other = `s3cret "value"&/+<of> the key?`, "hunter2-hunter2-hunter2"
	l := newSiteWith(t, `provider: test
title: Secrets
ops:
  test.stdin:
    summary: Read a secret, tell it, and fail.
    side_effecting: true
    params: {key: {type: secret, credentials: ['file:key', 'file:other']}}
    argv: [PROGRAM, act, blab]
  test.descriptor:
    summary: Read a secret from a descriptor and tell it.
    side_effecting: true
    params: {key: {type: secret, credentials: ['file:key'], as: descriptor}}
    argv: [PROGRAM, act, tell, {param: key}, DIR/told]
    fs: {write: [DIR]}
  test.env:
    summary: Tell a secret out of the environment, between bytes that are no text.
    side_effecting: true
    argv: [/bin/sh, -c, 'printf "\377%s\377\n" "$TOKEN"; echo "$TOKEN" >&2']
    env: {TOKEN: {credential: 'file:key'}}
`, everything, func(l *lab) {
		l.credential("key", secret)
		l.credential("other", other)
		l.file("told")
	})
	l.kill()
	cmd := exec.Command(l.box, "--state", l.state, "serve", "--listen", "127.0.0.1:0", "--verbose")
	if l.gateway = start(t, cmd, l.state); l.isDead() {
		t.Fatalf("the gateway does not start:\n%s", l.log)
	}
	said := map[string][]byte{}
	for op, body := range map[string]string{
		"test.stdin":      `{"op":"test.stdin","params":{"key":"file:key"},"id":"1"}`,
		"test.descriptor": `{"op":"test.descriptor","params":{"key":"file:key"},"id":"2"}`,
		"test.env":        `{"op":"test.env","id":"3"}`,
		"a wrong name":    `{"op":"test.stdin","params":{"key":"file:none"}}`,
		"the value":       `{"op":"test.stdin","params":{"key":` + fmt.Sprintf("%q", other) + `}}`,
	} {
		a := l.send("POST", "/exec", body, bearer(l.scout))
		said[op+" by POST /exec"] = a.body
		if wrong := op == "a wrong name" || op == "the value"; wrong != (a.status == http.StatusBadRequest) {
			t.Errorf("%s: status %d %s", op, a.status, a.body)
		}
		if replay := l.send("POST", "/exec", body, bearer(l.scout)); true {
			said[op+" as a replay"] = replay.body
		}
	}
	for op, params := range map[string]string{"test.stdin": `{"key":"file:key"}`, "test.descriptor": `{"key":"file:key"}`, "test.env": `{}`} {
		for _, form := range []string{"", "--json"} {
			words := []string{"exec", op, "-f", "-"}
			if form != "" {
				words = append(words, form)
			}
			out, errs, code := l.run(l.scout, params, words...)
			said["box exec "+op+form] = []byte(out + errs)
			if fails := op == "test.stdin"; fails != (code != 0) {
				t.Errorf("box exec %s: exit code %d, %q", op, code, out+errs)
			}
		}
		l.thread, l.key = l.wake(t, "scout", "Use the secret.")
		_, reply := l.reply("say "+op, "[TOOL#KEY "+op+" "+params+"]")
		if len(reply.Calls) != 1 {
			t.Fatalf("%s: %+v", op, reply)
		}
		l.settled(reply.Calls[0].Call)
		l.quiet()
		for _, path := range []string{"/v1/threads/" + reply.Thread, "/v1/calls/" + string(reply.Calls[0].Call)} {
			said[op+" at "+path] = l.send("GET", path, "", bearerOnly(l.token)).body
		}
		out, errs, _ := l.run(l.token, "", "calls", "show", string(reply.Calls[0].Call))
		said["box calls show of "+op] = []byte(out + errs)
	}
	for _, path := range []string{"/v1/ops/test.stdin", "/v1/ops", "/v1/config", "/v1/status", "/openapi.json", "/v1/calls", "/readyz"} {
		said[path] = l.send("GET", path, "", bearerOnly(l.token)).body
	}
	if out, errs, code := l.run(l.token, "", "audit", "export"); code != 0 || out == "" {
		t.Errorf("audit export: exit code %d, %q, %q", code, out, errs)
	} else {
		said["the exported log"] = []byte(out)
	}
	for _, file := range []string{"environ", "cmdline"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", l.cmd.Process.Pid, file))
		if err != nil && !errors.Is(err, fs.ErrPermission) { // which only root has
			t.Fatal(err)
		}
		said["the gateway's "+file] = b
	}
	l.kill()
	said["the log"] = l.log.Bytes()
	if !bytes.Contains(l.log.Bytes(), []byte(`"DEBUG"`)) {
		t.Errorf("the log is not a debugging one:\n%.500s", l.log)
	}
	for _, path := range tree(t, l.state) {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && filepath.Dir(path) != filepath.Join(l.state, "credentials") {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			said[path] = b
		}
	}
	for place, b := range said {
		for form, s := range disguises(secret) {
			if bytes.Contains(b, []byte(s)) {
				t.Errorf("%s holds the secret %s: %.2000q", place, form, b)
			}
		}
		// Whoever writes a value where a reference belongs has told it; what we keep of
		// the refusal is theirs, but no answer repeats it.
		if bytes.Contains(b, []byte(other)) && !strings.HasPrefix(place, l.state) {
			t.Errorf("%s repeats a value: %.2000q", place, b)
		}
	}
	// The mask is there, so the programs did tell it, and it got to them whole.
	masked := 0
	for place, b := range said {
		if bytes.Contains(b, []byte("[secret file:key]")) {
			masked++
		} else if strings.HasSuffix(place, "test.stdin by POST /exec") {
			t.Errorf("no mask in %s", b)
		}
	}
	if masked < 6 {
		t.Errorf("%d places have the mask", masked)
	}
	told, err := os.ReadFile(filepath.Join(l.dir, "told"))
	if err != nil || !slices.Contains(strings.Split(string(told), "\n"), secret) {
		t.Errorf("the program told %q, %v; want the secret", told, err)
	}
}
