package main

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inband/ops"
)

func testGateway(t *testing.T, folder stateFolder) *gateway {
	t.Helper()
	g, err := openGateway(t.Context(), gatewayConfig{
		Folder: folder, Listen: "127.0.0.1:0", Grace: time.Second, Version: "test", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestRoutesAreDocumented: every route that box uses stands in the OpenAPI document
// of the gateway that it makes.
func TestRoutesAreDocumented(t *testing.T) {
	g := testGateway(t, stateFolder(t.TempDir()))
	defer g.close()
	r := httptest.NewRequest("GET", "https://localhost/openapi.json", nil)
	w := httptest.NewRecorder()
	g.api.Handler().ServeHTTP(w, r)
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || w.Code != 200 {
		t.Fatalf("openapi.json: status %d, %v", w.Code, err)
	}
	for _, route := range routes {
		if doc.Paths[route.path][strings.ToLower(route.method)] == nil {
			t.Errorf("%s %s is not documented", route.method, route.path)
		}
	}
}

// TestOpenLeavesNothing: a gateway that cannot be opened gives back what it took.
func TestOpenLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t)
	folder := stateFolder(t.TempDir())
	if err := os.MkdirAll(folder.ops(), 0o700); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(folder.ops(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("ops: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := openGateway(t.Context(), gatewayConfig{
		Folder: folder, Listen: "127.0.0.1:0", Grace: time.Second, Version: "test", Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		g.close()
		t.Fatal("a gateway with a bad op file opens")
	}
	if !strings.Contains(err.Error(), bad+":1: ") {
		t.Errorf("the error does not name %s:1: %v", bad, err)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	// Whoever may write to these folders could make ops and policies.
	for _, dir := range []string{string(folder), folder.ops()} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		g, err := openGateway(t.Context(), gatewayConfig{
			Folder: folder, Listen: "127.0.0.1:0", Grace: time.Second, Version: "test", Log: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			g.close()
		}
		if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "chmod o-w") {
			t.Errorf("%s with mode 0777: %v", dir, err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := testGateway(t, folder).close(); err != nil { // the store is free again
		t.Error(err)
	}
}

// TestFirstStart: the state folder holds what http clients need, nobody else may read
// the token, and a second start makes nothing new.
func TestFirstStart(t *testing.T) {
	folder := stateFolder(filepath.Join(t.TempDir(), "a", "b"))
	if err := testGateway(t, folder).close(); err != nil {
		t.Fatal(err)
	}
	token, err := readToken(folder.token())
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{
		string(folder): 0o700, folder.token(): 0o600, folder.journal(): 0o600, filepath.Join(folder.tls(), "ca.key"): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), mode)
		}
	}
	shipped, err := os.ReadDir(folder.ops())
	if err != nil || len(shipped) == 0 {
		t.Fatalf("op files: %v, %v", shipped, err)
	}
	if err := os.Remove(filepath.Join(folder.ops(), shipped[0].Name())); err != nil {
		t.Fatal(err)
	}
	if err := testGateway(t, folder).close(); err != nil {
		t.Fatal(err)
	}
	if again, err := readToken(folder.token()); err != nil || again != token {
		t.Errorf("the second start changed the token (%v)", err)
	}
	if left, err := os.ReadDir(folder.ops()); err != nil || len(left) != len(shipped)-1 {
		t.Errorf("the second start brought an op file back that was removed: %v, %v", left, err)
	}
}

// TestTokenAfterCrash: an empty token file is what a crash leaves before the token is
// known; the next start makes the operator. After the operator is made, the file is
// gone and only another operator can be made.
func TestTokenAfterCrash(t *testing.T) {
	folder := stateFolder(t.TempDir())
	if err := os.WriteFile(folder.token(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := testGateway(t, folder).close(); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(folder.token()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder.token(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := testGateway(t, folder).close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder.token()); !os.IsNotExist(err) {
		t.Errorf("the token file of a lost token: %v", err)
	}
}

func TestReloadKeepsTheOldOps(t *testing.T) {
	folder := stateFolder(t.TempDir())
	g := testGateway(t, folder)
	defer g.close()
	before := g.registry.Current()
	bad := filepath.Join(folder.ops(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("provider: x\nops: {a: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := g.Reload(t.Context())
	var fault *ops.Fault
	fault, ok := err.(*ops.Fault)
	if !ok || fault.Code != ops.Conflict {
		t.Fatalf("Reload = %v, want a Conflict", err)
	}
	problems, _ := fault.Details["problems"].([]string)
	if len(problems) == 0 || !strings.Contains(problems[0], "bad.yaml:") {
		t.Errorf("problems: %q", problems)
	}
	if g.registry.Current() != before {
		t.Error("a failed reload changed the registry")
	}
	if err := os.WriteFile(bad, demoOps, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := g.Reload(t.Context())
	if err != nil || got.Ops != len(before.All())+1 {
		t.Errorf("Reload = %+v, %v; want one op more than %d", got, err, len(before.All()))
	}
	if _, ok := g.registry.Current().Lookup("demo.restart"); !ok {
		t.Error("the new op is not there")
	}
}

func TestAddressIsOneOwners(t *testing.T) {
	s := stateFolder(t.TempDir())
	one, two := address{URL: "https://a:1", PID: 1, Boot: "x"}, address{URL: "https://a:2", PID: 2, Boot: "y"}
	if _, ok, err := s.readAddress(); ok || err != nil {
		t.Errorf("an address where none was written: %v, %v", ok, err)
	}
	for _, at := range []address{one, two} {
		if err := s.writeAddress(at); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.removeAddress(one); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := s.readAddress(); got != two || !ok || err != nil {
		t.Errorf("the address after another owner's removal: %v, %v, %v", got, ok, err)
	}
	if err := s.removeAddress(two); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := s.readAddress(); ok {
		t.Error("the address is still there")
	}
}
