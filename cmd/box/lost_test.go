package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/ops"
)

// sleepFor is an argument of sleep that no other process has.
func sleepFor() string { return fmt.Sprint(1_000_000 + os.Getpid()) }

// sleepers are the processes that sleep so.
func sleepers(t *testing.T, arg string) (found []string) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range list {
		b, err := os.ReadFile(file)
		if err == nil && bytes.Contains(b, []byte("sleep\x00"+arg+"\x00")) {
			found = append(found, file)
		}
	}
	return found
}

// eventually waits until what holds, and gives up when nothing comes of it.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// lostOps are ops to lose the connection of.
func lostOps(t *testing.T, folder stateFolder) (arg string) {
	t.Helper()
	arg = sleepFor()
	if err := os.MkdirAll(folder.ops(), 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`provider: test
title: For the tests
ops:
  test.tree:
    summary: Have a child that waits.
    side_effecting: false
    argv: [/usr/bin/timeout, '%[1]s', /usr/bin/sleep, '%[1]s']
    fs: {read: [/usr], exec: [/usr/bin]}
    timeout: 2m
  test.act:
    summary: Wait, as something with an effect.
    side_effecting: true
    argv: [/usr/bin/sleep, '%[1]s']
    timeout: 2m
  test.flood:
    summary: Write nearly a mebibyte.
    side_effecting: false
    argv: [/usr/bin/seq, '100000', '239999']
    output: {max: 1MiB}
`, arg)
	if err := os.WriteFile(filepath.Join(folder.ops(), "test.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return arg
}

// Case x19: the tree of a read goes with its caller, whether it closes its connection or
// resets its stream.
func TestTreeGoesWithItsCaller(t *testing.T) {
	folder := stateFolder(t.TempDir())
	arg := lostOps(t, folder)
	c, stop := start(t, folder, time.Second)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			transport := c.http.Transport.(*http.Transport).Clone()
			if transport.ForceAttemptHTTP2 = proto == "HTTP/2.0"; !transport.ForceAttemptHTTP2 {
				transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{} // which turns it off
			}
			defer transport.CloseIdleConnections()
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			r, err := http.NewRequestWithContext(ctx, "POST", c.base.String()+"/exec", strings.NewReader(`{"op":"test.tree","id":"`+proto+`"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+c.token)
			r.Header.Set("Content-Type", "application/json")
			gone := make(chan error, 1)
			go func() {
				resp, err := transport.RoundTrip(r)
				if err == nil {
					err = fmt.Errorf("it was answered with %s", resp.Status)
					resp.Body.Close()
				}
				gone <- err
			}()
			eventually(t, "the tree runs", func() bool { return len(sleepers(t, arg)) == 2 })
			hangUp()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller: %v", err)
			}
			eventually(t, "the tree is gone", func() bool { return len(sleepers(t, arg)) == 0 })
			// The same key tells what became of it.
			var shown execAnswer
			eventually(t, "the call is settled", func() bool {
				var fault *ops.Fault
				var raw json.RawMessage
				shown, raw, err = testApp().order(t.Context(), c, order{op: "test.tree", id: proto}, false)
				if errors.As(err, &fault) && fault.Code == ops.InProgress {
					return false
				}
				if err := json.Unmarshal(raw, &shown); err != nil {
					t.Fatal(err)
				}
				return true
			})
			if shown.State != ops.Cancelled || shown.Fault.Code != ops.CallCancelled || !shown.Replayed {
				t.Errorf("the call is %+v, want cancelled", shown)
			}
		})
	}
}

// cutter is a proxy that can cut its connections.
type cutter struct {
	url string

	mu    sync.Mutex
	conns []net.Conn
	shut  bool
}

// newCutter returns a proxy in front of a gateway. It cuts each connection itself after
// so many bytes of answers, if limit is more than 0.
func newCutter(t *testing.T, to string, limit int64) *cutter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &cutter{url: "https://" + ln.Addr().String()}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			if p.shut {
				in.Close()
				out.Close()
			}
			p.mu.Unlock()
			work.Go(func() { io.Copy(out, in); out.Close(); in.Close() })
			work.Go(func() {
				if limit > 0 {
					io.CopyN(in, out, limit)
				} else {
					io.Copy(in, out)
				}
				in.Close()
				out.Close()
			})
		}
	})
	t.Cleanup(func() { ln.Close(); p.cut(); work.Wait() })
	return p
}

// cut cuts every connection, and those that come.
func (p *cutter) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	for _, c := range p.conns {
		c.Close()
	}
}

// Case x23: a connection that is cut is never a success: the exit code is 7, and what is
// printed finds the call.
func TestCutConnection(t *testing.T) {
	folder := stateFolder(t.TempDir())
	arg := lostOps(t, folder)
	c, stop := start(t, folder, time.Second)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	box := func(through string, words ...string) (code int, out, errs string) {
		var o, e bytes.Buffer
		a := newApp(strings.NewReader(""), &o, &e, func(string) string { return "" })
		words = append(words, "--state", string(folder), "--ca", folder.ca())
		if through != "" {
			words = append(words, "--gateway", through)
		}
		code = a.run(t.Context(), words)
		return code, o.String(), e.String()
	}
	type ended struct {
		code      int
		out, errs string
	}
	t.Run("while it runs", func(t *testing.T) {
		p := newCutter(t, c.base.Host, 0)
		done := make(chan ended, 1)
		go func() {
			code, out, errs := box(p.url, "exec", "test.act", "--id", "k1")
			done <- ended{code, out, errs}
		}()
		eventually(t, "it runs", func() bool { return len(sleepers(t, arg)) == 1 })
		p.cut()
		got := <-done
		if got.code != ops.ExitUnreachable || got.out != "" || !strings.Contains(got.errs, "--id k1") || !strings.Contains(got.errs, "was lost") {
			t.Errorf("cut: code %d, %q, %q; want 7 and the key", got.code, got.out, got.errs)
		}
		eventually(t, "it is stopped", func() bool { return len(sleepers(t, arg)) == 0 })
		var code int
		var errs string
		eventually(t, "the same command says how it ended", func() bool {
			code, _, errs = box("", "exec", "test.act", "--id", "k1")
			return code != ops.ExitConflict
		})
		if code != ops.ExitFailed || !strings.Contains(errs, string(ops.CallCancelled)) {
			t.Errorf("afterwards: code %d, %q", code, errs)
		}
	})
	t.Run("while it is waited for", func(t *testing.T) {
		p := newCutter(t, c.base.Host, 0)
		through, err := url.Parse(p.url)
		if err != nil {
			t.Fatal(err)
		}
		client := newClient(through, c.token, c.http.Transport.(*http.Transport).TLSClientConfig.RootCAs)
		defer client.close()
		a := testApp()
		a.began = true
		got, _, err := a.order(t.Context(), client, order{op: "test.act"}, true)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs", func() bool { return len(sleepers(t, arg)) == 1 })
		p.cut()
		code := a.report(a.root(), a.waitAndPrint(t.Context(), client, got.Call))
		if errs := a.errs.(*bytes.Buffer).String(); code != ops.ExitUnreachable || !strings.Contains(errs, "box calls show "+got.Call+" --wait") {
			t.Errorf("cut: code %d, %q; want 7 and the call %s", code, errs, got.Call)
		}
		if len(sleepers(t, arg)) != 1 {
			t.Error("the call went with the connection")
		}
		if code, _, errs := box("", "calls", "cancel", got.Call); code != ops.ExitDone {
			t.Errorf("cancel: %d, %s", code, errs)
		}
		eventually(t, "it is stopped", func() bool { return len(sleepers(t, arg)) == 0 })
	})
	t.Run("in the middle of the output", func(t *testing.T) {
		p := newCutter(t, c.base.Host, 200_000)
		code, out, errs := box(p.url, "exec", "test.flood", "--id", "k3")
		if code != ops.ExitUnreachable || out != "" || !strings.Contains(errs, "--id k3") {
			t.Errorf("cut: code %d, %d bytes, %q; want 7, nothing, and the key", code, len(out), errs)
		}
		code, out, errs = box("", "exec", "test.flood", "--id", "k3")
		if code != ops.ExitDone || len(out) != 140_000*7 || !strings.Contains(errs, "nothing ran") {
			t.Errorf("afterwards: code %d, %d bytes, %q; want the whole output, and that nothing ran", code, len(out), errs)
		}
	})
}
