package node

import (
	"context"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// linked reports whether sandboxes of a provider can be given a network.
func (n *Node) linked(provider string) bool { return provider == gvisor.Name }

// openGateway prepares the gateway of the sandboxes of this process, or of all
// that outlive it. Its own process starts with the first of them.
func (n *Node) openGateway(attached bool) (*gateway.Gateway, error) {
	g, err := gateway.New(gateway.Options{Dir: filepath.Join(n.dir, "gateway"), Executable: n.kernel, Linger: !attached})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.egress = append(n.egress, g)
	return g, nil
}

// linkFor makes the network cards of sandboxes, and has the gateway serve them
// by the sandbox's policy.
func (n *Node) linkFor(attached bool) func(context.Context, *sandbox.Spec) (*gvisor.Link, error) {
	return func(ctx context.Context, spec *sandbox.Spec) (*gvisor.Link, error) {
		p, err := n.policy(ctx, spec)
		if err != nil {
			return nil, err
		}
		g, err := n.networks[attached]()
		if err != nil {
			return nil, err
		}
		l, err := g.Connect(ctx, spec.ID, p, nil)
		if err != nil {
			return nil, err
		}
		return &gvisor.Link{File: l.File, MTU: l.MTU, Addresses: l.Addresses, Gateways: l.Gateways, DNS: l.DNS, CA: l.CA}, nil
	}
}

// policy is what a sandbox may do by its Spec alone.
func (n *Node) policy(_ context.Context, spec *sandbox.Spec) (gateway.Policy, error) {
	profile, ok := spec.Network.Local()
	if !ok {
		return gateway.Policy{}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "sandbox.create", Subject: "network", Message: "named profiles are kept by a daemon, and none is involved",
			Hint: "start one with: atoll up, or name the hosts with --egress",
		}
	}
	if len(spec.Secrets) > 0 {
		return gateway.Policy{}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "sandbox.create", Subject: "secrets", Message: "secrets are kept by a daemon, and none is involved",
			Hint: "start one with: atoll up",
		}
	}
	return gateway.Policy{Profile: profile}, nil
}
