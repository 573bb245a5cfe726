package eventlog

import (
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Type says what happened. The list is append-only.
type Type = string

// Attempted is written before an action; the other types are facts.
const (
	Attempted Type = sandbox.EventAttempted // Op is about to run; its outcome follows
	Denied    Type = sandbox.EventDenied    // Op was not allowed and did not run
	Failed    Type = sandbox.EventFailed    // Op ran and failed with Code
	Unknown   Type = sandbox.EventUnknown   // Op was attempted by a daemon that ended before it recorded the outcome
	Done      Type = sandbox.EventDone      // Op succeeded and has no type of its own

	Created     Type = sandbox.EventCreated
	Started     Type = sandbox.EventStarted
	Stopped     Type = sandbox.EventStopped
	Paused      Type = sandbox.EventPaused
	Resumed     Type = sandbox.EventResumed
	Updated     Type = sandbox.EventUpdated
	Destroyed   Type = sandbox.EventDestroyed
	Ended       Type = sandbox.EventEnded   // by itself, or by a limit: see Reason
	Expired     Type = sandbox.EventExpired // its lifetime ended
	Idled       Type = sandbox.EventIdled   // its idle policy applied
	Lost        Type = sandbox.EventLost    // it cannot be reached
	Found       Type = sandbox.EventFound   // a lost one was reached again
	ExecStarted Type = sandbox.EventExecStarted
	ExecEnded   Type = sandbox.EventExecEnded
	Signaled    Type = sandbox.EventSignaled

	FilesRead    Type = sandbox.EventFilesRead
	FilesWritten Type = sandbox.EventFilesWritten
	FilesRemoved Type = sandbox.EventFilesRemoved
	FilesMoved   Type = sandbox.EventFilesMoved

	KeyCreated    Type = sandbox.EventKeyCreated
	KeyRevoked    Type = sandbox.EventKeyRevoked
	LimitsChanged Type = sandbox.EventLimitsChanged
	PortOpened    Type = sandbox.EventPortOpened

	TenantCreated      Type = sandbox.EventTenantCreated
	TenantDisabled     Type = sandbox.EventTenantDisabled // or enabled again
	Forked             Type = sandbox.EventForked
	SnapshotCreated    Type = sandbox.EventSnapshotCreated
	SnapshotRemoved    Type = sandbox.EventSnapshotRemoved
	ProfileCreated     Type = sandbox.EventProfileCreated
	ProfileApplied     Type = sandbox.EventProfileApplied
	ProfileRemoved     Type = sandbox.EventProfileRemoved
	SecretCreated      Type = sandbox.EventSecretCreated
	SecretRotated      Type = sandbox.EventSecretRotated
	SecretRemoved      Type = sandbox.EventSecretRemoved
	EgressAllowed      Type = sandbox.EventEgressAllowed // a connection or request of a sandbox; see Subject and Policy
	EgressDenied       Type = sandbox.EventEgressDenied
	EgressLimited      Type = sandbox.EventEgressLimited  // a limit was reached
	EgressFailed       Type = sandbox.EventEgressFailed   // allowed, but the destination did not respond
	PoliciesLoaded     Type = sandbox.EventPoliciesLoaded // the machine's policies were replaced
	PoliciesKept       Type = sandbox.EventPoliciesKept   // the policy files are invalid, so the old policies stay in force: see Subject
	SecretUsed         Type = sandbox.EventSecretUsed     // the gateway sent a secret: see Subject and Policy
	SessionCreated     Type = sandbox.EventSessionCreated
	LeaseWarming       Type = sandbox.EventLeaseWarming    // the sandbox of a session is being created or resumed
	LeaseWarm          Type = sandbox.EventLeaseWarm       // the sandbox serves the session: see Epoch
	LeaseDraining      Type = sandbox.EventLeaseDraining   // the session no longer needs its sandbox, which ends after a grace period
	LeaseCold          Type = sandbox.EventLeaseCold       // the session has no sandbox
	LeaseWaiting       Type = sandbox.EventLeaseWaiting    // a caller waits for a sandbox that another one makes or ends
	LeaseAtRisk        Type = sandbox.EventLeaseAtRisk     // the sandbox could not be saved, and its lifetime ends soon
	FenceRefused       Type = sandbox.EventFenceRefused    // a request was addressed to an earlier sandbox of the session: see Epoch
	RouteSwapped       Type = sandbox.EventRouteSwapped    // another sandbox, with the session's files, now serves the session: see Sandbox and Epoch
	StreamOpened       Type = sandbox.EventStreamOpened    // a viewer of a stream connected: see Viewers
	StreamClosed       Type = sandbox.EventStreamClosed    // a viewer of a stream is gone: see Reason
	StreamRevoked      Type = sandbox.EventStreamRevoked   // see Reason
	StreamRotated      Type = sandbox.EventStreamRotated   // the stream shows another sandbox of its session: see Epoch
	TerminalStarted    Type = sandbox.EventTerminalStarted // a command runs on a terminal: see Subject
	TerminalExited     Type = sandbox.EventTerminalExited
	RecordingStarted   Type = sandbox.EventRecordingStarted
	RecordingAvailable Type = sandbox.EventRecordingAvailable // a recording is stored completely: see Reason
	RecordingFailed    Type = sandbox.EventRecordingFailed    // see Reason
	MachineApproved    Type = sandbox.EventMachineApproved    // a self-hosted machine may make sandboxes: see Subject
	MachineRevoked     Type = sandbox.EventMachineRevoked
	MachineConsents    Type = sandbox.EventMachineConsents // what its owner agrees to changed: see Policy
	NodePlaced         Type = sandbox.EventNodePlaced      // a node was chosen for a sandbox: see Subject and Policy
	NodeChanged        Type = sandbox.EventNodeChanged
	NodeDrained        Type = sandbox.EventNodeDrained
	NodeRemoved        Type = sandbox.EventNodeRemoved
	NodeCleared        Type = sandbox.EventNodeCleared // the old sandboxes of a node that came back were ended
	AuditPruned        Type = sandbox.EventAuditPruned // the oldest records of this log were removed: see Subject
)

// Types lists all types.
func Types() []Type {
	return []Type{
		Attempted, Denied, Failed, Unknown, Done, Created, Started, Stopped, Paused, Resumed, Updated, Destroyed, Ended, Expired,
		Idled, Lost, Found, ExecStarted, ExecEnded, Signaled, FilesRead, FilesWritten, FilesRemoved, FilesMoved, KeyCreated,
		KeyRevoked, LimitsChanged, PortOpened, TenantCreated, TenantDisabled, Forked, SnapshotCreated, SnapshotRemoved, ProfileCreated,
		ProfileApplied, ProfileRemoved, SecretCreated, SecretRotated, SecretRemoved, EgressAllowed, EgressDenied, EgressLimited,
		EgressFailed, PoliciesLoaded, PoliciesKept, SecretUsed, SessionCreated, LeaseWarming, LeaseWarm, LeaseDraining, LeaseCold, LeaseWaiting, LeaseAtRisk, FenceRefused, RouteSwapped, StreamOpened, StreamClosed, StreamRevoked, StreamRotated,
		RecordingStarted, RecordingAvailable, RecordingFailed, MachineApproved, MachineRevoked, NodePlaced, NodeChanged, NodeDrained, NodeRemoved, NodeCleared, AuditPruned,
		TerminalStarted, TerminalExited, MachineConsents,
	}
}

// successes maps an operation to the type of its success.
var successes = map[string]Type{
	"session.create": SessionCreated, "session.resume": SessionCreated,
	"sandbox.create": Created, "sandbox.start": Started, "sandbox.stop": Stopped, "sandbox.kill": Stopped,
	"sandbox.pause": Paused, "sandbox.resume": Resumed, "sandbox.update": Updated, "sandbox.destroy": Destroyed,
	"sandbox.wake": Resumed, "sandbox.idle": Idled, "sandbox.expire": Expired, "sandbox.fork": Forked,
	"snapshot.create": SnapshotCreated, "snapshot.import": SnapshotCreated, "snapshot.remove": SnapshotRemoved,
	"process.exec": ExecStarted, "process.kill": Signaled, "process.signal": Signaled,
	"files.read": FilesRead, "files.export": FilesRead, "files.write": FilesWritten, "files.import": FilesWritten,
	"files.mkdir": FilesWritten, "files.remove": FilesRemoved, "files.move": FilesMoved,
	"key.create": KeyCreated, "key.revoke": KeyRevoked, "tenant.limits": LimitsChanged, "port.open": PortOpened,
	"tenant.create": TenantCreated, "tenant.disable": TenantDisabled,
	"recording.start": RecordingStarted, "machine.approve": MachineApproved, "machine.revoke": MachineRevoked,
	"node.change": NodeChanged, "node.drain": NodeDrained, "node.remove": NodeRemoved,
	"profile.create": ProfileCreated, "profile.apply": ProfileApplied, "profile.remove": ProfileRemoved,
	"secret.create": SecretCreated, "secret.rotate": SecretRotated, "secret.remove": SecretRemoved, "secret.use": SecretUsed,
}

// SuccessOf returns the type of the event that records the success of op.
func SuccessOf(op string) Type {
	if t, ok := successes[op]; ok {
		return t
	}
	return Done
}

// Actor identifies who acted. It is empty for the daemon itself.
type Actor struct {
	Key  string  `json:"key,omitempty"`  // public part of the API key
	UID  *uint32 `json:"uid,omitempty"`  // of the process at the other end of a Unix socket
	Node string  `json:"node,omitempty"` // the daemon that acted
}

// Event is one record of the log of a tenant. The log fills in Seq, Time and Labels.
type Event struct {
	Tenant string
	sandbox.Event
}

// Limits on what a hostile request can put into a record.
const (
	maxField = 1024
	maxArgs  = 64
)

// bound truncates fields to their limits and makes them valid UTF-8, so that
// the record decodes to what was encoded.
func (e *Event) bound() {
	for _, f := range []*string{&e.Name, &e.Subject, &e.Policy, &e.Program, &e.Op, &e.Key, &e.Node, &e.Request, &e.Trace} {
		*f = bounded(*f)
	}
	if len(e.Args) > 0 {
		args := make([]string, min(len(e.Args), maxArgs))
		for i := range args {
			args[i] = bounded(e.Args[i])
		}
		e.Args = args
	}
}

func bounded(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxField {
		return s
	}
	return strings.ToValidUTF8(s[:maxField], "") + "…"
}
