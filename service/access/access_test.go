package access

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inband/ops"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

func open(t *testing.T) (*Directory, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Schemas: []journal.Schema{Schema()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return NewDirectory(store), path
}

func code(err error) ops.Code {
	var f *ops.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	if err != nil {
		return ops.Code(err.Error())
	}
	return ""
}

// The default policy: who may do what.
func TestDecide(t *testing.T) {
	policy := DefaultPolicy()
	id := func(role ops.Role) ops.Identity { return ops.Identity{ID: "me", Role: role} }
	for _, tc := range []struct {
		name string
		r    Request
		want bool
	}{
		{"operator runs a write", Request{By: id(ops.Operator), Action: Run, Op: "w", SideEffecting: true}, true},
		{"operator manages", Request{By: id(ops.Operator), Action: Manage}, true},
		{"operator cancels another's", Request{By: id(ops.Operator), Action: Cancel, Owner: "you"}, true},
		{"operator speaks for an agent", Request{By: id(ops.Operator), Action: Reply, Owner: "you"}, true},
		{"agent runs a read", Request{By: id(ops.Agent), Action: Run, Op: "r"}, true},
		{"agent sends unasked", Request{By: id(ops.Agent), Action: Run, Op: "dm.send", SideEffecting: true}, false},
		{"agent sends by its errand", Request{By: id(ops.Agent), Action: Run, Op: "dm.send", SideEffecting: true, WakeDeclared: true}, true},
		{"a bridge by its agent's errand", Request{By: id(ops.Bridge), Action: Run, Op: "dm.send", SideEffecting: true, WakeDeclared: true}, false},
		{"agent runs a write", Request{By: id(ops.Agent), Action: Run, Op: "w", SideEffecting: true}, false},
		{"agent asks for a write", Request{By: id(ops.Agent), Action: Ask, Op: "w", SideEffecting: true}, true},
		{"agent speaks for itself", Request{By: id(ops.Agent), Action: Reply, Owner: "me"}, true},
		{"agent speaks for another", Request{By: id(ops.Agent), Action: Reply, Owner: "you"}, false},
		{"agent speaks for another, enrolled or not", Request{By: id(ops.Agent), Action: Reply, Owner: "you", Enrolled: true}, false},
		{"agent sees its own", Request{By: id(ops.Agent), Action: See, Owner: "me"}, true},
		{"agent sees another's", Request{By: id(ops.Agent), Action: See, Owner: "you"}, false},
		{"agent sees nobody's", Request{By: ops.Identity{Role: ops.Agent}, Action: See}, false},
		{"agent manages", Request{By: id(ops.Agent), Action: Manage}, false},
		{"bridge for its agent", Request{By: id(ops.Bridge), Action: Reply, Owner: "you", Enrolled: true}, true},
		{"bridge for another's agent", Request{By: id(ops.Bridge), Action: Reply, Owner: "you"}, false},
		{"bridge sees its agent's", Request{By: id(ops.Bridge), Action: See, Owner: "you", Enrolled: true}, true},
		{"bridge runs a read", Request{By: id(ops.Bridge), Action: Run, Op: "r"}, false},
		{"bridge cancels", Request{By: id(ops.Bridge), Action: Cancel, Owner: "you", Enrolled: true}, false},
		{"worker", Request{By: id(ops.Worker), Action: Run, Op: "r"}, false},
		{"verifier", Request{By: id(ops.Verifier), Action: See, Owner: "me"}, false},
		{"nobody", Request{Action: Run, Op: "r"}, false},
		{"an unknown role", Request{By: id("root"), Action: Manage}, false},
		{"an unknown action", Request{By: id(ops.Agent), Action: "fly", Owner: "me"}, false},
	} {
		if got := policy.Decide(tc.r); got.Allowed != tc.want || got.Rule == "" {
			t.Errorf("%s: got %+v, want allowed %v and a rule", tc.name, got, tc.want)
		}
	}
}

func TestTokens(t *testing.T) {
	d, path := open(t)
	ada := ops.Identity{ID: "ada", Role: ops.Operator}
	token, err := d.Add(t.Context(), ada)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := d.Authenticate(t.Context(), token); err != nil || who != ada {
		t.Errorf("got %v, %v, want %v", who, err, ada)
	}
	for name, wrong := range map[string]string{
		"none": "", "prefix only": TokenPrefix, "cut": token[:len(token)-1], "longer": token + "0", "another": TokenPrefix + strings.Repeat("0", 64),
		"upper case": strings.ToUpper(token), "with a space": token + " ", "long": TokenPrefix + strings.Repeat("0", 1<<20), "NUL": token[:len(token)-1] + "\x00", "SQL": TokenPrefix + "' OR 1=1 --",
	} {
		who, err := d.Authenticate(t.Context(), wrong)
		if code(err) != ops.Unauthenticated || who != (ops.Identity{}) {
			t.Errorf("%s: got %v, %v, want UNAUTHENTICATED", name, who, err)
		}
		if len(wrong) > len(TokenPrefix) && strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: the fault repeats the token", name)
		}
	}
	// Neither the store nor a listing holds what opens.
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(token)) || bytes.Contains(b, []byte(token[len(TokenPrefix):])) {
			t.Errorf("the token stands in the store's file%s", suffix)
		}
	}
	l, err := d.Show(t.Context(), "ada")
	if err != nil || len(l.Tokens) != 1 || !strings.HasPrefix(token, l.Tokens[0].Hint) || len(l.Tokens[0].Hint) > 8 {
		t.Errorf("listing %+v, %v", l, err)
	}
}

func TestRevoke(t *testing.T) {
	d, _ := open(t)
	add := func(id ops.IdentityID, role ops.Role, agents ...ops.IdentityID) string {
		t.Helper()
		token, err := d.Add(t.Context(), ops.Identity{ID: id, Role: role}, agents...)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	add("ada", ops.Operator)
	scout := add("scout", ops.Agent)
	add("relay", ops.Bridge, "scout")
	enrolled := func() (ok bool) {
		if err := d.store.View(t.Context(), func(tx journal.Tx) (err error) { ok, err = Enrolled(tx, "relay", "scout"); return err }); err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !enrolled() {
		t.Error("the bridge is not enrolled")
	}
	if _, err := d.Revoke(t.Context(), "ada"); code(err) != ops.Conflict {
		t.Errorf("the last operator: got %v, want CONFLICT", err)
	}
	first, err := d.Revoke(t.Context(), "scout")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Revoke(t.Context(), "scout"); err != nil || !again.Equal(first) {
		t.Errorf("a second time: %v, %v, want %v", again, err, first)
	}
	if _, err := d.Authenticate(t.Context(), scout); code(err) != ops.Unauthenticated {
		t.Errorf("a revoked token: %v, want UNAUTHENTICATED", err)
	}
	if enrolled() {
		t.Error("a revoked agent is still enrolled")
	}
	if _, err := d.Add(t.Context(), ops.Identity{ID: "scout", Role: ops.Operator}); code(err) != ops.Conflict {
		t.Errorf("an id used again: %v, want CONFLICT", err)
	}
	if _, err := d.Revoke(t.Context(), "none"); code(err) != ops.NotFound {
		t.Errorf("nobody: %v, want NOT_FOUND", err)
	}
	add("bob", ops.Operator)
	if _, err := d.Revoke(t.Context(), "ada"); err != nil {
		t.Errorf("with another operator: %v", err)
	}
}

func TestRotate(t *testing.T) {
	d, path := open(t)
	ada := ops.Identity{ID: "ada", Role: ops.Operator}
	first, err := d.Add(t.Context(), ada)
	if err != nil {
		t.Fatal(err)
	}
	scout, err := d.Add(t.Context(), ops.Identity{ID: "scout", Role: ops.Agent})
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Rotate(t.Context(), "ada") // the last operator may
	if err != nil || second == first {
		t.Fatalf("rotate: %q, %v", second, err)
	}
	for token, want := range map[string]ops.Identity{first: {}, second: ada, scout: {ID: "scout", Role: ops.Agent}} {
		if who, err := d.Authenticate(t.Context(), token); who != want || (err == nil) != (want != ops.Identity{}) {
			t.Errorf("%s…: got %v, %v, want %v", token[:8], who, err, want)
		}
	}
	l, err := d.Show(t.Context(), "ada")
	if err != nil || len(l.Tokens) != 2 || l.RevokedAt != "" {
		t.Fatalf("listing %+v, %v, want two tokens", l, err)
	}
	for _, token := range l.Tokens {
		if revoked := !strings.HasPrefix(second, token.Hint); revoked != (token.RevokedAt != "") {
			t.Errorf("token %+v, the new one begins %s", token, second[:8])
		}
	}
	for _, suffix := range []string{"", "-wal"} {
		if b, err := os.ReadFile(path + suffix); err != nil || bytes.Contains(b, []byte(second)) {
			t.Errorf("the new token stands in the store's file%s, or %v", suffix, err)
		}
	}
	if _, err := d.Rotate(t.Context(), "none"); code(err) != ops.NotFound {
		t.Errorf("nobody: %v, want NOT_FOUND", err)
	}
	if _, err := d.Revoke(t.Context(), "scout"); err != nil {
		t.Fatal(err)
	}
	if token, err := d.Rotate(t.Context(), "scout"); code(err) != ops.Conflict || token != "" {
		t.Errorf("a revoked one: %q, %v, want CONFLICT", token, err)
	}
}

// Each role can be given, and is what the token proves.
func TestRoles(t *testing.T) {
	d, _ := open(t)
	for _, role := range []ops.Role{ops.Agent, ops.Operator, ops.Bridge, ops.Worker, ops.Verifier} {
		who := ops.Identity{ID: ops.IdentityID("a-" + role), Role: role}
		token, err := d.Add(t.Context(), who)
		if err != nil {
			t.Errorf("%s: %v", role, err)
			continue
		}
		if got, err := d.Authenticate(t.Context(), token); err != nil || got != who {
			t.Errorf("%s: the token proves %v, %v", role, got, err)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	d, _ := open(t)
	if _, err := d.Add(t.Context(), ops.Identity{ID: "ada", Role: ops.Operator}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who    ops.Identity
		agents []ops.IdentityID
		want   ops.Code
	}{
		{who: ops.Identity{ID: "", Role: ops.Agent}, want: ops.BadRequest},
		{who: ops.Identity{ID: "Ada", Role: ops.Agent}, want: ops.BadRequest},
		{who: ops.Identity{ID: "a b", Role: ops.Agent}, want: ops.BadRequest},
		{who: ops.Identity{ID: "-a", Role: ops.Agent}, want: ops.BadRequest},
		{who: ops.Identity{ID: "a\n", Role: ops.Agent}, want: ops.BadRequest},
		{who: ops.Identity{ID: ops.IdentityID(strings.Repeat("a", 65)), Role: ops.Agent}, want: ops.BadRequest},
		{who: ops.Identity{ID: "x", Role: "king"}, want: ops.BadRequest},
		{who: ops.Identity{ID: "x"}, want: ops.BadRequest},
		{who: ops.Identity{ID: "x", Role: ops.Worker}, agents: []ops.IdentityID{"ada"}, want: ops.BadRequest},
		{who: ops.Identity{ID: "x", Role: ops.Agent}, agents: []ops.IdentityID{"ada"}, want: ops.BadRequest},
		{who: ops.Identity{ID: "x", Role: ops.Bridge}, agents: []ops.IdentityID{"nobody"}, want: ops.BadRequest},
		{who: ops.Identity{ID: "x", Role: ops.Bridge}, agents: []ops.IdentityID{"ada"}, want: ops.BadRequest},
		{who: ops.Identity{ID: "ada", Role: ops.Operator}, want: ops.Conflict},
	} {
		token, err := d.Add(t.Context(), tc.who, tc.agents...)
		if code(err) != tc.want || token != "" {
			t.Errorf("add %v %v: got %q, %v, want %s", tc.who, tc.agents, token, err, tc.want)
		}
	}
	l, err := d.List(t.Context(), "")
	if err != nil || len(l) != 1 {
		t.Errorf("after refusals: %d identities, %v, want 1", len(l), err)
	}
}
