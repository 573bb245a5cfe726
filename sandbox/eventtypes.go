package sandbox

// The types of events, as in Event.Type and EventQuery.Types. The list is
// append-only.
const (
	EventAttempted       = "attempted" // Op is about to be done; its outcome follows
	EventDenied          = "denied"    // Op was not allowed, and not done
	EventFailed          = "failed"    // Op was tried and did not succeed, for Code
	EventUnknown         = "unknown"   // Op was announced by a daemon that ended before it could tell more
	EventDone            = "done"      // Op succeeded and has no type of its own
	EventCreated         = "sandbox.created"
	EventStarted         = "sandbox.started"
	EventStopped         = "sandbox.stopped"
	EventPaused          = "sandbox.paused"
	EventResumed         = "sandbox.resumed"
	EventUpdated         = "sandbox.updated"
	EventDestroyed       = "sandbox.destroyed"
	EventEnded           = "sandbox.ended"   // by itself, or by a limit: see Reason
	EventExpired         = "sandbox.expired" // its lifetime ended
	EventIdled           = "sandbox.idled"   // its idle policy applied
	EventLost            = "sandbox.lost"    // it cannot be reached
	EventFound           = "sandbox.found"   // a lost one was reached again
	EventExecStarted     = "exec.started"
	EventExecEnded       = "exec.ended"
	EventSignaled        = "exec.signaled"
	EventFilesRead       = "files.read"
	EventFilesWritten    = "files.written"
	EventFilesRemoved    = "files.removed"
	EventFilesMoved      = "files.moved"
	EventKeyCreated      = "key.created"
	EventKeyRevoked      = "key.revoked"
	EventLimitsChanged   = "tenant.limits"
	EventPortOpened      = "port.opened"
	EventTenantCreated   = "tenant.created"
	EventTenantDisabled  = "tenant.disabled" // or enabled again
	EventForked          = "sandbox.forked"
	EventSnapshotCreated = "snapshot.created"
	EventSnapshotRemoved = "snapshot.removed"
	EventProfileCreated  = "profile.created"
	EventProfileApplied  = "profile.applied"
	EventProfileRemoved  = "profile.removed"
	EventSecretCreated   = "secret.created"
	EventSecretRotated   = "secret.rotated"
	EventSecretRemoved   = "secret.removed"
	EventEgressAllowed   = "egress.allowed" // what a sandbox sent: see Subject and Policy
	EventEgressDenied    = "egress.denied"
	EventEgressLimited   = "egress.limited" // a limit is reached
	EventEgressFailed    = "egress.failed"  // allowed, and the other side did not answer
	EventPoliciesLoaded  = "policy.loaded"  // other policies of the machine hold from now on
	EventPoliciesKept    = "policy.kept"    // what is in the files cannot be used: see Subject
	EventSecretUsed      = "secret.used"    // the gateway sent it: see Subject and Policy
	EventSessionCreated  = "session.created"
	EventLeaseWarming    = "lease.warming"  // the sandbox of a session is made or resumed
	EventLeaseWarm       = "lease.warm"     // it serves the session: see Epoch
	EventLeaseDraining   = "lease.draining" // nobody needs it; it ends after a grace period
	EventLeaseCold       = "lease.cold"     // the session has no sandbox
	EventLeaseAtRisk     = "lease.at_risk"  // the sandbox could not be saved, and its lifetime ends soon
	EventFenceRefused    = "fence.refused"  // a request was meant for an earlier sandbox: see Epoch
	EventRouteSwapped    = "route.swapped"  // another sandbox serves the session, with its files: see Sandbox and Epoch
	EventAuditPruned     = "audit.pruned"   // the oldest records of this log were removed: see Subject
)
