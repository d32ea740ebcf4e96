package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"inband/ops"
)

// testFolder is a state folder whose gateway is h.
func testFolder(t *testing.T, h http.HandlerFunc) stateFolder {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	folder := stateFolder(t.TempDir())
	if err := os.Mkdir(folder.tls(), 0o700); err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for path, content := range map[string][]byte{folder.ca(): ca, folder.token(): []byte("ibt_test\n")} {
		if err := writePrivate(path, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := folder.writeAddress(address{URL: s.URL, PID: 1}); err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestInterrupted: whatever a command waits for, an interrupt ends it with 130.
func TestInterrupted(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	hang := func(asked func()) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case strings.HasSuffix(r.URL.Path, "/t-1"):
				fmt.Fprint(w, `{"id":"t-1","posts":[]}`)
				asked()
			case r.URL.Path == "/v1/events":
				w.Header().Set("Content-Type", "text/event-stream")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			case strings.HasSuffix(r.URL.Path, "/c-1"):
				fmt.Fprint(w, `{"call":"c-1","state":"running"}`)
				asked()
			default:
				asked()
				select {
				case <-r.Context().Done():
				case <-release:
				}
			}
		}
	}
	for _, args := range [][]string{
		{"exec", "slow"},
		{"calls"},
		{"calls", "show", "c-1", "--wait"},
		{"threads", "follow", "t-1"},
		{"harvest"},
		{"reply", "--room", "lobby"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := sync.OnceFunc(cancel)
			folder := testFolder(t, hang(asked))
			stdin, end := io.Pipe() // nobody ever writes
			defer end.Close()
			read := readerFunc(func(p []byte) (int, error) { asked(); return stdin.Read(p) })
			var out, errs bytes.Buffer
			a := newApp(read, &out, &errs, func(string) string { return "" })
			if code := a.run(ctx, append([]string{"--state", string(folder)}, args...)); code != ops.ExitInterrupted {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
}

// TestFaultOnStdout: with --json a script finds the fault where it reads the data.
func TestFaultOnStdout(t *testing.T) {
	folder := testFolder(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"title":"Forbidden","status":403,"code":"NOT_PERMITTED","message":"no\u202e","retryable":false}`)
	})
	for mode, want := range map[string]string{
		"":        "",
		"--jsonl": `{"fault":{"code":"NOT_PERMITTED","message":"no\u202e","retryable":false},"ok":false}` + "\n",
	} {
		var out, errs bytes.Buffer
		args := []string{"--state", string(folder), "agents"}
		if mode != "" {
			args = append(args, mode)
		}
		code := newApp(strings.NewReader(""), &out, &errs, func(string) string { return "" }).run(t.Context(), args)
		if code != ops.ExitNotAllowed || out.String() != want {
			t.Errorf("%s: exit code %d, %q on standard output, want %q", mode, code, out.String(), want)
		}
		if want := `box: no\u202e (NOT_PERMITTED)` + "\n"; errs.String() != want {
			t.Errorf("%s: %q on standard error, want %q", mode, errs.String(), want)
		}
	}
}

// TestExitCodes: every fault of the table ends box with the code that it documents.
func TestExitCodes(t *testing.T) {
	for _, info := range ops.Codes() {
		folder := testFolder(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(info.Status)
			fmt.Fprintf(w, `{"status":%d,"code":%q,"message":"m"}`, info.Status, info.Code)
		})
		var out, errs bytes.Buffer
		got := newApp(strings.NewReader(""), &out, &errs, func(string) string { return "" }).
			run(t.Context(), []string{"--state", string(folder), "exec", "x"})
		if got != info.Exit || !strings.Contains(errs.String(), string(info.Code)) {
			t.Errorf("%s: exit code %d, want %d; %s", info.Code, got, info.Exit, errs.String())
		}
	}
}
