package wire

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Why an envelope is refused. Neither may succeed later.
var (
	ErrMalformed = errors.New("not a message of this protocol")
	ErrSignature = errors.New("the signature is not right")
)

// KeyID names a public key: "sha256:" and the hex digest of its 32 bytes.
func KeyID(public ed25519.PublicKey) string { return Digest(public) }

// Digest names bytes: "sha256:" and 64 lower-case hex digits.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Seal signs v, as JSON, as the payload of a message of kind k. It returns the envelope
// and the payload's digest, by which the next message names this one.
func Seal(key ed25519.PrivateKey, k Kind, v any) (envelope []byte, digest string, err error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, "", fmt.Errorf("seal %s: %w", k, err)
	}
	envelope, err = SealBytes(key, k.PayloadType(), payload)
	return envelope, Digest(payload), err
}

// SealBytes signs payload under a payload type.
func SealBytes(key ed25519.PrivateKey, payloadType string, payload []byte) ([]byte, error) {
	signer, err := dsse.NewEnvelopeSigner(signer{key})
	if err != nil {
		return nil, err
	}
	e, err := signer.SignPayload(context.Background(), payloadType, payload)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", payloadType, err)
	}
	return json.Marshal(e)
}

// callback is the payload of every callback.
type callback struct {
	Header
	Body json.RawMessage `json:"body"`
}

// SealCallback signs a callback.
func SealCallback(key ed25519.PrivateKey, k Kind, h Header, body any) (envelope []byte, digest string, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, "", fmt.Errorf("seal %s: %w", k, err)
	}
	return Seal(key, k, callback{h, b})
}

// Sealed is an envelope that has been read and not yet proved.
type Sealed struct {
	Type    string
	KeyID   string // whose signature it claims to carry
	Payload []byte
	env     dsse.Envelope
}

// Read reads an envelope with exactly one signature and a payload of at most most
// bytes. The error is ErrMalformed.
func Read(envelope []byte, most int) (*Sealed, error) {
	var e dsse.Envelope
	if len(envelope) > 2*most+1024 {
		return nil, fmt.Errorf("%w: longer than its kind may be", ErrMalformed)
	}
	if err := Strict(envelope, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if len(e.Signatures) != 1 {
		return nil, fmt.Errorf("%w: %d signatures, want one", ErrMalformed, len(e.Signatures))
	}
	payload, err := base64.StdEncoding.Strict().DecodeString(e.Payload)
	if err != nil {
		return nil, fmt.Errorf("%w: the payload is not standard base64", ErrMalformed)
	}
	if len(payload) > most {
		return nil, fmt.Errorf("%w: a payload of %d bytes, of %d at most", ErrMalformed, len(payload), most)
	}
	return &Sealed{Type: e.PayloadType, KeyID: e.Signatures[0].KeyID, Payload: payload, env: e}, nil
}

// Kind is the kind of message that the payload type names, "" if none.
func (s *Sealed) Kind() Kind {
	k, ok := strings.CutPrefix(s.Type, typePrefix)
	if !ok {
		return ""
	}
	k, ok = strings.CutSuffix(k, typeSuffix)
	if !ok {
		return ""
	}
	return Kind(k)
}

// Prove checks the signature by public. The error is ErrSignature.
func (s *Sealed) Prove(public ed25519.PublicKey) error {
	if len(public) != ed25519.PublicKeySize || s.KeyID != KeyID(public) {
		return fmt.Errorf("%w: it names another key", ErrSignature)
	}
	v, err := dsse.NewEnvelopeVerifier(verifier{public})
	if err != nil {
		return err
	}
	if _, err := v.Verify(context.Background(), &s.env); err != nil {
		return ErrSignature
	}
	return nil
}

// Decode reads the payload into v, strictly. The error is ErrMalformed.
func (s *Sealed) Decode(k Kind, v any) error {
	if s.Kind() != k {
		return fmt.Errorf("%w: of type %q, want %q", ErrMalformed, clip(s.Type), k.PayloadType())
	}
	if err := Strict(s.Payload, v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// Callback reads the payload of a callback.
func (s *Sealed) Callback() (Message, error) {
	k := s.Kind()
	known := false
	for _, kind := range Kinds() {
		known = known || kind == k
	}
	if !known {
		return Message{}, fmt.Errorf("%w: %q is no callback", ErrMalformed, clip(s.Type))
	}
	var c callback
	if err := s.Decode(k, &c); err != nil {
		return Message{}, err
	}
	return Message{Kind: k, Header: c.Header, Body: c.Body, Digest: Digest(s.Payload), KeyID: s.KeyID}, nil
}

// Strict reads one JSON value into v: members that v lacks, or that come twice or in
// another case, are an error, and so is whatever follows.
func Strict(b []byte, v any) error {
	return jsonv2.Unmarshal(bytes.TrimSpace(b), v, jsonv2.RejectUnknownMembers(true))
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 80)], "\uFFFD") }

type signer struct{ key ed25519.PrivateKey }

func (s signer) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.key, data), nil
}
func (s signer) KeyID() (string, error) { return KeyID(s.key.Public().(ed25519.PublicKey)), nil }

type verifier struct{ key ed25519.PublicKey }

func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(v.key, data, sig) {
		return ErrSignature
	}
	return nil
}
func (v verifier) KeyID() (string, error)   { return KeyID(v.key), nil }
func (v verifier) Public() crypto.PublicKey { return v.key }
