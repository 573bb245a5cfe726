package catalog

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// UnavailableReason says why a capability is not available. Empty: it is
// available. The list is closed.
type UnavailableReason string

// The reasons.
const (
	BackendUnsupported UnavailableReason = "backend_unsupported"
	OSUnsupported      UnavailableReason = "os_unsupported"
	NotProvisioned     UnavailableReason = "not_provisioned"
	DisabledByPolicy   UnavailableReason = "disabled_by_policy"
	LeaseCold          UnavailableReason = "lease_cold"
	TierIsHeadless     UnavailableReason = "tier_headless"
	AgentOffline       UnavailableReason = "agent_offline"
	AgentReconnecting  UnavailableReason = "agent_reconnecting"
	ConsentRequired    UnavailableReason = "consent_required"
	DisplayUnavailable UnavailableReason = "display_unavailable"
)

// CapabilityDocument describes the capabilities that the sandbox of a session
// has now. Every cell is always present. One that is not available has a
// Reason.
type CapabilityDocument struct {
	SessionID   string            `json:"sessionId"`
	Backend     string            `json:"backend"`
	OS          string            `json:"os"`
	Liveness    string            `json:"liveness"`            // cold, warming, warm or draining
	Isolation   sandbox.Isolation `json:"isolation,omitempty"` // of its sandbox; without one, of the provider
	LeaseEpoch  int64             `json:"leaseEpoch"`
	HeartbeatMs int64             `json:"viewerHeartbeatIntervalMs"`
	Negotiated  time.Time         `json:"negotiatedAt"`

	FileSystem  FileSystemCell  `json:"FileSystem"`
	Terminal    TerminalCell    `json:"Terminal"`
	Git         GitCell         `json:"Git"`
	Desktop     DesktopCell     `json:"DesktopStream"`
	Recording   RecordingCell   `json:"Recording"`
	ComputerUse ComputerUseCell `json:"ComputerUse"`
}

// FileSystemCell says how to access files.
type FileSystemCell struct {
	Available bool              `json:"available"`
	ReadOnly  bool              `json:"readOnly"`
	Root      string            `json:"root"`
	PathSep   string            `json:"pathSep"`
	TreeMode  string            `json:"treeMode"` // always "lazy"
	Reason    UnavailableReason `json:"reason,omitempty"`
}

// TerminalCell says how to access a terminal. If a terminal is not available
// but output is, Transport is sse-events, with the reason.
type TerminalCell struct {
	Transport  Transport         `json:"transport,omitempty"`
	PTYCapable bool              `json:"ptyCapable"`
	Shell      string            `json:"shell"`
	URL        string            `json:"url,omitempty"`
	Token      string            `json:"token,omitempty"`
	ExpiresAt  time.Time         `json:"expiresAt,omitzero"`
	Reason     UnavailableReason `json:"reason,omitempty"`
}

// GitCell says whether repositories can be read. The image needs git for that.
type GitCell struct {
	Available bool              `json:"available"`
	Repos     []string          `json:"repos"`
	Reason    UnavailableReason `json:"reason,omitempty"`
}

// Resolution is the size of a screen in pixels.
type Resolution struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// DesktopCell says how to access the screen. URL, Token and ExpiresAt are set
// only after the viewer has acknowledged that pixels cannot be redacted.
type DesktopCell struct {
	Transport              Transport         `json:"transport,omitempty"`
	Client                 string            `json:"client,omitempty"` // novnc or frames
	Mode                   string            `json:"mode"`             // interactive or read-only
	URL                    string            `json:"url,omitempty"`
	Token                  string            `json:"token,omitempty"`
	ExpiresAt              time.Time         `json:"expiresAt,omitzero"`
	Resolution             Resolution        `json:"resolution"`
	Unredacted             bool              `json:"unredacted"` // always true
	RequiresAcknowledgment bool              `json:"requiresAcknowledgment"`
	Acknowledged           bool              `json:"acknowledged"`
	Shared                 bool              `json:"shared"`
	SharedSessionIDs       []string          `json:"sharedSessionIds"`
	Reason                 UnavailableReason `json:"reason,omitempty"`
}

// RecordingCell says whether the screen can be recorded.
type RecordingCell struct {
	Available bool              `json:"available"`
	Modes     []string          `json:"modes"`
	Codecs    []string          `json:"codecs"`
	Reason    UnavailableReason `json:"reason,omitempty"`
}

// ComputerUseCell says whether an agent can use the screen.
type ComputerUseCell struct {
	Available bool              `json:"available"`
	ReadOnly  bool              `json:"readOnly"`
	Reason    UnavailableReason `json:"reason,omitempty"`
}
