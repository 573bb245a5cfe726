package sandbox

import (
	"cmp"
	"net/netip"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox/bounds"
)

// LoopbackAddress is the default address of published ports.
const LoopbackAddress = "127.0.0.1"

// PublishedPort forwards a TCP port of the daemon's machine to a port inside
// the sandbox. The server inside may listen on the sandbox's loopback only. It
// needs a daemon, and only the owner of the machine may publish ports.
type PublishedPort struct {
	// Address is where the daemon listens. Empty: LoopbackAddress.
	Address string `json:"address,omitempty" maxLength:"45" doc:"IP address of the daemon's machine to listen on; 127.0.0.1 if left out" example:"127.0.0.1"`
	// HostPort is the port there. Zero: the daemon picks a free port and keeps it.
	HostPort uint16 `json:"hostPort,omitempty" doc:"port there; a free port if left out"`
	Port     uint16 `json:"port" minimum:"1" doc:"port inside the sandbox"`
}

// String returns ADDRESS:HOSTPORT:PORT, as on the command line.
func (p PublishedPort) String() string { return p.Listen() + ":" + strconv.Itoa(int(p.Port)) }

// Listen returns the address and port to listen on.
func (p PublishedPort) Listen() string {
	at, err := netip.ParseAddr(cmp.Or(p.Address, LoopbackAddress))
	if err != nil {
		return p.Address + ":" + strconv.Itoa(int(p.HostPort))
	}
	return netip.AddrPortFrom(at, p.HostPort).String()
}

// Publication is a published port with its sandbox.
type Publication struct {
	PublishedPort
	Sandbox ID     `json:"sandbox"`
	Name    string `json:"name" doc:"of the sandbox"`
	// Error says why the daemon does not listen now. It tries again.
	Error string `json:"error,omitempty" doc:"why the daemon does not listen now; it tries again"`
}

// Validate returns an *Error with CodeInvalid if the port is not valid.
func (p PublishedPort) Validate() error {
	if p.Address != "" {
		if at, err := netip.ParseAddr(p.Address); err != nil || at.Zone() != "" {
			return invalid("ports", "%q is not an IP address", clip(p.Address))
		}
	}
	if p.Port == 0 {
		return invalid("ports", "the port inside the sandbox is missing")
	}
	return nil
}

func validatePorts(all []PublishedPort) error {
	if len(all) > bounds.MaxPorts {
		return invalid("ports", "%d published ports, at most %d", len(all), bounds.MaxPorts)
	}
	seen := map[string]bool{}
	for _, p := range all {
		if err := p.Validate(); err != nil {
			return err
		}
		if at := p.Listen(); p.HostPort != 0 && seen[at] {
			return invalid("ports", "%s is published twice", at)
		}
		seen[p.Listen()] = true
	}
	return nil
}

// PreviewRequest asks for a URL of the provider for a port.
type PreviewRequest struct {
	Port uint16 `json:"port" minimum:"1" doc:"port inside the sandbox"`
	// Public makes the URL work without a token. It needs the permission admin.
	Public bool `json:"public,omitempty" doc:"the URL works without a token; needs the permission admin"`
}

// Preview is a URL of the provider for an HTTP server inside a sandbox.
type Preview struct {
	Port   uint16 `json:"port" doc:"port inside the sandbox"`
	URL    string `json:"url"`
	Public bool   `json:"public" doc:"requests need no token"`
	// Header is the name of the request header for the token.
	Header string `json:"header,omitempty" doc:"request header for the token"`
	// Token is set only in the response to a PreviewRequest.
	Token   string    `json:"token,omitempty" doc:"only in the response that creates the preview"`
	Expires time.Time `json:"expires,omitzero" doc:"when the token expires"`
}
