package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inband/exec/command"
	"inband/exec/sandbox"
	"inband/ops"
	"inband/service"
)

// A layer that an op insists on and that cannot be had disables the op, loudly, and the
// gateway is not ready. A program that is not installed disables its op only.
func TestReadiness(t *testing.T) {
	folder := stateFolder(t.TempDir())
	if err := os.MkdirAll(folder.ops(), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder.ops(), "t.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("provider: t\ntitle: T\nops:\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const fine = "  t.fine: {summary: Fine., side_effecting: false, argv: [/usr/bin/true]}\n"
	const gone = "  t.gone: {summary: Gone., side_effecting: false, argv: [/usr/bin/not-there-at-all]}\n" +
		"  t.other: {summary: Another program., side_effecting: false, argv: [/usr/bin/true], sha256: f000000000000000000000000000000000000000000000000000000000000000}\n"
	var lacks, want []string // of the layers that an op may do without
	for _, l := range machineLayers() {
		if !l.Applied {
			lacks = append(lacks, l.Name)
			want = append(want, "the sandbox has no layer "+l.Name+", so 1 op is disabled")
		}
	}
	if lacks == nil {
		t.Fatal("this machine has every layer; find another way to miss one")
	}
	boxed := "  t.boxed: {summary: Boxed., side_effecting: false, argv: [/usr/bin/true], sandbox: {require: [" + strings.Join(lacks, ", ") + "]}}\n"
	write(fine + gone + boxed)
	var log syncBuffer
	g, err := openGateway(t.Context(), gatewayConfig{
		Folder: folder, Listen: "127.0.0.1:0", Grace: time.Second, Version: "test", Log: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	type readiness struct {
		Ready   bool
		Sandbox []service.Layer
		Code    ops.Code
		Details struct {
			Missing []string
			Sandbox []service.Layer
		}
	}
	readyz := func(status int) (r readiness) {
		t.Helper()
		w := httptest.NewRecorder()
		g.api.Handler().ServeHTTP(w, httptest.NewRequest("GET", "https://localhost/readyz", nil))
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != status {
			t.Fatalf("/readyz: %d %s, want %d", w.Code, w.Body, status)
		}
		if strings.Contains(w.Body.String(), "t.boxed") || strings.Contains(w.Body.String(), "not-there") {
			t.Errorf("/readyz tells strangers of ops: %s", w.Body)
		}
		return r
	}
	layers := func(all []service.Layer) (names []string) {
		for _, l := range all {
			names = append(names, l.Name)
			if !l.Applied && (l.Needed || l.Detail == "") {
				t.Errorf("the layer %+v", l)
			}
		}
		return names
	}
	slices.Sort(want)
	names := []string{"landlock", "seccomp", "limits", "capabilities", "run_as", "cgroup", "namespaces"}
	r := readyz(503)
	if r.Code != ops.Unavailable || !slices.Equal(r.Details.Missing, want) || !slices.Equal(layers(r.Details.Sandbox), names) {
		t.Errorf("not ready: %+v, want %q", r, want)
	}
	if !strings.HasPrefix(r.Details.Sandbox[0].Detail, "ABI ") {
		t.Errorf("landlock: %+v", r.Details.Sandbox[0])
	}
	status := func() (disabled []string) {
		t.Helper()
		for _, d := range g.condition().Disabled {
			disabled = append(disabled, string(d.Op)+" "+strings.Join(d.Layers, ","))
			if d.Why == "" || strings.Contains(d.Why, "\n") {
				t.Errorf("%s is disabled: %q", d.Op, d.Why)
			}
		}
		return disabled
	}
	if got, want := status(), []string{"t.boxed " + strings.Join(lacks, ","), "t.gone ", "t.other "}; !slices.Equal(got, want) {
		t.Errorf("disabled: %q, want %q", got, want)
	}
	said := log.String()
	for _, line := range []string{
		`"level":"ERROR","msg":"an op is disabled","op":"t.boxed"`, `"level":"WARN","msg":"an op cannot run","op":"t.gone"`,
		`"level":"WARN","msg":"an op cannot run","op":"t.other"`,
		`"level":"WARN","msg":"the sandbox does without a layer","layer":"` + lacks[0] + `"`,
	} {
		if strings.Count(said, line) != 1 {
			t.Errorf("the log has not once %s:\n%s", line, said)
		}
	}
	if n := strings.Count(said, "t.boxed"); n != 1 {
		t.Errorf("the log names t.boxed %d times:\n%s", n, said)
	}

	// A reload that fails changes nothing, and is counted.
	if c := g.condition().Reloads; c.Failed != 0 || c.FailedAt != "" {
		t.Errorf("reloads: %+v", c)
	}
	write("  t.fine: {summary: Fine.}\n")
	before := ops.Stamp(time.Now())
	for range 2 {
		if _, err := g.Reload(t.Context()); err == nil {
			t.Fatal("it reloads")
		}
	}
	if c := g.condition().Reloads; c.Failed != 2 || c.FailedAt < before {
		t.Errorf("reloads: %+v, want 2 failed, the last after %s", c, before)
	}
	readyz(503)

	// One that succeeds makes it ready.
	write(fine + gone)
	if _, err := g.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := readyz(200); !r.Ready || !slices.Equal(layers(r.Sandbox), names) {
		t.Errorf("ready: %+v", r)
	}
	if got, want := status(), []string{"t.gone ", "t.other "}; !slices.Equal(got, want) {
		t.Errorf("disabled: %q, want %q", got, want)
	}
	if c := g.condition().Reloads; c.Failed != 2 {
		t.Errorf("reloads: %+v", c)
	}
}

func TestUnconfined(t *testing.T) {
	lost := func(layers ...string) command.Problem {
		return command.Problem{Op: "x", Err: &sandbox.MissingError{Layers: layers, Err: errors.New("why")}}
	}
	for _, c := range []struct {
		disabled []command.Problem
		want     []string
	}{
		{nil, nil},
		{[]command.Problem{lost("seccomp"), lost("landlock", "seccomp")},
			[]string{"the sandbox has no layer landlock, so 1 op is disabled", "the sandbox has no layer seccomp, so 2 ops are disabled"}},
		{[]command.Problem{{Op: "x", Err: errors.New("its sandbox does not hold: it could kill")}, lost("landlock")},
			[]string{"the sandbox has no layer landlock, so 1 op is disabled", "the sandbox does not hold, or what an op asks for is not allowed, so 1 op is disabled"}},
	} {
		if got := unconfined(c.disabled); !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
