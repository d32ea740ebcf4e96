package artifacts_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"inband/service/artifacts"
	"inband/service/journal"
)

func TestAttestations(t *testing.T) {
	d := newDock(t, 0)
	ctx := context.Background()
	one, two := named([]byte("1")), named([]byte("2"))
	attest := func(digest artifacts.Digest, run, name, statement string) error {
		return d.Journal.Update(ctx, func(tx journal.Tx) error {
			return artifacts.Attest(tx, artifacts.Attestation{Digest: digest, Name: name, Run: run, Delegation: "d-1", Producer: "w1", Fence: 7,
				KeyID: "sha256:k", Statement: statement, Envelope: []byte(`{"payload":"` + statement + `"}`)})
		})
	}
	for _, err := range []error{attest(one, "r-1", "a", "s1"), attest(one, "r-1", "a", "s1"), attest(one, "r-1", "b", "s2"), attest(one, "r-2", "a", "s3"), attest(two, "r-1", "c", "s4")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := artifacts.Attestation{Digest: one, Name: "a", Run: "r-1", Delegation: "d-1", Producer: "w1", Fence: 7, KeyID: "sha256:k", Statement: "s1", Envelope: []byte(`{"payload":"s1"}`)}
	view := func(run string, digest artifacts.Digest) (list []artifacts.Attestation) {
		t.Helper()
		if err := d.Journal.View(ctx, func(tx journal.Tx) (err error) {
			list, err = artifacts.Attestations(tx, run, digest)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := view("r-1", one); len(got) != 2 || cmp.Diff(want, got[0], cmpopts.IgnoreFields(artifacts.Attestation{}, "At")) != "" || time.Since(got[0].At) > time.Hour {
		t.Errorf("of r-1: %+v", got)
	}
	if got := view("", one); len(got) != 3 || got[2].Run != "r-2" {
		t.Errorf("of all runs: %+v", got)
	}
	if got := view("r-3", one); got != nil {
		t.Errorf("of none: %+v", got)
	}
	for i := 2; i < artifacts.MaxAttestations; i++ {
		if err := attest(one, "r-1", "a", fmt.Sprint("s1-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := attest(one, "r-1", "a", "one more"); !errors.Is(err, artifacts.ErrAttestations) {
		t.Errorf("one too many: %v", err)
	}
	if err := attest(one, "r-1", "a", "s1"); err != nil {
		t.Errorf("one that is known: %v", err)
	}
}

func TestLeft(t *testing.T) {
	d := newDock(t, 0)
	b := noise(100)
	up := d.begin(t, declared(b))
	left := func(run, name string, digest artifacts.Digest, bytes int64) (s string) {
		t.Helper()
		if err := d.Journal.View(t.Context(), func(tx journal.Tx) error {
			there, attested, err := artifacts.Left(tx, run, name, digest, bytes)
			s = fmt.Sprint(there, attested)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got := left("r-1", "out/report.txt", named(b), 100); got != "false false" {
		t.Errorf("while it comes: %s", got)
	}
	if _, err := d.piece(up, 0, b); err != nil {
		t.Fatal(err)
	}
	if got := left("r-1", "out/report.txt", named(b), 100); got != "true false" {
		t.Errorf("when it has come: %s", got)
	}
	if err := d.Journal.Update(t.Context(), func(tx journal.Tx) error {
		return artifacts.Attest(tx, artifacts.Attestation{Digest: named(b), Name: "out/report.txt", Run: "r-1", Delegation: "d-1", Producer: "w1", Statement: "s", Envelope: []byte("{}")})
	}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		run, name string
		digest    artifacts.Digest
		bytes     int64
		want      string
	}{
		{"r-1", "out/report.txt", named(b), 100, "true true"},
		{"r-2", "out/report.txt", named(b), 100, "false false"},
		{"r-1", "report.txt", named(b), 100, "false false"},
		{"r-1", "out/report.txt", named(nil), 100, "false false"},
		{"r-1", "out/report.txt", named(b), 99, "false true"},
	} {
		if got := left(tc.run, tc.name, tc.digest, tc.bytes); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}
