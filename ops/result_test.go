package ops

import (
	"encoding/json"
	"testing"
)

func TestResultShown(t *testing.T) {
	for _, tc := range []struct {
		value, show, want string
		ok                bool
	}{
		{`{"stdout":"a\nb","stderr":""}`, "/stdout", "a\nb", true},
		{`{"stdout":""}`, "/stdout", "", true},
		{`{"stdout":7}`, "/stdout", "", false},
		{`{"stderr":"x"}`, "/stdout", "", false},
		{`{"stdout":"x"}`, "", "", false},
		{`["x"]`, "/0", "", false},
		{`{`, "/stdout", "", false},
	} {
		r := &Result{Value: json.RawMessage(tc.value), Show: tc.show}
		if got, ok := r.Shown(); got != tc.want || ok != tc.ok {
			t.Errorf("%s shown by %q: got %q, %v, want %q, %v", tc.value, tc.show, got, ok, tc.want, tc.ok)
		}
	}
}
