package boxlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// creation is the request for a new box. Unset fields are not sent.
type creation struct {
	Name       string   `json:"name"`
	Image      string   `json:"image,omitempty"`
	CPUs       int64    `json:"cpus,omitempty"`
	Memory     int64    `json:"memory_mib,omitempty"`
	Disk       int64    `json:"disk_size_gb,omitempty"`
	User       string   `json:"user"`
	Volumes    []volume `json:"volumes,omitempty"`
	Network    network  `json:"network"`
	Detach     bool     `json:"detach"`
	AutoStop   int64    `json:"auto_stop"`
	AutoDelete int64    `json:"auto_delete"`
	AutoResume bool     `json:"auto_resume"`
}

// volume is a managed volume at a path.
type volume struct {
	Managed string `json:"managed_volume"`
	Path    string `json:"guest_path"`
}

type network struct {
	Outbound flow `json:"outbound"`
	Inbound  flow `json:"inbound"`
}

// flow lists the allowed traffic in one direction. If it is enabled and the
// list is empty, everything is allowed.
type flow struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow_net,omitempty"`
}

const (
	enabled  = "enabled"
	disabled = "disabled"
)

// EgressAbility implements driver.EgressEnforcer: names and addresses, with all
// their ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, Wildcards: true}
}

// egress converts egress rules to the server's format. "Nothing" is a mode,
// because an empty list would allow everything.
func egress(rules *sandbox.EgressRules) flow {
	if rules != nil && rules.Open {
		return flow{Mode: enabled}
	}
	if allow := hosted.Destinations(rules); len(allow) > 0 {
		return flow{Mode: enabled, Allow: allow}
	}
	return flow{Mode: disabled}
}

// network returns the network settings of a box. Tunnels need a box that
// accepts connections.
func (p *Provider) network(rules *sandbox.EgressRules) network {
	n := network{Outbound: egress(rules), Inbound: flow{Mode: disabled}}
	if p.opts.Tunnels && n.Outbound.Mode == enabled {
		n.Inbound.Mode = enabled
	}
	return n
}

// CheckImage implements driver.ImageChecker. The server fetches images. It
// cannot read images in files of this machine.
func (p *Provider) CheckImage(image string) error { return p.CheckFetched(image) }

const (
	mib       = 1 << 20
	gib       = 1 << 30
	maxCPUs   = 32
	minMemory = 128 * mib
)

// complete fills in the request for a spec, and refuses what the server does
// not support.
func (p *Provider) complete(c *creation, spec *sandbox.Spec, scope string) error {
	r := spec.Resources
	if err := p.Check(spec); err != nil {
		return err
	}
	switch {
	case r.CPUs != float64(int64(r.CPUs)) || r.CPUs > maxCPUs:
		return p.Unsupported("cpus", "the server gives whole processors, and at most 32", "ask for a whole number")
	case r.Memory > 0 && r.Memory < minMemory:
		return p.Unsupported("memory", "the server gives at least 128 MiB", "ask for more")
	}
	if c.Image = p.opts.Image; spec.Image != "" && spec.Image != "host" {
		c.Image = spec.Image
	}
	c.Name, c.User, c.Volumes, c.Detach = names.Of(scope, spec.ID), "0:0", p.volumes, true
	c.CPUs, c.Memory, c.Disk = int64(r.CPUs), r.Memory/mib, (r.Disk+gib-1)/gib
	c.Network = p.network(spec.Network.Plain)
	if life := spec.Lifetime.HardTimeout(); life > 0 {
		// A box that was idle for its whole lifetime has exceeded it. The server
		// stops such boxes if Atoll does not. It must not remove them, because that
		// would remove snapshots too.
		c.AutoStop = hosted.Seconds(life)
	}
	return nil
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	return p.make(ctx, spec, p.request)
}

// make makes a sandbox. ask requests its box.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, ask func(context.Context, *creation) (box, error)) (driver.Instance, error) {
	var c creation
	scope, err := p.Scope()
	if err == nil {
		err = p.complete(&c, spec, scope)
	}
	if err != nil {
		return nil, err
	}
	var b box
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: spec.Lifetime.HardTimeout(), Network: c.Network.digest(),
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = ask(ctx, &c)
			return b.describe(), err
		},
		Confirm: func() error { return p.confirm(b, &c) },
		// The guest stores its configuration in the box. When any client starts the
		// box again, the guest still has it.
		Begin: func(ctx context.Context, in hosted.Inside) error {
			err := p.start(ctx, spec.ID, b.ID)
			if err == nil && c.Network.Outbound.Mode == disabled {
				err = p.isolated(ctx, in)
			}
			return err
		},
	})
}

// request requests a box with an idempotency key. If the answer is lost or
// names another box, request looks for the box by its name. It never uses
// another key.
func (p *Provider) request(ctx context.Context, c *creation) (box, error) {
	where, err := p.api.path(ctx, "/boxes")
	if err != nil {
		return box{}, err
	}
	client, key := p.api.Client, hosted.NewKey()
	client.Sign = func(h http.Header) {
		p.api.Sign(h)
		h.Set("Idempotency-Key", key)
	}
	var b box
	err = client.Call(ctx, http.MethodPost, where, c, &b)
	return p.api.made(ctx, c.Name, b, p.api.check(b, c.Name, err))
}

// made reads back a requested box. A conflict may be with that box itself, if
// the request was repeated.
func (a *api) made(ctx context.Context, name string, b box, err error) (box, error) {
	if hosted.Refused(err) && sandbox.CodeOf(err) != sandbox.CodeConflict {
		return box{}, err
	}
	if err == nil {
		if now, err := a.get(ctx, b.ID); err == nil && now.Name == name {
			return now, nil
		}
	}
	return hosted.Search(ctx, &a.Client, err, func() (box, error) { return a.named(ctx, name) })
}

// confirm checks that a box is as requested.
func (p *Provider) confirm(b box, c *creation) error {
	switch {
	case c.CPUs > 0 && b.CPUs != c.CPUs, c.Memory > 0 && b.Memory != c.Memory:
		return p.ProtocolError("the server does not confirm the size of the box")
	case b.AutoStop != c.AutoStop || b.AutoDelete != c.AutoDelete:
		return p.ProtocolError("the server does not confirm the lifetime of the box")
	}
	return nil
}

// interfaces lists the network interfaces except the loopback.
const interfaces = `while read -r name rest; do case $name in lo:*|Inter-*|face*) ;; *:*) echo "${name%%:*}" ;; esac; done </proc/net/dev`

// isolated checks inside a box that it has no network, because the server does
// not report it.
func (p *Provider) isolated(ctx context.Context, in hosted.Inside) error {
	out, err := in.Run(ctx, interfaces)
	if err == nil && out != "" {
		err = p.ProtocolError("the server attached a network although none was requested")
	}
	return err
}

// digest is a short form of the network settings for places with limited room.
func (n network) digest() string {
	text, _ := json.Marshal(n) // only strings and lists of strings
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
