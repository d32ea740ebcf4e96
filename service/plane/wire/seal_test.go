package wire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// key returns a key that is the same for the same seed.
func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

func header() Header {
	return Header{
		Delegation: "d-1", Run: "r-1", Dispatch: "x-1", Implementation: "default", Worker: "alpha", Boot: "b-1",
		Fence: 1<<32 | 1, Seq: 1, SentAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	}
}

func TestCallback_RoundTrip(t *testing.T) {
	for _, kind := range Kinds() {
		envelope, digest, err := SealCallback(key(1), kind, header(), Heartbeat{Alive: true, Progress: 7})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Read(envelope, MaxPayload)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Prove(public(key(1))); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		m, err := s.Callback()
		if err != nil {
			t.Fatal(err)
		}
		var beat Heartbeat
		if err := Strict(m.Body, &beat); err != nil {
			t.Fatal(err)
		}
		if m.Kind != kind || m.Digest != digest || m.KeyID != KeyID(public(key(1))) || beat.Progress != 7 {
			t.Errorf("%s came back as %+v", kind, m)
		}
		if diff := cmp.Diff(header(), m.Header); diff != "" {
			t.Errorf("%s: header (-sent +read):\n%s", kind, diff)
		}
	}
}

// The kind is signed: what was said under one type is not said under another.
func TestProve_TypeIsSigned(t *testing.T) {
	envelope, _, err := SealCallback(key(1), KindHeartbeat, header(), Heartbeat{})
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Replace(envelope, []byte(KindHeartbeat.PayloadType()), []byte(KindResult.PayloadType()), 1)
	s, err := Read(other, MaxPayload)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Prove(public(key(1))); !errors.Is(err, ErrSignature) {
		t.Errorf("Prove = %v, want ErrSignature", err)
	}
}

// edit changes an envelope as JSON.
func edit(t *testing.T, envelope []byte, f func(*dsse.Envelope)) []byte {
	t.Helper()
	var e dsse.Envelope
	if err := json.Unmarshal(envelope, &e); err != nil {
		t.Fatal(err)
	}
	f(&e)
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Case pb-030: whatever is not a message of the signer is refused, and says which it is.
func TestRead_Refusals(t *testing.T) {
	good, _, err := SealCallback(key(1), KindStarted, header(), Started{})
	if err != nil {
		t.Fatal(err)
	}
	payload := func(s string) func(*dsse.Envelope) {
		return func(e *dsse.Envelope) { e.Payload = base64.StdEncoding.EncodeToString([]byte(s)) }
	}
	sealed := func(text string) []byte {
		b, err := SealBytes(key(1), KindStarted.PayloadType(), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	whole := string(mustPayload(t, good))
	tests := map[string]struct {
		envelope []byte
		want     error
	}{
		"nothing":                {nil, ErrMalformed},
		"no JSON":                {[]byte("{"), ErrMalformed},
		"truncated":              {good[:len(good)-9], ErrMalformed},
		"something behind it":    {append(bytes.Clone(good), []byte(`{}`)...), ErrMalformed},
		"an unknown member":      {bytes.Replace(good, []byte(`{`), []byte(`{"alg":"none",`), 1), ErrMalformed},
		"a member twice":         {bytes.Replace(good, []byte(`{`), []byte(`{"payload":"",`), 1), ErrMalformed},
		"no signature":           {edit(t, good, func(e *dsse.Envelope) { e.Signatures = nil }), ErrMalformed},
		"two signatures":         {edit(t, good, func(e *dsse.Envelope) { e.Signatures = append(e.Signatures, e.Signatures[0]) }), ErrMalformed},
		"random signature":       {edit(t, good, func(e *dsse.Envelope) { e.Signatures[0].Sig = base64.StdEncoding.EncodeToString(make([]byte, 64)) }), ErrSignature},
		"short signature":        {edit(t, good, func(e *dsse.Envelope) { e.Signatures[0].Sig = e.Signatures[0].Sig[:20] }), ErrSignature},
		"signature not base64":   {edit(t, good, func(e *dsse.Envelope) { e.Signatures[0].Sig = "*" }), ErrSignature},
		"unknown key":            {edit(t, good, func(e *dsse.Envelope) { e.Signatures[0].KeyID = KeyID(public(key(2))) }), ErrSignature},
		"key under another name": {edit(t, good, func(e *dsse.Envelope) { e.Signatures[0].KeyID = "" }), ErrSignature},
		"changed payload":        {edit(t, good, payload(strings.Replace(whole, `"seq":1`, `"seq":2`, 1))), ErrSignature},
		"payload not base64":     {edit(t, good, func(e *dsse.Envelope) { e.Payload = "?" }), ErrMalformed},
		"payload in URL base64":  {edit(t, good, func(e *dsse.Envelope) { e.Payload = "_-8" }), ErrMalformed},
		"another type":           {edit(t, good, func(e *dsse.Envelope) { e.PayloadType = "application/json" }), ErrSignature},
		"a type that is no callback": {func() []byte {
			b, _, err := Seal(key(1), KindGrant, Grant{})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}(), ErrMalformed},
		"stripped of its sequence":    {edit(t, good, payload(strings.Replace(whole, `"seq":1,`, ``, 1))), ErrSignature},
		"signed, with a member twice": {sealed(strings.Replace(whole, `{`, `{"seq":9,`, 1)), ErrMalformed},
		"signed, in another case":     {sealed(strings.Replace(whole, `"seq"`, `"Seq"`, 1)), ErrMalformed},
		"signed, unknown member":      {sealed(strings.Replace(whole, `{`, `{"cancel":true,`, 1)), ErrMalformed},
		"signed, no object":           {sealed(`[]`), ErrMalformed},
		"too long":                    {sealed(`{"worker":"` + strings.Repeat("a", MaxPayload) + `"}`), ErrMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := Read(tt.envelope, MaxPayload)
			if err == nil {
				if err = s.Prove(public(key(1))); err == nil {
					_, err = s.Callback()
				}
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("refused with %v, want %v", err, tt.want)
			}
		})
	}
}

func mustPayload(t *testing.T, envelope []byte) []byte {
	t.Helper()
	s, err := Read(envelope, MaxPayload)
	if err != nil {
		t.Fatal(err)
	}
	return s.Payload
}

// Whatever bytes come, nothing is proved by a key that did not sign it, and what is
// proved is byte for byte what was signed.
func FuzzRead(f *testing.F) {
	good, _, err := SealCallback(key(1), KindResult, header(), Result{Succeeded: true, Summary: "done"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte(`{"payloadType":"","payload":"","signatures":[{"keyid":"","sig":""}]}`))
	want := func() []byte { s, _ := Read(good, MaxPayload); return s.Payload }()
	f.Fuzz(func(t *testing.T, envelope []byte) {
		s, err := Read(envelope, MaxPayload)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("Read: %v is no ErrMalformed", err)
			}
			return
		}
		if s.Prove(public(key(1))) == nil && !(bytes.Equal(s.Payload, want) && s.Kind() == KindResult) {
			t.Fatalf("proved what was not signed: %s", envelope)
		}
		if s.Prove(public(key(2))) == nil {
			t.Fatalf("proved by a key that never signed: %s", envelope)
		}
	})
}
