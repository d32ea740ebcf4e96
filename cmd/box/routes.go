package main

import "net/http"

// route is one operation of the HTTPS API, as its OpenAPI document names it.
type route struct{ method, path string }

// The routes that box uses: these and no others, each in the gateway's
// /openapi.json, which a test compares. A {name} is filled in by client.url.
var (
	routeExec       = route{http.MethodPost, "/exec"}
	routeReplies    = route{http.MethodPost, "/v1/replies"}
	routeStatus     = route{http.MethodGet, "/v1/status"}
	routeOps        = route{http.MethodGet, "/v1/ops"}
	routeOp         = route{http.MethodGet, "/v1/ops/{name}"}
	routeReload     = route{http.MethodPost, "/v1/ops/reload"}
	routeThreads    = route{http.MethodGet, "/v1/threads"}
	routeThread     = route{http.MethodGet, "/v1/threads/{id}"}
	routeCalls      = route{http.MethodGet, "/v1/calls"}
	routeCall       = route{http.MethodGet, "/v1/calls/{id}"}
	routeCancelCall = route{http.MethodPost, "/v1/calls/{id}/cancel"}
	routeApprovals  = route{http.MethodGet, "/v1/approvals"}
	routeApproval   = route{http.MethodGet, "/v1/approvals/{id}"}
	routeApprove    = route{http.MethodPost, "/v1/approvals/{id}/approve"}
	routeDeny       = route{http.MethodPost, "/v1/approvals/{id}/deny"}
	routeAgents     = route{http.MethodGet, "/v1/agents"}
	routeAgent      = route{http.MethodGet, "/v1/agents/{id}"}
	routeAddAgent   = route{http.MethodPost, "/v1/agents"}
	routeRevoke     = route{http.MethodPost, "/v1/agents/{id}/revoke"}
	routeRotate     = route{http.MethodPost, "/v1/agents/{id}/rotate"}
	routePolicy     = route{http.MethodGet, "/v1/policy"}
	routeEvents     = route{http.MethodGet, "/v1/events"}
	routeAudit      = route{http.MethodGet, "/v1/audit"}
	routeCheckpoint = route{http.MethodGet, "/v1/audit/checkpoint"}
	routeVerify     = route{http.MethodPost, "/v1/audit/verify"}
	routeExport     = route{http.MethodGet, "/v1/audit/export"}
	routeBackup     = route{http.MethodPost, "/v1/backup"}

	routeEnrol    = route{http.MethodPost, "/v1/agents/{id}/enrol"}
	routeAdaptors = route{http.MethodGet, "/v1/adaptors"}

	routeStop    = route{http.MethodPost, "/v1/stop"}
	routeStart   = route{http.MethodPost, "/v1/start"}
	routePreview = route{http.MethodPost, "/v1/envelope/preview"}

	routeOutbox = route{http.MethodGet, "/v1/outbox"}
	routeRetry  = route{http.MethodPost, "/v1/outbox/{id}/retry"}

	routeTimers      = route{http.MethodGet, "/v1/timers"}
	routeTimer       = route{http.MethodGet, "/v1/timers/{id}"}
	routePauseTimer  = route{http.MethodPost, "/v1/timers/{id}/pause"}
	routeResumeTimer = route{http.MethodPost, "/v1/timers/{id}/resume"}
	routeRunTimer    = route{http.MethodPost, "/v1/timers/{id}/run"}
	routeWakes       = route{http.MethodGet, "/v1/wakes"}
	routeWake        = route{http.MethodGet, "/v1/wakes/{id}"}

	routeDelegations       = route{http.MethodGet, "/v1/delegations"}
	routeDelegation        = route{http.MethodGet, "/v1/delegations/{id}"}
	routeCancelDelegation  = route{http.MethodPost, "/v1/delegations/{id}/cancel"}
	routeResolveDelegation = route{http.MethodPost, "/v1/delegations/{id}/resolve"}
	routeRetryDelegation   = route{http.MethodPost, "/v1/delegations/{id}/retry"}
	routeWorkers           = route{http.MethodGet, "/v1/workers"}
	routeWorker            = route{http.MethodGet, "/v1/workers/{id}"}
	routeInvite            = route{http.MethodPost, "/v1/workers/invitations"}
	routeRevokeWorker      = route{http.MethodPost, "/v1/workers/{id}/revoke"}
	routeDrainWorker       = route{http.MethodPost, "/v1/workers/{id}/drain"}
	routePlane             = route{http.MethodGet, "/v1/plane"}
	routePlaneState        = route{http.MethodPost, "/v1/plane/state"}
	routeFenceTerm         = route{http.MethodPost, "/v1/plane/fence-term"}

	routeArtifacts       = route{http.MethodGet, "/v1/artifacts"}
	routeArtifact        = route{http.MethodGet, "/v1/artifacts/{digest}"}
	routeArtifactBytes   = route{http.MethodGet, "/v1/artifacts/{digest}/bytes"}
	routeVerifyArtifacts = route{http.MethodPost, "/v1/artifacts/verify"}

	routeCollectArtifacts = route{http.MethodPost, "/v1/artifacts/collect"}
)

// routes lists them all, for the test.
var routes = []route{
	routeExec, routeReplies, routeStatus, routeOps, routeOp, routeReload, routeThreads, routeThread, routeCalls, routeCall,
	routeCancelCall, routeApprovals, routeApproval, routeApprove, routeDeny, routeAgents, routeAgent, routeAddAgent, routeRevoke, routeRotate, routePolicy, routeEvents,
	routeStop, routeStart, routePreview,
	routeAudit, routeCheckpoint, routeVerify, routeExport, routeBackup,
	routeOutbox, routeRetry,
	routeEnrol, routeAdaptors, routeArtifacts, routeArtifact, routeArtifactBytes, routeVerifyArtifacts, routeCollectArtifacts,
	routeTimers, routeTimer, routePauseTimer, routeResumeTimer, routeRunTimer, routeWakes, routeWake,
	routeDelegations, routeDelegation, routeCancelDelegation, routeResolveDelegation, routeRetryDelegation,
	routeWorkers, routeWorker, routeInvite, routeRevokeWorker, routeDrainWorker, routePlane, routePlaneState, routeFenceTerm,
}
