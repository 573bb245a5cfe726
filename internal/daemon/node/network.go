package node

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// Egress has the daemon's functions for the traffic of sandboxes.
type Egress struct {
	// With calls connect with the policy of a sandbox. The policy cannot change
	// before it returns. Nil: the policy follows from the Spec alone.
	With func(ctx context.Context, spec *sandbox.Spec, connect func(gateway.Policy) error) error
	// Event is called for every decision. It must not block.
	Event func(sandbox.ID, gateway.Event)
	// Own returns the daemon's own ports, which sandboxes cannot reach.
	Own    func() []netip.AddrPort
	Logger *slog.Logger
}

// DecideEgress sets the egress functions. Call it before the first sandbox is
// created.
func (n *Node) DecideEgress(e Egress) { n.decide = e }

// Gateway returns the gateway of sandboxes that outlive this process. The node
// closes it.
func (n *Node) Gateway() (*gateway.Gateway, error) { return n.networks[false]() }

// openGateway prepares the gateway of the sandboxes of this process (attached),
// or of those that outlive it. The gateway process is started for the first
// sandbox.
func (n *Node) openGateway(attached bool) (*gateway.Gateway, error) {
	operator, err := n.Operator()
	if err != nil {
		return nil, err
	}
	world := func() gateway.Settings {
		var own []netip.AddrPort
		if n.decide.Own != nil {
			own = n.decide.Own()
		}
		return settings(operator, own)
	}
	g, err := gateway.New(gateway.Options{
		Dir: filepath.Join(n.dir, "gateway"), Executable: n.kernel, Linger: !attached,
		Settings: world, Event: n.decide.Event, Logger: n.decide.Logger,
	})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.egress = append(n.egress, g)
	return g, nil
}

// network connects sandboxes of the node to one of its gateways. It implements
// registry.Network.
type network struct {
	n        *Node
	attached bool
}

func (w network) Connect(ctx context.Context, spec *sandbox.Spec, former gateway.Known) (*gateway.Link, error) {
	return w.connect(ctx, spec, former, (*gateway.Gateway).Connect)
}

func (w network) ConnectEthernet(ctx context.Context, spec *sandbox.Spec, former gateway.Known) (*gateway.Link, error) {
	return w.connect(ctx, spec, former, (*gateway.Gateway).ConnectEthernet)
}

// connect makes a link with one of the gateway's methods.
func (w network) connect(ctx context.Context, spec *sandbox.Spec, former gateway.Known, how func(*gateway.Gateway, context.Context, sandbox.ID, gateway.Policy, gateway.Known) (*gateway.Link, error)) (l *gateway.Link, err error) {
	g, err := w.n.networks[w.attached]()
	if err != nil {
		return nil, err
	}
	with := w.n.decide.With
	if with == nil {
		with = alone
	}
	err = with(ctx, spec, func(p gateway.Policy) (err error) {
		l, err = how(g, ctx, spec.ID, p, former)
		return err
	})
	return l, err
}

func (w network) Known(ctx context.Context, id sandbox.ID) (gateway.Known, error) {
	g, err := w.n.networks[w.attached]()
	if err != nil {
		return gateway.Known{}, err
	}
	return g.Known(ctx, id)
}

// alone connects a sandbox with the policy in its Spec.
func alone(_ context.Context, spec *sandbox.Spec, connect func(gateway.Policy) error) error {
	profile, ok := spec.Network.Local()
	if !ok {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "sandbox.create", Subject: "network", Message: "named profiles need a daemon",
			Hint: "start one with: atoll up, or name the hosts with --egress",
		}
	}
	if len(spec.Secrets) > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "sandbox.create", Subject: "secrets", Message: "secrets need a daemon",
			Hint: "start one with: atoll up",
		}
	}
	return connect(gateway.Policy{Profile: profile})
}
