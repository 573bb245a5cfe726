package sandbox

import (
	"cmp"
	"net/netip"
	"strconv"
	"time"
)

// LoopbackAddress is where ports are published that say nothing else.
const LoopbackAddress = "127.0.0.1"

// PublishedPort is a TCP port of the daemon's machine that leads to a port inside
// the sandbox, also to one of a server that listens only on the sandbox's
// loopback. It needs a daemon, and only the owner of its machine may publish.
type PublishedPort struct {
	// Address is where the daemon listens. Empty: LoopbackAddress.
	Address string `json:"address,omitempty" maxLength:"45" doc:"IP address of the daemon's machine to listen on; 127.0.0.1 if left out" example:"127.0.0.1"`
	// HostPort is the port there. Zero: any that is free, which is kept.
	HostPort uint16 `json:"hostPort,omitempty" doc:"port there; any that is free if left out"`
	Port     uint16 `json:"port" minimum:"1" doc:"port inside the sandbox"`
}

// String is how it is written on the command line, with the address.
func (p PublishedPort) String() string { return p.Listen() + ":" + strconv.Itoa(int(p.Port)) }

// Listen is the address and port to listen on.
func (p PublishedPort) Listen() string {
	at, err := netip.ParseAddr(cmp.Or(p.Address, LoopbackAddress))
	if err != nil {
		return p.Address + ":" + strconv.Itoa(int(p.HostPort))
	}
	return netip.AddrPortFrom(at, p.HostPort).String()
}

// Publication is a published port with the sandbox that it leads to.
type Publication struct {
	PublishedPort
	Sandbox ID     `json:"sandbox"`
	Name    string `json:"name" doc:"of the sandbox"`
	// Error says why the daemon does not listen. It tries again.
	Error string `json:"error,omitempty" doc:"why the daemon does not listen now; it tries again"`
}

// MaxPorts is how many ports of one sandbox can be published.
const MaxPorts = 64

// Validate reports what about a published port can never work.
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
	if len(all) > MaxPorts {
		return invalid("ports", "%d published ports, at most %d", len(all), MaxPorts)
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

// PreviewRequest asks for the address of a port.
type PreviewRequest struct {
	Port uint16 `json:"port" minimum:"1" doc:"port inside the sandbox"`
	// Public shows the port to whoever knows the address. It needs the permission
	// admin.
	Public bool `json:"public,omitempty" doc:"show it without a token; needs the permission admin"`
}

// Preview is an address that the provider of a sandbox gives to an HTTP server
// inside.
type Preview struct {
	Port   uint16 `json:"port" doc:"port inside the sandbox"`
	URL    string `json:"url"`
	Public bool   `json:"public" doc:"whoever knows the address reaches the port; without it requests need the token"`
	// Header is the name of the one in which requests carry the token.
	Header string `json:"header,omitempty" doc:"header in which requests carry the token"`
	// Token is only in the answer to a PreviewRequest.
	Token   string    `json:"token,omitempty" doc:"only in the answer to the request for the address"`
	Expires time.Time `json:"expires,omitzero" doc:"when the token ends"`
}
