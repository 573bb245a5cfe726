// Package durable describes what outlives a sandbox: sessions, snapshots,
// templates, workspaces and stored secrets.
package durable

import (
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/internal/field"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// EnvelopeVersion is the version of envelopes that this package writes.
const EnvelopeVersion = 1

// Envelope describes a session without secrets. From it, a daemon that shares
// the store finds the sandbox of the session again or rebuilds it.
type Envelope struct {
	Version int    `json:"version"`
	Backend string `json:"backend"` // provider
	// Binding is the account, endpoint or machine that the sandbox belongs to. A
	// sandbox that cannot be found under another binding is not proved to be gone.
	Binding string `json:"binding,omitempty"`
	// Sandbox is the id of the sandbox. Empty: there is only an archive.
	Sandbox string          `json:"box,omitempty"`
	State   json.RawMessage `json:"state,omitempty"` // state of the driver, without secrets

	// Spec has no environment and no secret values. The environment is stored with
	// the session.
	Spec       sandbox.Spec   `json:"spec"`
	Workspaces []WorkspaceRef `json:"workspaces,omitempty"`
	Archive    *Archive       `json:"archive,omitempty"`
	// Files names a file that belongs to the envelope. Any Atoll can rebuild the
	// sandbox from it. The caller that resumes the envelope must have the file.
	Files *ArchiveFile `json:"files,omitempty"`

	// Fingerprint was written by earlier versions. It is ignored: an envelope is
	// untrusted: the caller who resumes it needs every right that it uses.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// WorkspaceRef names one version of a workspace.
type WorkspaceRef struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Archive is the saved state of a sandbox without a workspace: a tar stream of
// /workspace in the blob store, or a snapshot that the provider keeps.
type Archive struct {
	Kind     string `json:"kind"` // "tar" or "snapshot"
	Ref      string `json:"ref"`
	Size     int64  `json:"size,omitempty"` // bytes
	Hash     string `json:"hash,omitempty"` // "sha256:" and hex, of a tar
	Provider string `json:"provider,omitempty"`
	Binding  string `json:"binding,omitempty"`
}

// ArchiveFile is a tar archive of /workspace, by its content.
type ArchiveFile struct {
	Hash string `json:"hash" doc:"sha256: and 64 hexadecimal digits"`
	Size int64  `json:"size" doc:"bytes"`
}

// Sealed returns the envelope with its version and without its environment.
func (e Envelope) Sealed() Envelope {
	e.Version, e.Spec.Env, e.Fingerprint = EnvelopeVersion, nil, ""
	return e
}

// ParseEnvelope reads an envelope. One that cannot be used is CodeInvalid:
// nothing is created from it.
func ParseEnvelope(data []byte) (Envelope, error) {
	var e Envelope
	refuse := func(message string) (Envelope, error) {
		return Envelope{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "session.resume", Subject: "envelope", Message: message}
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return refuse("is not JSON of an envelope: " + err.Error())
	}
	switch {
	case e.Version != EnvelopeVersion:
		return refuse("has a version that this Atoll does not know")
	case e.Backend == "":
		return refuse("names no provider")
	}
	if e.Sandbox == "" {
		e.Sandbox = instanceID(e.State)
	}
	return e, nil
}

// instanceID finds the id of a sandbox in the state of a driver. The first of
// these names that is present counts. A host alone does not identify a sandbox.
func instanceID(state json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(state, &fields) != nil {
		return ""
	}
	id, resumable := "", false
	for _, name := range []string{"sandboxId", "instanceId", "id", "hostId", "containerId"} {
		value, _ := fields[name].(string)
		if id == "" {
			id = value
		}
		resumable = resumable || value != "" && name != "hostId"
	}
	if !resumable {
		return ""
	}
	return id
}

// Outcome says how a session got its sandbox.
type Outcome string

// The outcomes.
const (
	OutcomeAttached Outcome = "attached" // it was running
	OutcomeWoken    Outcome = "woken"    // it was paused
	OutcomeResumed  Outcome = "resumed"  // it was stopped
	OutcomeRebuilt  Outcome = "rebuilt"  // it is new, from a workspace or archive
	OutcomeCreated  Outcome = "created"  // it is new and empty
	OutcomeMoved    Outcome = "moved"    // it took the place of another, with its files
)

// Receipt answers what a session got.
type Receipt struct {
	Outcome  Outcome    `json:"outcome"`
	Provider string     `json:"provider"`
	Sandbox  sandbox.ID `json:"sandbox"`
	Epoch    int64      `json:"epoch"`
	// From is what a rebuilt sandbox was made from.
	From ReceiptFrom `json:"from,omitzero"`
	// Lost names what the previous sandbox had and this one does not.
	Lost []string `json:"lost,omitempty"`
	// Why says why a sandbox was rebuilt: the evidence that the old one is gone.
	Why  string    `json:"why,omitempty"`
	Time time.Time `json:"time,omitzero"`
}

// ReceiptFrom is what a sandbox was rebuilt from.
type ReceiptFrom struct {
	Workspaces []WorkspaceRef `json:"workspaces,omitempty"`
	Archive    *Archive       `json:"archive,omitempty"`
}

// What a rebuilt sandbox may have lost.
const (
	LostProcesses = "processes"
	LostMemory    = "memory"
	LostFiles     = "files outside /workspace"
	LostWorkspace = "everything"
	LostChanges   = "changes since the last save"
)

// ArchiveLabel is a label of the snapshots that a session keeps, with its name.
// They are not pruned.
const ArchiveLabel = "atoll.session-archive"

// Session is a name for the sandbox that serves it now. It outlives sandboxes,
// daemons and providers.
type Session struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Group names the sessions that share one sandbox. By default a session is
	// alone in its group.
	Group string `json:"group"`
	// Provider is the requested provider. Empty: the daemon chooses.
	Provider string            `json:"provider,omitempty"`
	Spec     sandbox.Spec      `json:"spec"` // without its environment
	Labels   map[string]string `json:"labels,omitempty"`
	// PauseOnExit pauses the sandbox, instead of ending it, when no holder is left,
	// if the provider can do that.
	PauseOnExit bool `json:"pauseOnExit,omitempty"`
	// Record says which recordings of the desktop are made without a request.
	Record viewing.RecordMode `json:"record,omitempty" enum:"manual,on-turn"`

	Receipt *Receipt   `json:"receipt,omitempty"` // of the last acquisition
	Lease   *LeaseInfo `json:"lease,omitempty"`
	Created time.Time  `json:"created"`
	Updated time.Time  `json:"updated"`
}

// LeaseInfo describes the lease of a session.
type LeaseInfo struct {
	State    string     `json:"state"` // cold, warming, warm or draining
	Epoch    int64      `json:"epoch"`
	Provider string     `json:"provider,omitempty"`
	Sandbox  sandbox.ID `json:"sandbox,omitempty"`
	Holders  []Holder   `json:"holders"`
	Expires  time.Time  `json:"expires,omitzero"`
	History  []Epoch    `json:"history,omitempty" doc:"the latest epochs, the present one first; not in lists"`
	Idle     time.Time  `json:"idle,omitzero"` // when the sandbox lost its last holder; zero: it has a holder, or there is no sandbox
}

// Epoch says which sandbox served a session at an epoch.
type Epoch struct {
	Epoch    int64      `json:"epoch"`
	Provider string     `json:"provider"`
	Sandbox  sandbox.ID `json:"sandbox"`
	Holders  []string   `json:"holders,omitempty" doc:"kinds and ids of the holders when it began and when it ended"`
	Began    time.Time  `json:"began"`
	Ended    time.Time  `json:"ended,omitzero" doc:"left out while it serves the session"`
	Why      string     `json:"why,omitempty" doc:"why it ended"`
}

// IfExists says what to do if a session with the name exists.
type IfExists string

// What to do with an existing session. Empty: IfExistsFail.
const (
	IfExistsFail   IfExists = "fail"
	IfExistsAttach IfExists = "attach" // return that session; the rest of the request is ignored
)

// NewSession asks for a session.
type NewSession struct {
	// Name is unique among the tenant's sessions. Empty: the id.
	Name  string `json:"name,omitempty" maxLength:"63" doc:"unique among your sessions; the id if it is left out"`
	Group string `json:"group,omitempty" maxLength:"63" doc:"sessions with the same group share one sandbox; not shared if it is left out"`
	// Spec is the Spec of its sandboxes. Its Name is not used.
	Spec        sandbox.Spec       `json:"spec,omitzero"`
	Labels      map[string]string  `json:"labels,omitempty" doc:"added to the labels of the spec; they apply to the sandboxes and the usage of the session"`
	PauseOnExit bool               `json:"pauseOnExit,omitempty" doc:"pause the sandbox, instead of ending it, when no holder is left, if the provider can do that"`
	Record      viewing.RecordMode `json:"record,omitempty" enum:"manual,on-turn" doc:"on-turn records the desktop during every turn that uses it; manual if it is left out"`
	IfExists    IfExists           `json:"ifExists,omitempty" enum:"fail,attach" doc:"what to do when there is a session of that name; fail if it is left out"`
	// Holder, if set, acquires the sandbox too. Nil: the sandbox is made when it is
	// first used.
	Holder *HolderRef `json:"holder,omitempty" doc:"acquire the sandbox for this holder; without a holder, the sandbox is made when it is first used"`
}

// SessionChange describes changes to a session. Fields that are nil stay as
// they are.
type SessionChange struct {
	Labels      map[string]*string  `json:"labels,omitempty" doc:"labels to set; null removes one. The present sandbox keeps its labels"`
	PauseOnExit *bool               `json:"pauseOnExit,omitempty"`
	Record      *viewing.RecordMode `json:"record,omitempty" enum:"manual,on-turn" doc:"it applies to turns that begin, or send a heartbeat, from now on"`
}

// ResumeRequest asks for the session of an envelope.
type ResumeRequest struct {
	Envelope Envelope `json:"envelope"`
	Name     string   `json:"name,omitempty" maxLength:"63" doc:"name of the session if it is a new one; its id if it is left out"`
	// Provider is the provider for a rebuilt sandbox. Empty: the envelope's.
	Provider string     `json:"provider,omitempty" maxLength:"63" doc:"provider of the sandbox if it is rebuilt; that of the envelope if it is left out"`
	Holder   *HolderRef `json:"holder,omitempty" doc:"acquire the sandbox for this holder; without a holder, the sandbox is found or made when it is first used"`
}

// HolderRef names a holder.
type HolderRef struct {
	// Kind is turn, viewer or operator. Viewers and operators expire when they send
	// no heartbeat for 90 seconds; a turn ends when it is released.
	Kind string `json:"kind,omitempty" enum:"turn,viewer,operator" doc:"viewers and operators expire without heartbeats; operator if it is left out"`
	ID   string `json:"holder" minLength:"1" maxLength:"128" doc:"unique among the holders of that kind"`
	// Epoch, if not 0, is the epoch that the caller expects. If the sandbox is at
	// another one, the result is CodeStale.
	Epoch int64 `json:"epoch,omitempty" minimum:"0" doc:"fail with the code stale if the sandbox is at another epoch"`
}

// Opened is the result of creating or resuming a session.
type Opened struct {
	Session Session  `json:"session"`
	Created bool     `json:"created"` // false: there was one already
	Receipt *Receipt `json:"receipt,omitempty" doc:"of the sandbox, if a holder was given"`
}

// Acquired is the result of acquiring the sandbox of a session.
type Acquired struct {
	Epoch   int64      `json:"epoch"`
	Role    string     `json:"role" doc:"spawner: this request made the sandbox; attached or rearmed: it existed already"`
	Sandbox sandbox.ID `json:"sandbox"`
	Receipt Receipt    `json:"receipt"`
}

// Saved is the result of saving a session.
type Saved struct {
	Workspaces []WorkspaceRef `json:"workspaces,omitempty"`
	Archive    *Archive       `json:"archive,omitempty" doc:"of a sandbox without workspaces"`
}

// SessionUsage is how long sandboxes ran, with those of sessions, for one label
// value, group or provider.
type SessionUsage struct {
	Value string        `json:"value" doc:"value of the label, or the group or provider; empty: those without it"`
	Warm  time.Duration `json:"warmMs" doc:"in milliseconds"`
}

// MarshalJSON writes the duration in milliseconds.
func (u SessionUsage) MarshalJSON() ([]byte, error) {
	type plain SessionUsage
	field.ToMS(&u.Warm)
	return json.Marshal(plain(u))
}

// UnmarshalJSON reads the duration in milliseconds.
func (u *SessionUsage) UnmarshalJSON(text []byte) error {
	type plain SessionUsage
	field.ToMS(&u.Warm)
	err := json.Unmarshal(text, (*plain)(u))
	field.FromMS(&u.Warm)
	return err
}

// Holder is a client that holds the sandbox of a session now.
type Holder struct {
	Kind    string    `json:"kind"` // turn, viewer or operator
	ID      string    `json:"id"`
	Subject string    `json:"subject,omitempty"`
	Beat    time.Time `json:"beat"`
}

// SessionTarget is a provider and whether a session can move to it.
type SessionTarget struct {
	Provider string   `json:"provider"`
	Current  bool     `json:"current" doc:"whether it serves the session now"`
	Fits     bool     `json:"fits"`
	Reasons  []string `json:"reasons" doc:"why it does not fit, or its advantages"`
	Carries  string   `json:"carries,omitempty" enum:"workspaces,/workspace" doc:"what moves with the session: its workspaces, or the files below /workspace"`
}

// SwapRequest moves a session to another provider.
type SwapRequest struct {
	// Target is a provider, or "default" for the provider that the session was
	// created with.
	Target string `json:"target" minLength:"1" maxLength:"63" doc:"a provider, or default for the provider that the session was created with"`
}

// Swapped is the outcome of a SwapRequest.
type Swapped struct {
	// Swapped is false, with a Reason, if the target cannot serve the session now;
	// the session then stays where it is. It is true if the session was there
	// already.
	Swapped bool     `json:"swapped"`
	Reason  string   `json:"reason,omitempty"`
	Receipt *Receipt `json:"receipt,omitempty"`
}
