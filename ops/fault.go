package ops

import (
	"fmt"
	"net/http"
)

// Code is a fault's name for programs. The codes are the constants of this file
// and no others; Codes lists them with what they mean.
type Code string

// The codes of faults that a call or a request can end in.
const (
	BadRequest        Code = "BAD_REQUEST"
	InvalidParams     Code = "INVALID_PARAMS"
	IntegerOutOfRange Code = "INTEGER_OUT_OF_RANGE"
	TooLarge          Code = "TOO_LARGE"
	MediaType         Code = "UNSUPPORTED_MEDIA_TYPE"
	Method            Code = "METHOD_NOT_ALLOWED"
	Unauthenticated   Code = "UNAUTHENTICATED"
	NotPermitted      Code = "NOT_PERMITTED"
	UnknownOp         Code = "UNKNOWN_OP"
	NotFound          Code = "NOT_FOUND"
	Conflict          Code = "CONFLICT"
	InProgress        Code = "IN_PROGRESS"
	KeyReused         Code = "KEY_REUSED"
	OverLimit         Code = "OVER_LIMIT"
	RateLimited       Code = "RATE_LIMITED"
	WrongKey          Code = "WRONG_KEY"
	Quotation         Code = "QUOTATION"
	LoopLimit         Code = "LOOP_LIMIT"
	ApprovalDenied    Code = "APPROVAL_DENIED"
	ApprovalExpired   Code = "APPROVAL_EXPIRED"
	ApprovalVoid      Code = "APPROVAL_VOID"
	OpFailed          Code = "OP_FAILED"
	NoSandbox         Code = "SANDBOX_UNAVAILABLE"
	TimedOut          Code = "TIMED_OUT"
	CallCancelled     Code = "CANCELLED"
	NotStarted        Code = "NOT_STARTED"
	OutcomeUnknown    Code = "OUTCOME_UNKNOWN"
	StaleFence        Code = "STALE_FENCE"
	OutOfSequence     Code = "OUT_OF_SEQUENCE"
	BadSignature      Code = "BAD_SIGNATURE"
	PlaneOff          Code = "PLANE_OFF"
	Unproven          Code = "UNPROVEN"
	NotVerified       Code = "VERIFICATION_FAILED"
	NoEvidence        Code = "EVIDENCE_MISSING"
	NoVerifier        Code = "VERIFIER_UNAVAILABLE"
	Exhausted         Code = "EXHAUSTED"
	Busy              Code = "BUSY"
	Unavailable       Code = "UNAVAILABLE"
	Internal          Code = "INTERNAL"
)

// CodeInfo is a row of the fault table.
type CodeInfo struct {
	Code      Code
	Status    int    // HTTP status at the API
	Exit      int    // exit code of box
	Retryable bool   // the same request may succeed later
	Meaning   string // for the documentation
}

// Exit codes of box (design: Names that outsiders see).
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitNotAllowed  = 4
	ExitWaiting     = 5
	ExitConflict    = 6
	ExitUnreachable = 7
	ExitInterrupted = 130
)

var codes = []CodeInfo{
	{BadRequest, http.StatusBadRequest, ExitUsage, false, "The request is not well formed: its syntax, a member or a query is wrong."},
	{InvalidParams, http.StatusBadRequest, ExitUsage, false, "The parameters do not fit the op. `details.pointer` names the place and `details.want` what would be right."},
	{IntegerOutOfRange, http.StatusBadRequest, ExitUsage, false, "An integer lies beyond ±2^53, where two different numbers can have one canonical form."},
	{TooLarge, http.StatusRequestEntityTooLarge, ExitUsage, false, "The body or a value is longer than its bound; `details.max` is the bound in bytes."},
	{MediaType, http.StatusUnsupportedMediaType, ExitUsage, false, "The body is not declared as application/json."},
	{Method, http.StatusMethodNotAllowed, ExitUsage, false, "The route exists, but not with this method."},
	{Unauthenticated, http.StatusUnauthorized, ExitNotAllowed, false, "No token, a token that is not known, or one that has been revoked."},
	{NotPermitted, http.StatusForbidden, ExitNotAllowed, false, "The identity may not do this."},
	{UnknownOp, http.StatusNotFound, ExitNotFound, false, "No op or alias has this name; `details.nearest` offers the closest ones."},
	{NotFound, http.StatusNotFound, ExitNotFound, false, "There is no such thing, or the identity may not see it."},
	{Conflict, http.StatusConflict, ExitConflict, false, "The thing is not in a state in which this can be done."},
	{InProgress, http.StatusConflict, ExitConflict, true, "A call with this idempotency key is still running; `details.call` is its id."},
	{KeyReused, http.StatusUnprocessableEntity, ExitConflict, false, "This idempotency key was used for another op or other parameters."},
	{OverLimit, http.StatusTooManyRequests, ExitConflict, false, "A reply holds more directives than one reply may, and the rest was not run; or as many timers wake an agent, or as many delegations of it are open, as may."},
	{RateLimited, http.StatusTooManyRequests, ExitUnreachable, true, "The op or the identity has had its number of calls for now; nothing was taken. `details.retry_after` is the seconds to wait."},
	{WrongKey, http.StatusForbidden, ExitNotAllowed, false, "The order carries a key that is not, or no longer, the one of a wake of this agent in this thread; nothing ran (rule R4)."},
	{Quotation, http.StatusForbidden, ExitNotAllowed, false, "The same order stood in untrusted text that the agent was shown, or it is a curl command with side effects and without the key: it counts as quoted, and nothing ran (rules R2 and R5)."},
	{LoopLimit, http.StatusTooManyRequests, ExitConflict, false, "Too many agents stand between this and a person, or one cause has woken agents too often; nothing was sent (rule R8)."},
	{ApprovalDenied, http.StatusForbidden, ExitNotAllowed, false, "Somebody who may approve has denied the call; nothing ran."},
	{ApprovalExpired, http.StatusConflict, ExitConflict, false, "Nobody approved the call in time; nothing ran. Order it again."},
	{ApprovalVoid, http.StatusConflict, ExitConflict, false, "What the approval was for has changed since the call was ordered; nothing ran. `details.changed` names it, with what it was and what it is."},
	{OpFailed, http.StatusBadGateway, ExitFailed, false, "The op ran and failed; `details` holds what it said."},
	{NoSandbox, http.StatusServiceUnavailable, ExitFailed, false, "A layer of the sandbox that the op needs cannot be had here, so the op is disabled; nothing ran. `details.missing` names the layers."},
	{TimedOut, http.StatusGatewayTimeout, ExitFailed, false, "The op was stopped at its deadline. What it had done by then stands."},
	{CallCancelled, http.StatusConflict, ExitFailed, false, "The call was cancelled; `details.started` says whether it had begun."},
	{NotStarted, http.StatusServiceUnavailable, ExitFailed, true, "The gateway stopped before the call began; nothing ran. Order it again."},
	{OutcomeUnknown, http.StatusConflict, ExitFailed, false, "A side-effecting call was interrupted: it may have acted, wholly or in part. It is never run again by itself; look, then decide."},
	{StaleFence, http.StatusConflict, ExitConflict, false, "The lease that the message speaks for is not, or no longer, the one of its run; it is kept as evidence and decides nothing. `details.final` is true: stop, and do not send it again."},
	{OutOfSequence, http.StatusConflict, ExitConflict, false, "The message is not the next one of its run; `details.expected` is the sequence number that is. Another message stands under this one's number if `details.final` is true."},
	{BadSignature, http.StatusUnauthorized, ExitNotAllowed, false, "The message is not signed by the key that may say it; `details.final` is true."},
	{PlaneOff, http.StatusConflict, ExitConflict, false, "Dispatch is off or is being drained, so no work is handed to workers; `box plane on` turns it on."},
	{Unproven, http.StatusConflict, ExitConflict, false, "A change outside was intended and nobody knows whether it happened, so this cannot be done; `details.mutations` names it. Prove it with `box delegations resolve`."},
	{NotVerified, http.StatusBadGateway, ExitFailed, false, "The work was returned and a verifier found it wrong; `details` names the verification."},
	{NoEvidence, http.StatusBadGateway, ExitFailed, false, "The work was returned, but not what it must be verified by; it counts as not done."},
	{NoVerifier, http.StatusBadGateway, ExitFailed, false, "The work was returned and no verifier came to judge it; it counts as not done."},
	{Exhausted, http.StatusBadGateway, ExitFailed, false, "Every attempt that the work had has failed; `details.class` says how the last one did."},
	{Busy, http.StatusServiceUnavailable, ExitUnreachable, true, "A queue is full. Nothing was taken; try again later."},
	{Unavailable, http.StatusServiceUnavailable, ExitUnreachable, true, "The gateway is starting, stopping, or cannot write to its store; or a chat has still to say where the message stands that this one answers."},
	{Internal, http.StatusInternalServerError, ExitFailed, false, "A fault of the gateway itself; its log has the particulars."},
}

var byCode = func() map[Code]CodeInfo {
	m := make(map[Code]CodeInfo, len(codes))
	for _, c := range codes {
		m[c.Code] = c
	}
	return m
}()

// Codes returns the fault table in the order of the documentation.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codes...) }

// Info returns the table's row for c. A code that is not in the table reads as
// Internal, so that a stray one never looks like a caller's mistake.
func (c Code) Info() CodeInfo {
	if i, ok := byCode[c]; ok {
		return i
	}
	return byCode[Internal]
}

// Fault is the one shape in which anything goes wrong for an outsider: at the
// API, in a thread, at the command line.
type Fault struct {
	Code      Code           `json:"code"`
	Message   string         `json:"message"` // what is wrong and what would be right, no secrets
	Retryable bool           `json:"retryable"`
	Details   map[string]any `json:"details,omitempty"`
}

// Faultf returns a fault with the code's own retryability.
func Faultf(code Code, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...), Retryable: code.Info().Retryable}
}

// With returns a copy of f with one more detail.
func (f *Fault) With(name string, value any) *Fault {
	g := *f
	g.Details = make(map[string]any, len(f.Details)+1)
	for k, v := range f.Details {
		g.Details[k] = v
	}
	g.Details[name] = value
	return &g
}

// Error returns the code and the message. A *Fault is an error, so that code
// which refuses can return it as one and the edges find it with errors.As.
func (f *Fault) Error() string { return string(f.Code) + ": " + f.Message }
