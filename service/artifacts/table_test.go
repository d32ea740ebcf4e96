package artifacts_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"inband/ops"
	"inband/service/access"
	"inband/service/artifacts"
	"inband/service/journal"
	"inband/service/journal/sqlite"
)

func TestTable(t *testing.T) {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(t.TempDir(), "journal.db"), Schemas: []journal.Schema{access.Schema(), artifacts.Schema()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	directory := access.NewDirectory(store)
	for _, who := range []struct {
		id     ops.Identity
		agents []ops.IdentityID
	}{
		{ops.Identity{ID: "ada", Role: ops.Agent}, nil}, {ops.Identity{ID: "bob", Role: ops.Agent}, nil},
		{ops.Identity{ID: "relay", Role: ops.Bridge}, []ops.IdentityID{"ada"}},
		{ops.Identity{ID: "gone", Role: ops.Bridge}, []ops.IdentityID{"ada", "bob"}},
	} {
		if _, err := directory.Add(ctx, who.id, who.agents...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := directory.Revoke(ctx, "gone"); err != nil {
		t.Fatal(err)
	}

	one, two := named([]byte("1")), named([]byte("2"))
	ada, bob := ops.Identity{ID: "ada", Role: ops.Agent}, ops.Identity{ID: "bob", Role: ops.Agent}
	add := func(d artifacts.Digest, name string, call ops.CallID, owner ops.Identity) {
		t.Helper()
		err := store.Update(ctx, func(tx journal.Tx) error {
			return artifacts.Add(tx, artifacts.Artifact{Digest: d, Name: name, Kind: "text/plain", Bytes: 1, Call: call, Owner: owner})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	add(one, "a", "c-1", ada)
	add(two, "b", "c-1", ada)
	add(one, "a", "c-2", bob)
	add(two, "a", "c-1", ada) // the call has published that name
	add(one, "loose", "", bob)
	add(one, "loose", "", bob) // nobody's call may do so again

	var ids []artifacts.ID
	list := func(q artifacts.Query) (got []string) {
		t.Helper()
		ids = nil
		err := store.View(ctx, func(tx journal.Tx) error {
			got = nil
			return artifacts.List(tx, q, func(a artifacts.Artifact, enrolled bool) error {
				text := string(a.Owner.ID) + " " + a.Name + " " + string(a.Call)
				if a.Digest == two {
					text += " two"
				}
				if enrolled {
					text += " enrolled"
				}
				if a.Kind != "text/plain" || a.Bytes != 1 || a.Owner.Role != ops.Agent || a.CreatedAt.IsZero() {
					t.Errorf("%+v", a)
				}
				got, ids = append(got, text), append(ids, a.ID)
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	all := list(artifacts.Query{})
	third := ids[2]
	if d := cmp.Diff([]string{"bob loose ", "bob loose ", "bob a c-2", "ada b c-1 two", "ada a c-1"}, all); d != "" {
		t.Errorf("all (-want +got):\n%s", d)
	}
	for name, tc := range map[string]struct {
		q    artifacts.Query
		want []string
	}{
		"behind one":              {artifacts.Query{After: third}, all[3:]},
		"of a digest":             {artifacts.Query{Digest: two}, all[3:4]},
		"of a digest, behind":     {artifacts.Query{Digest: one, After: third}, all[4:]},
		"of no digest":            {artifacts.Query{Digest: named([]byte("3"))}, nil},
		"near ada":                {artifacts.Query{By: "ada", Near: true}, all[3:]},
		"near its bridge":         {artifacts.Query{By: "relay", Near: true}, []string{"ada b c-1 two enrolled", "ada a c-1 enrolled"}},
		"a digest for its bridge": {artifacts.Query{By: "relay", Digest: two}, []string{"ada b c-1 two enrolled"}},
		"near nobody":             {artifacts.Query{By: "carol", Near: true}, nil},
	} {
		if d := cmp.Diff(tc.want, list(tc.q)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	// A bridge that was revoked is enrolled with nobody.
	for _, text := range list(artifacts.Query{By: "gone", Digest: two}) {
		if text != all[3] {
			t.Errorf("for a revoked bridge: %s", text)
		}
	}

	enough := errors.New("enough")
	err = store.View(ctx, func(tx journal.Tx) error {
		return artifacts.List(tx, artifacts.Query{}, func(artifacts.Artifact, bool) error { return enough })
	})
	if err != enough {
		t.Errorf("a list that is ended: %v", err)
	}

	first, second := min(one, two), max(one, two)
	for _, tc := range []struct {
		after artifacts.Digest
		limit int
		want  []artifacts.Digest
	}{{"", 9, []artifacts.Digest{first, second}}, {"", 1, []artifacts.Digest{first}}, {first, 9, []artifacts.Digest{second}}, {second, 9, nil}} {
		var got []artifacts.Digest
		if err := store.View(ctx, func(tx journal.Tx) (err error) {
			got, err = artifacts.Digests(tx, tc.after, tc.limit)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("digests after %q (-want +got):\n%s", tc.after, d)
		}
	}

	// Each publication is an event, in the stream of its bytes.
	var bodies []string
	if err := store.Stream(ctx, "artifact/"+string(two), 0, func(e journal.Event) error {
		var body struct{ Digest, Name, Call string }
		if err := json.Unmarshal(e.Body, &body); err != nil {
			return err
		}
		bodies = append(bodies, e.Kind+" "+body.Digest+" "+body.Name+" "+body.Call)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"artifact.published " + string(two) + " b c-1"}, bodies); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

// What was published before runs could leave files is there afterwards.
func TestUpgrade(t *testing.T) {
	ctx := context.Background()
	first, err := fs.ReadFile(artifacts.Schema().FS, "sqlite/00001_artifacts.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "journal.db")
	old, err := sqlite.Open(ctx, sqlite.Config{Path: path, Schemas: []journal.Schema{access.Schema(),
		{Name: "artifacts", FS: fstest.MapFS{"sqlite/00001_artifacts.sql": {Data: first}}}}})
	if err != nil {
		t.Fatal(err)
	}
	digest := named([]byte("old"))
	if err := old.Update(ctx, func(tx journal.Tx) error {
		_, err := tx.Exec(`INSERT INTO artifact (id, digest, name, kind, bytes, call, owner_id, owner_role, created_at) VALUES ('f-1', $1, 'a', 'text/plain', 3, 'c-1', 'ada', 'agent', 1)`, string(digest))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	store := openJournal(t, path)
	defer store.Close()
	n := 0
	if err := store.View(ctx, func(tx journal.Tx) error {
		n = 0
		return artifacts.List(tx, artifacts.Query{Digest: digest}, func(a artifacts.Artifact, _ bool) error {
			if n++; a.Call != "c-1" || a.Run != "" || a.Delegation != "" || a.Producer != "" || a.Upload != "" || a.Bytes != 3 {
				t.Errorf("it is %+v", a)
			}
			return nil
		})
	}); err != nil || n != 1 {
		t.Errorf("%d artifacts, %v", n, err)
	}
}
