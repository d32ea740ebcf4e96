package wire

import (
	"encoding/json"
	"time"

	"inband/ops"
)

// Kind is what a signed message says.
type Kind string

// The kinds. All but the first three are callbacks, which carry a Header.
const (
	KindEnrol  Kind = "enrol"  // a key is presented with a one-time token
	KindBoot   Kind = "boot"   // a worker process begins
	KindGrant  Kind = "grant"  // the plane's: a lease
	KindUpload Kind = "upload" // bytes of a run are announced

	KindStarted          Kind = "started"
	KindHeartbeat        Kind = "heartbeat"
	KindCheckpoint       Kind = "checkpoint"
	KindResult           Kind = "result"
	KindHumanWait        Kind = "human-wait"
	KindCancelAck        Kind = "cancel-ack"
	KindCancelFailed     Kind = "cancel-failed"
	KindCancelProof      Kind = "cancel-proof" // the tombstone: nothing of the run is alive
	KindAbandoning       Kind = "abandoning"   // the worker ends and leaves the run as it stands
	KindMutationIntended Kind = "mutation-intended"
	KindMutationProved   Kind = "mutation-proved"
	KindAttest           Kind = "attest"
	KindVerdict          Kind = "verdict" // a verifier's
)

// Kinds lists every kind of callback.
func Kinds() []Kind {
	return []Kind{KindStarted, KindHeartbeat, KindCheckpoint, KindResult, KindHumanWait, KindCancelAck, KindCancelFailed,
		KindCancelProof, KindAbandoning, KindMutationIntended, KindMutationProved, KindAttest, KindVerdict}
}

const (
	typePrefix = "application/vnd.inband."
	typeSuffix = "+json"
)

// PayloadType is the DSSE payload type of k.
func (k Kind) PayloadType() string { return typePrefix + string(k) + typeSuffix }

// MaxPayload bounds the payload of a message, in bytes; a grant's is MaxGrant.
const (
	MaxPayload = 64 << 10
	MaxGrant   = 512 << 10
)

// Header binds a callback to one lease and gives it its place. All of it is signed.
type Header struct {
	Delegation     string         `json:"delegation"`
	Run            string         `json:"run"`
	Dispatch       string         `json:"dispatch"`
	Verification   string         `json:"verification,omitempty"` // of a verifier's messages
	Implementation string         `json:"implementation"`
	Worker         ops.IdentityID `json:"worker"` // or verifier: who signs
	Boot           string         `json:"boot"`
	Fence          int64          `json:"fence"`
	Seq            int64          `json:"seq"`  // from 1, one more than the last
	Prev           string         `json:"prev"` // digest of the payload before it, "" at 1
	SentAt         time.Time      `json:"sent_at"`
}

// Message is a callback that has been opened. The plane has still to see whether its
// signer may say it.
type Message struct {
	Kind   Kind
	Header Header
	Body   json.RawMessage
	Digest string // "sha256:…" of the payload
	KeyID  string
}

// Subject is the chain that a message belongs to: its verification, else its run.
func (h Header) Subject() string {
	if h.Verification != "" {
		return h.Verification
	}
	return h.Run
}

// File is bytes that a run has left.
type File struct {
	Name   string `json:"name"` // a clean relative path
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
	Kind   string `json:"kind,omitempty"` // media type
}

// Process names one process for good: a pid comes again, with another start.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // as the worker's system counts it, opaque
}

// The bodies of callbacks.
type (
	// Started says that the worker is about to begin. It begins once this is acknowledged.
	Started struct {
		Process *Process `json:"process,omitempty"`
	}
	// Heartbeat says that the worker lives, and what its command does.
	Heartbeat struct {
		Process  *Process `json:"process,omitempty"`
		Alive    bool     `json:"alive"`    // the command is
		Progress int64    `json:"progress"` // never falls; what it counts is the worker's
		Note     string   `json:"note,omitempty"`
	}
	// Checkpoint says what would remain if the worker were lost now.
	Checkpoint struct {
		Progress int64  `json:"progress"`
		Files    []File `json:"files"`
		Note     string `json:"note,omitempty"`
	}
	// Result is what came of a run. Succeeded is a claim, which a verifier checks.
	Result struct {
		Succeeded bool   `json:"succeeded"`
		Class     string `json:"class,omitempty"` // of a failure: plane.Class
		Exit      int    `json:"exit"`
		Summary   string `json:"summary"` // at most 4 KiB, untrusted
		Files     []File `json:"files"`
		Worktree  string `json:"worktree,omitempty"` // digest of the tree that was worked on, as it was at the start
	}
	// HumanWait says that a person must answer before anybody can go on. The lease ends.
	HumanWait struct {
		Question string `json:"question"` // at most 4 KiB, untrusted
	}
	// CancelAck says that the order to stop has been received.
	CancelAck struct{}
	// CancelFailed says that the worker could not end the run's processes.
	CancelFailed struct {
		Reason string `json:"reason"`
	}
	// CancelProof says that nothing of the run is alive. Live must be empty: a proof
	// that names a process is none.
	CancelProof struct {
		Live   []Process `json:"live"`
		Checks int       `json:"checks"` // how often it looked and found nothing, at least 2
	}
	// Abandoning says that the worker ends now and the run with it.
	Abandoning struct {
		Reason string    `json:"reason"`
		Live   []Process `json:"live"` // what it could not end
	}
	// MutationIntended says, before it is tried, that something outside is to be changed.
	MutationIntended struct {
		Key    string `json:"key"`    // the external idempotency key
		Action string `json:"action"` // for people
	}
	// MutationProved says what became of that.
	MutationProved struct {
		Key   string `json:"key"`
		Done  bool   `json:"done"`  // false: it certainly has not happened
		Proof string `json:"proof"` // how that is known, for people
	}
	// Attest hands in an attestation: an in-toto statement in a DSSE envelope of its own.
	Attest struct {
		Name     string          `json:"name"`
		Digest   string          `json:"digest"`
		Envelope json.RawMessage `json:"envelope"`
	}
	// Verdict is a verifier's judgement.
	Verdict struct {
		Verdict string   `json:"verdict"` // passed, failed, evidence_missing
		Command []string `json:"command,omitempty"`
		Exit    int      `json:"exit"`
		Checked []File   `json:"checked"` // what it has read, by digest
		Output  string   `json:"output"`  // the end of what the command wrote, at most 4 KiB
		Reason  string   `json:"reason"`
	}
)

// Ack answers a callback that was accepted, or that was accepted before.
type Ack struct {
	Subject  string `json:"subject"`
	Seq      int64  `json:"seq"`
	Digest   string `json:"digest"`
	State    string `json:"state"`               // of the run or verification
	LeaseMS  int64  `json:"lease_ms"`            // from when the message was SENT; 0: there is no lease any more
	Cancel   bool   `json:"cancel"`              // stop, and prove it
	CancelMS int64  `json:"cancel_ms,omitempty"` // until the plane gives up waiting for that
	Drain    bool   `json:"drain"`               // no further grant comes
	Final    bool   `json:"final"`               // nothing more is expected for this subject
	Reason   string `json:"reason,omitempty"`    // for Cancel: cancelled, deadline_exceeded, stalled
	Replayed bool   `json:"replayed,omitempty"`
}

// Instruction is what is to be done, with each part's provenance kept apart.
type Instruction struct {
	Original     string `json:"original"`               // the human's own words
	Inferred     string `json:"inferred,omitempty"`     // the goal as the agent understood it
	Context      string `json:"context,omitempty"`      // what the agent added
	Verification string `json:"verification,omitempty"` // how it is to be verified, in words
	Task         string `json:"task"`                   // the order itself
}

// Source is exactly what is worked on.
type Source struct {
	Revision string `json:"revision,omitempty"` // "sha256:…" of a tar archive among the artifacts, or a name that the worker's own repository knows
	Worktree string `json:"worktree,omitempty"` // digest of the tree that it must unpack to, "h1:…"; empty is not checked
}

// Grant is a lease on one run or one verification, signed by the plane.
type Grant struct {
	Header                               // Seq and Prev are those of the last message of this subject; SentAt is the plane's clock
	Nonce        string                  `json:"nonce"` // of the poll that asked
	Attempt      int                     `json:"attempt"`
	TTLMS        int64                   `json:"ttl_ms"`       // of the lease, from when the poll was SENT
	HeartbeatMS  int64                   `json:"heartbeat_ms"` // between heartbeats
	RemainingMS  int64                   `json:"remaining_ms"` // until the deadline
	Instruction  Instruction             `json:"instruction"`
	Digest       string                  `json:"instruction_digest"` // of the instruction's canonical JSON
	Source       Source                  `json:"source"`
	Capabilities []string                `json:"capabilities,omitempty"`
	Credentials  []ops.CredentialRef     `json:"credentials,omitempty"` // references, which the worker resolves
	Outputs      []string                `json:"outputs,omitempty"`     // names of the files that must be returned
	Verify       []string                `json:"verify,omitempty"`      // argv of the declared test
	Earlier      []File                  `json:"earlier,omitempty"`     // left by earlier attempts: the last of each name, the newest last
	Answer       string                  `json:"answer,omitempty"`      // what a person answered, of a run that waited for it
	IdemKey      string                  `json:"idempotency_key"`       // for external mutations of this attempt
	Result       *Result                 `json:"result,omitempty"`      // of a verification: what is to be verified
	Producer     ops.IdentityID          `json:"producer,omitempty"`    // of a verification: who returned it
	Attested     map[string]Attestations `json:"attested,omitempty"`    // of a verification: by digest
}

// Attestations are the envelopes that speak for one digest.
type Attestations []json.RawMessage

// Poll asks for a grant. The same nonce again gets the same answer.
type Poll struct {
	Boot   string `json:"boot"`
	Nonce  string `json:"nonce"`
	WaitMS int64  `json:"wait_ms"` // at most 60 s
}

// Enrol is the payload of KindEnrol.
type Enrol struct {
	Token     string `json:"token"`
	PublicKey []byte `json:"public_key"` // 32 bytes; the message is signed with it
}

// Enrolled answers Enrol.
type Enrolled struct {
	Worker          ops.Identity `json:"worker"`
	Implementations []string     `json:"implementations"`
	Capabilities    []string     `json:"capabilities"`
	PlaneKey        []byte       `json:"plane_key"` // with which grants are signed
}

// Boot is the payload of KindBoot.
type Boot struct {
	Worker    ops.IdentityID `json:"worker"`
	Boot      string         `json:"boot"`      // a ULID of the worker's
	Challenge string         `json:"challenge"` // that the plane gave out, so that no older message can pass for this one
	Version   string         `json:"version"`
	Runs      []BootRun      `json:"runs"` // that earlier boots of this worker have left
}

// BootRun is what a worker found of a run of an earlier boot.
type BootRun struct {
	Run  string    `json:"run"`
	Live []Process `json:"live"` // what it could not end; empty proves that nothing is alive
}

// Session answers Boot.
type Session struct {
	Token       string `json:"token"` // bearer token of this boot
	PlaneKey    []byte `json:"plane_key"`
	TTLMS       int64  `json:"ttl_ms"`
	HeartbeatMS int64  `json:"heartbeat_ms"`
}

// Upload is the payload of KindUpload: bytes that are to be sent. Name and run are
// bound by the signature; the bytes by their digest.
type Upload struct {
	Run    string         `json:"run"`
	Worker ops.IdentityID `json:"worker"`
	Boot   string         `json:"boot"`
	File   File           `json:"file"`
}

// Uploading answers Upload and every piece that follows.
type Uploading struct {
	Upload string `json:"upload"`
	Offset int64  `json:"offset"` // bytes that are durable; send what follows
	Done   bool   `json:"done"`   // all of it is there and is what the digest says
}
