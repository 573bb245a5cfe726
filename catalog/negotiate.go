package catalog

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Screen is the size of a desktop whose stream has none.
var Screen = Resolution{Width: 1280, Height: 800}

// viewerHeartbeat is the interval of a viewer's heartbeats.
const viewerHeartbeat = 30 * time.Second

// Query is the input of [Negotiate]. Features are enabled by default; the
// fields that end in Off, and the negative ones, disable them.
type Query struct {
	SessionID string
	OS        string // empty: the provider's default
	Liveness  string // cold, warming, warm or draining; empty: cold
	Epoch     int64
	Isolation sandbox.Isolation // of its sandbox; empty: the provider's

	DesktopOff     bool // disabled by policy
	DesktopView    bool // no input
	ComputerOff    bool // disabled by policy
	ComputerView   bool // screenshots only
	TerminalOff    bool // disabled by policy
	NoStreamSecret bool // stream tokens cannot be signed
	NoDesktop      bool // the image has no desktop
	NoRecording    bool // nothing records
	NoGit          bool // there are no git operations

	Acknowledged bool     // the viewer has acknowledged this group's desktop
	Shared       bool     // other sessions use the sandbox
	SharedWith   []string // their ids

	Desktop  *Stream // nil: not created
	Terminal *Stream // nil: not created
	Machine  *Machine
	Now      time.Time
}

// Stream is an endpoint created for a viewer. Its creation proves that the
// sandbox is alive.
type Stream struct {
	URL, Token string
	Expires    time.Time
	Resolution Resolution
}

// Liveness is the liveness of a user's own machine.
type Liveness string

// The states of a machine.
const (
	MachineOnline       Liveness = "online"
	MachineReconnecting Liveness = "reconnecting"
	MachineOffline      Liveness = "offline"
)

// Machine describes a self-hosted machine.
type Machine struct {
	Liveness  Liveness
	Own       bool // its screen is the owner's, and not one of a sandbox
	Display   bool // it has a screen
	Consented bool // its owner allows control of the screen
}

// machineWindow is how long a machine that does not respond counts as
// reconnecting.
const machineWindow = 30 * time.Second

// MachineLiveness returns the liveness of a machine from its enrolment, a
// probe, and the time of its last message.
func MachineLiveness(active, answered bool, seen, now time.Time) Liveness {
	switch {
	case !active:
		return MachineOffline
	case answered:
		return MachineOnline
	case now.Sub(seen) <= machineWindow:
		return MachineReconnecting
	}
	return MachineOffline
}

// Negotiate returns the current capabilities of a sandbox of a provider. It is
// pure and makes no network calls.
func Negotiate(d Descriptor, q Query) (CapabilityDocument, error) {
	if d.Name == "" {
		return CapabilityDocument{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "session.negotiate", Message: "unknown provider"}
	}
	if q.OS == "" {
		q.OS = d.OS.Default
	}
	if q.Liveness == "" {
		q.Liveness = "cold"
	}
	doc := CapabilityDocument{
		SessionID: q.SessionID, Backend: d.Name, OS: q.OS, Liveness: q.Liveness, Isolation: cmp.Or(q.Isolation, d.Isolation), LeaseEpoch: q.Epoch,
		HeartbeatMs: viewerHeartbeat.Milliseconds(), Negotiated: q.Now,
		FileSystem: fileCell(d), Terminal: terminalCell(d, q), Git: gitCell(d, q),
		Desktop: desktopCell(d, q), Recording: recordingCell(d, q), ComputerUse: computerCell(d, q),
	}
	if q.Machine != nil {
		overlay(&doc, d, *q.Machine)
	}
	if !slices.Contains(d.OS.Supported, q.OS) {
		refuseAll(&doc, OSUnsupported)
	}
	reveal(&doc.Desktop, q)
	return doc, nil
}

func fileCell(d Descriptor) FileSystemCell {
	c := FileSystemCell{Available: d.FileSystem.Available, ReadOnly: d.FileSystem.ReadOnly, Root: d.WorkspaceRoot, PathSep: "/", TreeMode: "lazy"}
	if !c.Available {
		c.Reason = BackendUnsupported
	}
	return c
}

func gitCell(d Descriptor, q Query) GitCell {
	c := GitCell{Available: d.Git && !q.NoGit, Repos: []string{}}
	switch {
	case !d.Git:
		c.Reason = BackendUnsupported
	case q.NoGit:
		c.Reason = NotProvisioned
	}
	return c
}

func terminalCell(d Descriptor, q Query) TerminalCell {
	c := TerminalCell{PTYCapable: d.Terminal.PTY, Shell: "/bin/bash", Transport: TransportSSE}
	switch {
	case !d.Terminal.Available:
		c.Transport, c.Reason = "", BackendUnsupported
	case !d.Terminal.PTY:
	case q.TerminalOff:
		c.Reason = DisabledByPolicy
	case q.Liveness == "cold" && q.Terminal == nil:
		c.Reason = LeaseCold
	default:
		c.Transport = TransportPTY
		if q.Terminal != nil {
			c.URL, c.Token, c.ExpiresAt = q.Terminal.URL, q.Terminal.Token, q.Terminal.Expires
		}
	}
	return c
}

// noScreen returns why a provider cannot have a desktop. Empty: it can.
func noScreen(d Descriptor) UnavailableReason {
	switch {
	case d.Desktop.Available:
		return ""
	case d.Tier == TierHeadless:
		return TierIsHeadless
	}
	return BackendUnsupported
}

func desktopCell(d Descriptor, q Query) DesktopCell {
	c := DesktopCell{Mode: "read-only", Resolution: Screen, Unredacted: true, Shared: q.Shared, SharedSessionIDs: []string{}}
	switch {
	case noScreen(d) != "":
		c.Reason = noScreen(d)
	case q.DesktopOff, q.NoStreamSecret:
		c.Reason = DisabledByPolicy
	case q.NoDesktop:
		c.Reason = NotProvisioned
	case q.Liveness == "cold" && q.Desktop == nil:
		c.Reason = LeaseCold
	}
	if c.Reason != "" {
		return c
	}
	relay := d.Desktop.Transport == TransportRelay
	c.Transport, c.Client = d.Desktop.Transport, "novnc"
	if relay {
		c.Client = "frames"
	}
	if !relay && !q.DesktopView {
		c.Mode = "interactive"
	}
	if q.Desktop != nil && q.Desktop.Resolution != (Resolution{}) {
		c.Resolution = q.Desktop.Resolution
	}
	return c
}

// reveal fills in what a viewer may know about an available desktop.
func reveal(c *DesktopCell, q Query) {
	c.RequiresAcknowledgment = c.Reason == ""
	c.Acknowledged = q.Acknowledged
	if c.Reason != "" {
		return
	}
	if q.Shared {
		c.SharedSessionIDs = append(c.SharedSessionIDs, q.SharedWith...)
	}
	if q.Desktop != nil && q.Acknowledged {
		c.URL, c.Token, c.ExpiresAt = q.Desktop.URL, q.Desktop.Token, q.Desktop.Expires
	}
}

func recordingCell(d Descriptor, q Query) RecordingCell {
	c := RecordingCell{Modes: []string{}, Codecs: []string{}}
	switch {
	case noScreen(d) != "":
		c.Reason = noScreen(d)
	case q.DesktopOff:
		c.Reason = DisabledByPolicy
	case q.NoDesktop, q.NoRecording:
		c.Reason = NotProvisioned
	default:
		c.Available = true
		c.Modes, c.Codecs = []string{string(viewing.RecordManual), string(viewing.RecordOnTurn)}, []string{viewing.FormatVideo}
	}
	return c
}

func computerCell(d Descriptor, q Query) ComputerUseCell {
	c := ComputerUseCell{ReadOnly: q.ComputerView}
	switch {
	case noScreen(d) != "":
		c.Reason = noScreen(d)
	case q.DesktopOff, q.ComputerOff:
		c.Reason = DisabledByPolicy
	case q.NoDesktop:
		c.Reason = NotProvisioned
	default:
		c.Available = true
	}
	return c
}

// overlay removes what a user's own machine cannot do now.
func overlay(doc *CapabilityDocument, d Descriptor, m Machine) {
	switch {
	case m.Liveness == MachineReconnecting:
		refuseAll(doc, AgentReconnecting)
	case m.Liveness != MachineOnline:
		refuseAll(doc, AgentOffline)
	case !m.Display:
		refuseScreen(doc, DisplayUnavailable, false)
	case !m.Consented && m.Own:
		refuseScreen(doc, ConsentRequired, false)
	case !m.Consented:
		doc.Desktop.Mode = "read-only"
		if doc.ComputerUse.Available {
			doc.ComputerUse.Available, doc.ComputerUse.Reason = false, ConsentRequired
		}
	}
	if m.Own && doc.Recording.Available { // nobody agrees to that
		doc.Recording = RecordingCell{Modes: []string{}, Codecs: []string{}, Reason: ConsentRequired}
	}
}

// refuseAll makes all cells unavailable for one reason.
func refuseAll(doc *CapabilityDocument, why UnavailableReason) {
	doc.FileSystem.Available, doc.FileSystem.Reason = false, why
	doc.Git.Available, doc.Git.Reason = false, why
	doc.Terminal = TerminalCell{PTYCapable: doc.Terminal.PTYCapable, Shell: doc.Terminal.Shell, Reason: why}
	refuseScreen(doc, why, true)
}

// refuseScreen makes everything that needs a screen unavailable. An unavailable
// cell keeps its reason unless force is set.
func refuseScreen(doc *CapabilityDocument, why UnavailableReason, force bool) {
	if force || doc.Desktop.Reason == "" {
		c := &doc.Desktop
		c.Transport, c.Client, c.Mode, c.Reason = "", "", "read-only", why
	}
	if force || doc.Recording.Available {
		doc.Recording = RecordingCell{Modes: []string{}, Codecs: []string{}, Reason: why}
	}
	if force || doc.ComputerUse.Available {
		doc.ComputerUse.Available, doc.ComputerUse.Reason = false, why
	}
}

// Served returns the descriptor of a provider whose sandboxes' ports the daemon
// reaches. The daemon then serves the desktop of every image that has one.
func Served(d Descriptor) Descriptor {
	if !d.Desktop.Available {
		screen(&d)
	}
	return d
}

// DesktopImage reports whether an image is one with a desktop, which its name
// says: desktop, with any registry and tag.
func DesktopImage(name string) bool {
	name, _, _ = strings.Cut(path.Base(name), "@")
	name, _, _ = strings.Cut(name, ":")
	return name == "desktop"
}

// HasDesktop reports whether the provider with that name or backend id can have
// a desktop.
func HasDesktop(list []Descriptor, name string) bool {
	i := slices.IndexFunc(list, func(d Descriptor) bool { return d.Name == name || d.BackendID == name })
	return i >= 0 && list[i].Desktop.Available
}

// StreamPorts are the ports of the desktop and the terminal in a sandbox.
var StreamPorts = []int{6080, 7681}

// MergePorts returns the ports to declare at creation: the declared ones in
// their order, and those of the streams if the provider can have a desktop,
// policy allows it, and ports cannot be exposed later.
func MergePorts(d Descriptor, declared []int, desktop bool) []int {
	ports := slices.Clone(declared)
	if !desktop || !d.Desktop.Available || d.Ports.OnDemand {
		return ports
	}
	for _, p := range StreamPorts {
		if !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	return ports
}
