package catalog

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Tier is the kind of machine that the sandboxes of a provider are.
type Tier string

// The tiers.
const (
	TierDesktop  Tier = "desktop"  // can show a screen
	TierHeadless Tier = "headless" // a hosted machine without a screen
	TierDev      Tier = "dev"      // this machine or a container on it
	TierNone     Tier = "none"     // makes no sandboxes
)

// PriceClass is a coarse measure of what a sandbox costs.
type PriceClass string

// The price classes, cheapest first.
const (
	PriceFree PriceClass = "free" // runs on your own hardware
	PriceUse  PriceClass = "use"  // billed by the second or by use
	PricePlan PriceClass = "plan" // needs a paid plan
)

// Descriptor is the static description of a provider. Callers branch on this
// data and never on the name of a provider.
type Descriptor struct {
	Name      string `json:"name"`
	BackendID string `json:"backendId"` // the name in resume envelopes; usually Name
	Summary   string `json:"summary"`
	Tier      Tier   `json:"tier"`
	OS        OSList `json:"os"`

	FileSystem FileSystemSupport `json:"fileSystem"`
	Terminal   TerminalSupport   `json:"terminal"`
	Git        bool              `json:"git"`
	Desktop    DesktopSupport    `json:"desktop"`
	Recording  bool              `json:"recording"`

	// Isolation is what its sandboxes have. Empty: not known, which counts as none.
	Isolation sandbox.Isolation `json:"isolation,omitempty"`

	Lifetime LifetimeSupport   `json:"lifetime"`
	Pause    sandbox.PauseKind `json:"pause,omitempty"` // strongest kind; empty: none
	Snapshot SnapshotSupport   `json:"snapshot"`
	Fork     bool              `json:"fork"`
	Egress   enforce.Kind      `json:"egress"` // finest rules that the provider enforces
	Ports    PortSupport       `json:"ports"`

	WorkspaceRoot     string `json:"workspaceRoot"`
	NativeBucketMount bool   `json:"nativeBucketMount"`
	Persistable       bool   `json:"persistable"` // the workspace can outlive the sandbox
	RunAs             bool   `json:"runAs"`       // commands can run as another user
	// Permanent: the sandboxes are the users' own machines. They can be offline,
	// but are never gone.
	Permanent   bool          `json:"permanent,omitempty"`
	Find        FindKind      `json:"find,omitempty"`
	Price       PriceClass    `json:"price"`
	Units       []Unit        `json:"units,omitempty"`
	Credentials []Credential  `json:"credentials,omitempty"`
	Verified    Verification  `json:"verified"`
	Driver      DriverSupport `json:"driver"`
}

// OSList names operating systems.
type OSList struct {
	Supported []string `json:"supported"`
	Default   string   `json:"default"`
}

// FileSystemSupport says whether files can be accessed.
type FileSystemSupport struct {
	Available bool `json:"available"`
	ReadOnly  bool `json:"readOnly"`
}

// Transport is how a stream reaches a viewer. Empty: no stream.
type Transport string

// The transports.
const (
	TransportSSE    Transport = "sse-events"
	TransportPTY    Transport = "pty-ws"
	TransportVNC    Transport = "vnc-ws"
	TransportRDP    Transport = "rdp-ws"
	TransportWebRTC Transport = "webrtc"
	TransportRelay  Transport = "relay-frames"
)

// TerminalSupport says how commands can be followed.
type TerminalSupport struct {
	Available bool      `json:"available"`
	Transport Transport `json:"transport,omitempty"`
	PTY       bool      `json:"pty"`
}

// DesktopSupport says whether a screen can be shown.
type DesktopSupport struct {
	Available bool      `json:"available"`
	Transport Transport `json:"transport,omitempty"`
}

// LifetimeSupport says how long a sandbox can live. Durations are nanoseconds
// in JSON.
type LifetimeSupport struct {
	// Hard is the maximum lifetime of a sandbox, which cannot be extended. Zero: no
	// maximum.
	Hard time.Duration `json:"hard,omitempty"`
	// Rollover: a session that needs longer must move to a new sandbox.
	Rollover bool `json:"rollover"`
	// IdleKiller: the provider ends unused sandboxes.
	IdleKiller bool `json:"idleKiller"`
	// Suspend: a sandbox can be suspended and resumed.
	Suspend bool `json:"suspend"`
	// LockFreeResume: two clients may resume a sandbox at once.
	LockFreeResume bool `json:"lockFreeResume"`
}

// SnapshotKind is what a snapshot contains.
type SnapshotKind string

// The kinds of snapshots.
const (
	SnapshotMemory SnapshotKind = "memory"             // files, memory and processes
	SnapshotFS     SnapshotKind = "native-fs"          // the file system
	SnapshotDir    SnapshotKind = "native-dir"         // a directory of this machine
	SnapshotID     SnapshotKind = "native-snapshot-id" // kept by the service under an id
	SnapshotTar    SnapshotKind = "tar-only"
	SnapshotNone   SnapshotKind = "none"
)

// SnapshotSupport says which snapshots a provider can make.
type SnapshotSupport struct {
	Kind        SnapshotKind `json:"kind"`
	TarFallback bool         `json:"tarFallback"`
}

// PortKind is how a port of a sandbox is reached.
type PortKind string

// The kinds of port exposure.
const (
	PortTunnel  PortKind = "provider-tunnel" // connections go through the provider's API only
	PortPreview PortKind = "preview-url"     // the provider gives the port a URL
	PortLocal   PortKind = "local-port"      // the sandbox is on this machine
	PortNone    PortKind = "none"
)

// PortSupport says how ports are exposed.
type PortSupport struct {
	Kind     PortKind `json:"kind"`
	OnDemand bool     `json:"onDemand"` // ports need not be declared at creation
}

// FindKind is how a sandbox is found after the request that created it got no
// response.
type FindKind string

// The ways to find a sandbox.
const (
	FindByLabel FindKind = "label"       // listed by a label that Atoll sets
	FindByKey   FindKind = "idempotency" // the same request returns the same sandbox
	FindByName  FindKind = "name"        // a name belongs to one sandbox
)

// Unit is a provider's unit for something that Atoll measures in another unit.
type Unit struct {
	Of   string `json:"of"`   // e.g. "timeout"
	Unit string `json:"unit"` // e.g. "milliseconds"
}

// Credential is a setting that a provider needs or can use. It names
// variables and holds no value.
type Credential struct {
	Name     string `json:"name"`
	Env      string `json:"env"`
	Required bool   `json:"required"`
	Secret   bool   `json:"secret"`
	// With names another credential. Either both are set or neither.
	With string `json:"with,omitempty"`
}

// Verification says what a driver was tested against.
type Verification string

// The values of Verification.
const (
	VerifiedLive Verification = "live" // the real technology
	VerifiedFake Verification = "fake" // a fake that the official client accepts too
	VerifiedNot  Verification = "none" // no driver, or no test
)

// DriverSupport says whether this build of Atoll has a driver.
type DriverSupport struct {
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"` // why it is missing
}
