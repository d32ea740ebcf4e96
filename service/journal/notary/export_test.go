package notary_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"inband/service/journal/notary"
)

// An export that begins where no log can reach is refused, whatever roots it brings.
func TestExportFromFarAway(t *testing.T) {
	_, key, _ := filled(t, 3)
	for _, from := range []int64{1<<60 + 2, 1 << 62, math.MaxInt64 - 3, math.MaxInt64 - 1, math.MaxInt64} {
		roots, err := json.Marshal(make([]tlog.Hash, bits.OnesCount64(uint64(from-1))))
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"format":"inband/audit-export/v1","key":%q,"from":%d,"roots":%s}`+"\n", key, from, roots)
		for i := range int64(3) {
			text += fmt.Sprintf(`{"position":%d,"stream":"a/b","version":1,"kind":"k","at":"2026-01-01T00:00:00.000Z","body":"{}"}`+"\n", from+i)
		}
		_, _, err = notary.VerifyExport(strings.NewReader(text), notary.Key{})
		var found *notary.Tampering
		if !errors.As(err, &found) || !strings.Contains(err.Error(), "does not lead to position") {
			t.Errorf("from %d: got %v", from, err)
		}
	}
}

// A checkpoint that was kept is compared, or it is said that it cannot be: never is an
// export in order that was not held against it.
func TestExportAgainstKept(t *testing.T) {
	dir, key, kept := filled(t, 30) // kept at 10
	forged := kept
	forged.Hash[0] ^= 1
	for from := int64(1); from <= 30; from++ {
		export := exported(t, dir, key, from)
		_, _, err := notary.VerifyExport(bytes.NewReader(export), key, kept)
		_, _, other := notary.VerifyExport(bytes.NewReader(export), key, forged)
		var found *notary.Tampering
		if from <= kept.Size+1 {
			if err != nil || !errors.As(other, &found) {
				t.Errorf("from %d: got %v, and %v of another history", from, err, other)
			}
			continue
		}
		if !errors.Is(err, notary.ErrNotCompared) || !errors.Is(other, notary.ErrNotCompared) {
			t.Errorf("from %d, behind the checkpoint at %d: got %v and %v, want ErrNotCompared", from, kept.Size, err, other)
		}
	}
}
