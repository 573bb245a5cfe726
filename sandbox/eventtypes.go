package sandbox

// The types of events, as in Event.Type and EventQuery.Types. The list is
// append-only.
const (
	EventAttempted       = "attempted" // Op begins; an event with its outcome follows
	EventDenied          = "denied"    // Op was not allowed and was not done
	EventFailed          = "failed"    // Op failed with Code
	EventUnknown         = "unknown"   // Op began, but the daemon ended before it recorded the outcome
	EventDone            = "done"      // Op succeeded and has no type of its own
	EventCreated         = "sandbox.created"
	EventStarted         = "sandbox.started"
	EventStopped         = "sandbox.stopped"
	EventPaused          = "sandbox.paused"
	EventResumed         = "sandbox.resumed"
	EventUpdated         = "sandbox.updated"
	EventDestroyed       = "sandbox.destroyed"
	EventEnded           = "sandbox.ended"   // it ended by itself or by a limit: see Reason
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
	EventEgressAllowed   = "egress.allowed" // a sandbox sent a request: see Subject and Policy
	EventEgressDenied    = "egress.denied"
	EventEgressLimited   = "egress.limited" // a limit is reached
	EventEgressFailed    = "egress.failed"  // allowed, but the server did not respond
	EventPoliciesLoaded  = "policy.loaded"  // new policies of the machine apply; with a code, not to all networks
	EventPoliciesKept    = "policy.kept"    // the policy files are not valid, so the old policies stay: see Subject
	EventSecretUsed      = "secret.used"    // the gateway sent it: see Subject and Policy
	EventSessionCreated  = "session.created"
	EventLeaseWarming    = "lease.warming"      // the sandbox of a session is made or resumed
	EventLeaseWarm       = "lease.warm"         // it serves the session: see Epoch
	EventLeaseDraining   = "lease.draining"     // the sandbox has no holder; it ends after a grace period
	EventLeaseCold       = "lease.cold"         // the session has no sandbox
	EventLeaseWaiting    = "lease.waiting"      // a caller waits for a sandbox that another one makes or ends
	EventLeaseAtRisk     = "lease.at_risk"      // the sandbox could not be saved, and its lifetime ends soon
	EventFenceRefused    = "fence.refused"      // a request was for an earlier sandbox: see Epoch
	EventRouteSwapped    = "route.swapped"      // another sandbox serves the session, with its files: see Sandbox and Epoch
	EventStreamOpened    = "stream.opened"      // a viewer connected: see Subject and Viewers
	EventStreamClosed    = "stream.closed"      // a viewer is gone: see Reason
	EventStreamRevoked   = "stream.revoked"     // see Reason
	EventStreamRotated   = "stream.url.rotated" // the stream shows another sandbox of its session, see Epoch; its token is asked for, not recorded
	EventAuditPruned     = "audit.pruned"       // the oldest records of this log were removed: see Subject
)
