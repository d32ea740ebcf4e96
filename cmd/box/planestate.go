package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"inband/ops"
	"inband/service/journal"
	"inband/service/plane"
	"inband/service/threads"
)

// keyBlock is the type of the PEM block of a private key (RFC 7468, section 10).
const keyBlock = "PRIVATE KEY"

// planeKey reads the key with which the plane signs grants, or makes it, mode 0600, when
// there is none. Workers know it from their enrolment.
func planeKey(folder stateFolder) (key ed25519.PrivateKey, made bool, err error) {
	b, err := os.ReadFile(folder.planeKey())
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makePlaneKey(folder)
		return key, true, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("key of the plane: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != keyBlock {
		return nil, false, fmt.Errorf("key of the plane: %s holds no private key in PEM; restore it from a backup, or move it away to have another made, which enrolled workers do not know", folder.planeKey())
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, false, fmt.Errorf("key of the plane: %s: %w", folder.planeKey(), err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, false, fmt.Errorf("key of the plane: %s holds a key of another kind; want Ed25519", folder.planeKey())
	}
	return key, false, nil
}

func makePlaneKey(folder stateFolder) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the plane: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make the key of the plane: %w", err)
	}
	if err := os.MkdirAll(folder.plane(), 0o700); err != nil {
		return nil, fmt.Errorf("make the key of the plane: %w", err)
	}
	if err := syncFolder(string(folder)); err != nil {
		return nil, fmt.Errorf("make the key of the plane: %w", err)
	}
	return key, writePrivate(folder.planeKey(), pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}))
}

// notices tells the threads what becomes of delegations.
type notices struct{ threads *threads.Threads }

var _ plane.Notices = notices{}

// Note implements plane.Notices.
func (n notices) Note(tx journal.Tx, a ops.Address, about, text, words string) error {
	return n.threads.Tell(tx, a, about, text, words)
}

// Begun implements plane.Notices.
func (n notices) Begun(tx journal.Tx, call ops.Call, delegation string) error {
	return n.threads.Begun(tx, call, delegation)
}

// Closed implements plane.Notices.
func (n notices) Closed(tx journal.Tx, news plane.News) error {
	return n.threads.Ended(tx, threads.Ended{Call: news.Call, Delegation: news.Delegation, What: closedAs(news.State), Summary: news.Summary})
}

// closedAs says how a delegation ended, in one sentence.
func closedAs(s plane.DelegationState) string {
	switch s {
	case plane.Completed:
		return "It is COMPLETED: a verifier has confirmed the result."
	case plane.VerificationFailed:
		return "It ended as VERIFICATION_FAILED: a verifier found the result wrong."
	case plane.EvidenceMissing:
		return "It ended as EVIDENCE_MISSING: what would prove the result was not returned, so nobody knows whether it is right."
	case plane.VerifierUnavailable:
		return "It ended as VERIFIER_UNAVAILABLE: nobody verified the result, so nobody knows whether it is right."
	case plane.DelegationCancelled:
		return "It is CANCELLED, and nothing of it runs any more."
	case plane.DelegationExhausted:
		return "It is EXHAUSTED: it failed, and no further attempt may follow."
	}
	return "It ended as " + string(s) + "."
}
