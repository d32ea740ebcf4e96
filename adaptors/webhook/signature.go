package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"inband/ops"
)

// The headers of a signed request (Standard Webhooks 1.0.0).
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// Window is how far the time of a signature may lie from ours, either way.
const Window = 5 * time.Minute

// Bounds of the headers, in bytes and signatures.
const (
	maxEventID    = 256
	maxSignatures = 16
)

// Secret is a shared secret. Nothing prints it.
type Secret struct{ key []byte }

// secretPrefix begins a secret that is written in base64.
const secretPrefix = "whsec_"

// NewSecret makes a secret of the value of a credential: what stands behind "whsec_", in
// base64, or else its bytes as they are. It has at least MinSecret bytes.
func NewSecret(value []byte) (Secret, error) {
	key := append([]byte(nil), value...)
	if encoded, ok := strings.CutPrefix(string(value), secretPrefix); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return Secret{}, fmt.Errorf("what stands behind %s is not base64", secretPrefix)
		}
	}
	if len(key) < MinSecret {
		return Secret{}, fmt.Errorf("want at least %d bytes, such as openssl rand -base64 32 makes", MinSecret)
	}
	return Secret{key}, nil
}

// String returns "[secret]".
func (Secret) String() string { return "[secret]" }

// Format writes String, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// LogValue is String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON writes String.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// sum is the signature of a request. Neither id nor timestamp may hold a dot, which is
// what makes two requests with the same bytes the same request; verify sees to that.
func (s Secret) sum(id, timestamp string, body []byte) []byte {
	m := hmac.New(sha256.New, s.key)
	fmt.Fprintf(m, "%s.%s.", id, timestamp)
	m.Write(body)
	return m.Sum(nil)
}

// Sign puts the three headers of a request with body into h.
func (s Secret) Sign(h http.Header, id string, at time.Time, body []byte) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, timestamp)
	h.Set(HeaderSignature, "v1,"+base64.StdEncoding.EncodeToString(s.sum(id, timestamp, body)))
}

// Verify returns nil if one of secrets has signed body and the time of the signature
// lies within Window of now. A fault says which of the headers is wrong; that the
// signature does not fit never says more than that.
func Verify(secrets []Secret, h http.Header, body []byte, now time.Time) *ops.Fault {
	var values [3]string
	for i, name := range []string{HeaderID, HeaderTimestamp, HeaderSignature} {
		switch v := h.Values(name); {
		case len(v) == 0 || v[0] == "":
			return unsigned("the header %s is missing", name)
		case len(v) > 1:
			return unsigned("the header %s is given %d times", name, len(v))
		default:
			values[i] = v[0]
		}
	}
	id, timestamp, list := values[0], values[1], values[2]
	if len(id) > maxEventID || !platformID(id) || strings.Contains(id, ".") {
		return unsigned("the header %s: want 1 to %d printable bytes without a dot", HeaderID, maxEventID)
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != timestamp {
		return unsigned("the header %s: want whole seconds since 1970", HeaderTimestamp)
	}
	signatures := strings.Fields(list)
	if len(signatures) > maxSignatures {
		return unsigned("the header %s holds more than %d signatures", HeaderSignature, maxSignatures)
	}
	known, fits := 0, false
	for _, s := range signatures {
		encoded, ok := strings.CutPrefix(s, "v1,")
		if !ok {
			continue // another scheme's, which may stand beside ours
		}
		known++
		mac, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			continue
		}
		for _, secret := range secrets {
			fits = hmac.Equal(mac, secret.sum(id, timestamp, body)) || fits
		}
	}
	switch {
	case known == 0:
		return unsigned("the header %s: want v1, and the signature in base64", HeaderSignature)
	case !fits:
		return unsigned("the signature does not fit: want v1,base64(hmac-sha256(secret, id.timestamp.body)) over the bytes of the body as they are sent")
	}
	// Only who knows the secret learns how our clock stands.
	if age := now.Sub(time.Unix(seconds, 0)); seconds > 1<<40 || seconds < 0 || age > Window || age < -Window {
		return unsigned("the signature is of another time: %s is more than %v from this gateway's clock, which stands at %d; sign each attempt anew", HeaderTimestamp, Window, now.Unix())
	}
	return nil
}

func unsigned(format string, args ...any) *ops.Fault {
	return ops.Faultf(ops.Unauthenticated, format, args...)
}
