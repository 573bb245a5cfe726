package eventlog

import (
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/eventtype"
)

// Type says what happened. The list is append-only.
type Type = string

// Attempted is written before an action; the other types are facts.
const (
	Attempted Type = eventtype.Attempted // Op is about to run; its outcome follows
	Denied    Type = eventtype.Denied    // Op was not allowed and did not run
	Failed    Type = eventtype.Failed    // Op ran and failed with Code
	Unknown   Type = eventtype.Unknown   // Op was attempted by a daemon that ended before it recorded the outcome
	Done      Type = eventtype.Done      // Op succeeded and has no type of its own

	Created     Type = eventtype.Created
	Started     Type = eventtype.Started
	Stopped     Type = eventtype.Stopped
	Paused      Type = eventtype.Paused
	Resumed     Type = eventtype.Resumed
	Updated     Type = eventtype.Updated
	Destroyed   Type = eventtype.Destroyed
	Ended       Type = eventtype.Ended   // by itself, or by a limit: see Reason
	Expired     Type = eventtype.Expired // its lifetime ended
	Idled       Type = eventtype.Idled   // its idle policy applied
	Lost        Type = eventtype.Lost    // it cannot be reached
	Found       Type = eventtype.Found   // a lost one was reached again
	ExecStarted Type = eventtype.ExecStarted
	ExecEnded   Type = eventtype.ExecEnded
	Signaled    Type = eventtype.Signaled

	FilesRead    Type = eventtype.FilesRead
	FilesWritten Type = eventtype.FilesWritten
	FilesRemoved Type = eventtype.FilesRemoved
	FilesMoved   Type = eventtype.FilesMoved

	KeyCreated    Type = eventtype.KeyCreated
	KeyRevoked    Type = eventtype.KeyRevoked
	LimitsChanged Type = eventtype.LimitsChanged
	PortOpened    Type = eventtype.PortOpened

	TenantCreated      Type = eventtype.TenantCreated
	TenantDisabled     Type = eventtype.TenantDisabled // or enabled again
	Forked             Type = eventtype.Forked
	SnapshotCreated    Type = eventtype.SnapshotCreated
	SnapshotRemoved    Type = eventtype.SnapshotRemoved
	ProfileCreated     Type = eventtype.ProfileCreated
	ProfileApplied     Type = eventtype.ProfileApplied
	ProfileRemoved     Type = eventtype.ProfileRemoved
	SecretCreated      Type = eventtype.SecretCreated
	SecretRotated      Type = eventtype.SecretRotated
	SecretRemoved      Type = eventtype.SecretRemoved
	EgressAllowed      Type = eventtype.EgressAllowed // a connection or request of a sandbox; see Subject and Policy
	EgressDenied       Type = eventtype.EgressDenied
	EgressLimited      Type = eventtype.EgressLimited  // a limit was reached
	EgressFailed       Type = eventtype.EgressFailed   // allowed, but the destination did not respond
	PoliciesLoaded     Type = eventtype.PoliciesLoaded // the machine's policies were replaced
	PoliciesKept       Type = eventtype.PoliciesKept   // the policy files are invalid, so the old policies stay in force: see Subject
	SecretUsed         Type = eventtype.SecretUsed     // the gateway sent a secret: see Subject and Policy
	SessionCreated     Type = eventtype.SessionCreated
	LeaseWarming       Type = eventtype.LeaseWarming    // the sandbox of a session is being created or resumed
	LeaseWarm          Type = eventtype.LeaseWarm       // the sandbox serves the session: see Epoch
	LeaseDraining      Type = eventtype.LeaseDraining   // the session no longer needs its sandbox, which ends after a grace period
	LeaseCold          Type = eventtype.LeaseCold       // the session has no sandbox
	LeaseWaiting       Type = eventtype.LeaseWaiting    // a caller waits for a sandbox that another one makes or ends
	LeaseAtRisk        Type = eventtype.LeaseAtRisk     // the sandbox could not be saved, and its lifetime ends soon
	FenceRefused       Type = eventtype.FenceRefused    // a request was addressed to an earlier sandbox of the session: see Epoch
	RouteSwapped       Type = eventtype.RouteSwapped    // another sandbox, with the session's files, now serves the session: see Sandbox and Epoch
	StreamOpened       Type = eventtype.StreamOpened    // a viewer of a stream connected: see Viewers
	StreamClosed       Type = eventtype.StreamClosed    // a viewer of a stream is gone: see Reason
	StreamRevoked      Type = eventtype.StreamRevoked   // see Reason
	StreamRotated      Type = eventtype.StreamRotated   // the stream shows another sandbox of its session: see Epoch
	TerminalStarted    Type = eventtype.TerminalStarted // a command runs on a terminal: see Subject
	TerminalExited     Type = eventtype.TerminalExited
	RecordingStarted   Type = eventtype.RecordingStarted
	RecordingAvailable Type = eventtype.RecordingAvailable // a recording is stored completely: see Reason
	RecordingFailed    Type = eventtype.RecordingFailed    // see Reason
	MachineApproved    Type = eventtype.MachineApproved    // a self-hosted machine may make sandboxes: see Subject
	MachineRevoked     Type = eventtype.MachineRevoked
	MachineConsents    Type = eventtype.MachineConsents // what its owner agrees to changed: see Policy
	NodePlaced         Type = eventtype.NodePlaced      // a node was chosen for a sandbox: see Subject and Policy
	NodeChanged        Type = eventtype.NodeChanged
	NodeDrained        Type = eventtype.NodeDrained
	NodeRemoved        Type = eventtype.NodeRemoved
	NodeCleared        Type = eventtype.NodeCleared // the old sandboxes of a node that came back were ended
	AuditPruned        Type = eventtype.AuditPruned // the oldest records of this log were removed: see Subject
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
