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

// openGateway prepares the gateway of all sandboxes of this process. Its own
// process starts with the first of them.
func (n *Node) openGateway() (*gateway.Gateway, error) {
	g, err := gateway.New(gateway.Options{Dir: filepath.Join(n.dir, "gateway"), Executable: n.kernel})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.egress = g
	return g, nil
}

// link makes the network card of a sandbox, and has the gateway serve it by the
// sandbox's policy.
func (n *Node) link(ctx context.Context, spec *sandbox.Spec) (*gvisor.Link, error) {
	profile, ok := spec.Network.Local()
	if !ok {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "sandbox.create", Subject: "network", Message: "named profiles are kept by a daemon, and none is involved",
			Hint: "start one with: atoll up, or name the hosts with --egress",
		}
	}
	if len(spec.Secrets) > 0 {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "sandbox.create", Subject: "secrets", Message: "secrets are kept by a daemon, and none is involved",
			Hint: "start one with: atoll up",
		}
	}
	g, err := n.network()
	if err != nil {
		return nil, err
	}
	l, err := g.Connect(ctx, spec.ID, gateway.Policy{Profile: profile}, nil)
	if err != nil {
		return nil, err
	}
	return &gvisor.Link{File: l.File, MTU: l.MTU, Addresses: l.Addresses, Gateways: l.Gateways, DNS: l.DNS, CA: l.CA}, nil
}
