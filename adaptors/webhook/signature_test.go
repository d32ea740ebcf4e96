package webhook

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"inband/ops"
)

func secret(t testing.TB, s string) Secret {
	t.Helper()
	got, err := NewSecret([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// The example of the Standard Webhooks libraries, whose signature others have computed.
func TestKnownSignature(t *testing.T) {
	s := secret(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	h := http.Header{}
	body := []byte(`{"test": 2432232314}`)
	s.Sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), body)
	if got, want := h.Get(HeaderSignature), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("the signature is %s, want %s", got, want)
	}
}

func TestVerify(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ours, old, other := secret(t, "the secret of this bridge"), secret(t, "the secret before this one"), secret(t, "the secret of somebody else")
	body := []byte(`{"text":"hi"}`)
	signed := func(s Secret, at time.Time) http.Header {
		h := http.Header{}
		s.Sign(h, "e-1", at, body)
		return h
	}
	with := func(name, value string) http.Header {
		h := signed(ours, now)
		h.Set(name, value)
		return h
	}
	for _, tc := range []struct {
		name string
		h    http.Header
		body string
		want string // in the message, "" for none
	}{
		{"ours", signed(ours, now), string(body), ""},
		{"the one before", signed(old, now), string(body), ""},
		{"at the edge, late", signed(ours, now.Add(-Window)), string(body), ""},
		{"at the edge, early", signed(ours, now.Add(Window)), string(body), ""},
		{"several, ours the last", with(HeaderSignature, "v1a,xxx v1,AAAA "+signed(ours, now).Get(HeaderSignature)), string(body), ""},
		{"another's", signed(other, now), string(body), "does not fit"},
		{"another body", signed(ours, now), `{"text":"ho"}`, "does not fit"},
		{"the same JSON in other bytes", signed(ours, now), `{"text": "hi"}`, "does not fit"},
		{"another id", with(HeaderID, "e-2"), string(body), "does not fit"},
		{"another time", with(HeaderTimestamp, "1700000001"), string(body), "does not fit"},
		{"old", signed(ours, now.Add(-Window-time.Second)), string(body), "another time"},
		{"a clock ten minutes ahead", signed(ours, now.Add(10*time.Minute)), string(body), "another time"},
		{"old, another's", signed(other, now.Add(-time.Hour)), string(body), "does not fit"},
		{"no headers", http.Header{}, string(body), "webhook-id is missing"},
		{"no id", with(HeaderID, ""), string(body), "webhook-id is missing"},
		{"no timestamp", with(HeaderTimestamp, ""), string(body), "webhook-timestamp is missing"},
		{"no signature", with(HeaderSignature, ""), string(body), "webhook-signature is missing"},
		{"a dot in the id", with(HeaderID, "e.1"), string(body), "without a dot"},
		{"a long id", with(HeaderID, strings.Repeat("e", 257)), string(body), "webhook-id"},
		{"a fraction", with(HeaderTimestamp, "1700000000.0"), string(body), "whole seconds"},
		{"a plus", with(HeaderTimestamp, "+1700000000"), string(body), "whole seconds"},
		{"beyond int64", with(HeaderTimestamp, "99999999999999999999"), string(body), "whole seconds"},
		{"another scheme", with(HeaderSignature, "v1a,"+base64.StdEncoding.EncodeToString([]byte("x"))), string(body), "want v1,"},
		{"no base64", with(HeaderSignature, "v1,%%%"), string(body), "does not fit"},
		{"empty", with(HeaderSignature, "v1,"), string(body), "does not fit"},
		{"hex", with(HeaderSignature, "v1,"+fmt.Sprintf("%x", ours.sum("e-1", "1700000000", body))), string(body), "does not fit"},
		{"many", with(HeaderSignature, strings.Repeat("v1,AAAA ", 17)), string(body), "more than 16"},
		{"twice", func() http.Header { h := signed(ours, now); h.Add(HeaderID, "e-1"); return h }(), string(body), "given 2 times"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fault := Verify([]Secret{ours, old}, tc.h, []byte(tc.body), now)
			switch {
			case tc.want == "" && fault != nil:
				t.Errorf("refused: %v", fault)
			case tc.want != "" && fault == nil:
				t.Error("accepted")
			case fault != nil && (fault.Code != ops.Unauthenticated || !strings.Contains(fault.Message, tc.want)):
				t.Errorf("%s %q, want %s with %q", fault.Code, fault.Message, ops.Unauthenticated, tc.want)
			case fault != nil && (strings.Contains(fault.Error(), "secret of") || strings.Contains(fault.Error(), `"hi"`)):
				t.Errorf("the fault repeats a secret or the body: %v", fault)
			}
		})
	}
}

func TestNewSecret(t *testing.T) {
	for _, tc := range []struct {
		value string
		ok    bool
	}{
		{"sixteen bytes ok", true},
		{"fifteen bytes -", false},
		{"", false},
		{"whsec_" + base64.StdEncoding.EncodeToString([]byte("sixteen bytes ok")), true},
		{"whsec_" + base64.StdEncoding.EncodeToString([]byte("fifteen bytes -")), false},
		{"whsec_not base64 at all, though it is long", false},
	} {
		s, err := NewSecret([]byte(tc.value))
		if (err == nil) != tc.ok {
			t.Errorf("NewSecret(%q): %v, want ok %v", tc.value, err, tc.ok)
		}
		if tc.value != "" && err != nil && strings.Contains(err.Error(), tc.value) {
			t.Errorf("the error repeats the secret: %v", err)
		}
		for _, verb := range []string{"%v", "%s", "%q", "%x", "%#v", "%+v", "%d"} {
			if got := fmt.Sprintf(verb, s); got != "[secret]" {
				t.Errorf("%s of a secret prints %q", verb, got)
			}
		}
	}
}

// No other request has a signature that was made for one.
func FuzzVerify(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	s := secret(f, "the secret of this bridge")
	f.Add("e-1", "1700000000", []byte(`{}`), "e-1", "1700000000", []byte(`{}`))
	f.Add("e-1", "1700000000", []byte(`1.{}`), "e-1.1700000000", "1", []byte(`{}`))
	f.Fuzz(func(t *testing.T, id, at string, body []byte, id2, at2 string, body2 []byte) {
		h := http.Header{canonical(HeaderID): {id2}, canonical(HeaderTimestamp): {at2},
			canonical(HeaderSignature): {"v1," + base64.StdEncoding.EncodeToString(s.sum(id, at, body))}}
		same := id == id2 && at == at2 && string(body) == string(body2)
		if fault := Verify([]Secret{s}, h, body2, now); fault == nil && !same {
			t.Errorf("%q %q %q is taken with the signature of %q %q %q", id2, at2, body2, id, at, body)
		}
	})
}

// canonical is a header as http.Header keeps it.
func canonical(name string) string { return http.CanonicalHeaderKey(name) }
