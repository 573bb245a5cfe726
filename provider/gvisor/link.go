package gvisor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/atoll-run/atoll/sandbox"
)

// Link is a sandbox's network card: one end of a connected SOCK_SEQPACKET
// socket, each of whose messages is one IP packet. There is no interface, no
// bridge and no address on the host.
type Link struct {
	File      *os.File       // the provider closes it
	MTU       int            // bytes
	Addresses []netip.Prefix // of the sandbox
	Gateways  []netip.Addr   // at most one of each family; the default routes
	DNS       netip.Addr     // the name server
	CA        []byte         // PEM, of the authority that programs inside should trust; empty: none
}

// Known is a sandbox's knowledge about its network. A sandbox that is restored
// from its memory or files must get the same network.
type Known struct {
	Names map[string]uint16 // host names by the number of their address
	CA    []byte            // the certificate that they trust, DER
}

// Network connects sandboxes with what they may reach. Its methods are called
// concurrently.
type Network interface {
	// Connect creates the network card of a sandbox. former is the knowledge of
	// its snapshot, empty if it has none.
	Connect(ctx context.Context, spec *sandbox.Spec, former Known) (*Link, error)
	// Known returns the knowledge of a sandbox, empty if it has no network.
	Known(ctx context.Context, id sandbox.ID) (Known, error)
}

// linkName is the name of the network card inside.
const linkName = "eth0"

// connect starts to create the link of a sandbox with a network, while its
// kernel starts. The returned function waits for the link. It is nil for a
// sandbox without a network.
func (p *Provider) connect(ctx context.Context, spec *sandbox.Spec, former Known) func() (*Link, error) {
	if !spec.Network.Asked() {
		return func() (*Link, error) { return nil, nil }
	}
	if p.opts.Network == nil {
		return func() (*Link, error) {
			return nil, &providerError{sandbox.CodeUnsupported, "sandboxes cannot be given a network here", nil}
		}
	}
	type result struct {
		link *Link
		err  error
	}
	made := make(chan result, 1)
	go func() {
		l, err := p.opts.Network.Connect(ctx, spec, former)
		made <- result{l, err}
	}()
	return sync.OnceValues(func() (*Link, error) {
		r := <-made
		return r.link, r.err
	})
}

// closeLink closes our copy of a link that a kernel has, or that is not needed.
func closeLink(wait func() (*Link, error)) {
	if l, _ := wait(); l != nil {
		l.File.Close()
	}
}

// setNetwork configures the network of a kernel that has not started anything:
// a loopback, and the link if there is one.
func setNetwork(conn *urpc.Client, link *Link) error {
	if err := conn.Call(boot.ContMgrSetNetworkArgs, networkArgs(link), nil); err != nil {
		return fmt.Errorf("setting up the network: %w", err)
	}
	return nil
}

// addLinkCall makes a running kernel add network cards.
const addLinkCall = "Network.CreateLinksAndRoutes"

// addLink adds a link to a running kernel. The kernel has its loopback already,
// whose addresses need no route.
func addLink(conn *urpc.Client, link *Link) error {
	args := networkArgs(link)
	args.LoopbackLinks = nil
	args.FDBasedLinks[0].IsPacket = []bool{false}
	args.FDBasedLinks[0].PreConfigured = true // configuring it takes system calls that the kernel has given up
	if err := conn.Call(addLinkCall, args, nil); err != nil {
		return fmt.Errorf("adding the network: %w", err)
	}
	return nil
}

// networkArgs describes the network for a kernel that starts or is restored.
func networkArgs(link *Link) *boot.CreateLinksAndRoutesArgs {
	args := &boot.CreateLinksAndRoutesArgs{LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink}}
	if link == nil {
		return args
	}
	card := boot.FDBasedLink{
		Name: linkName, MTU: link.MTU, NumChannels: 1,
		// Packets between two processes of one machine cannot be damaged.
		TXChecksumOffload: true, RXChecksumOffload: true,
		QDisc: config.QDiscNone,
	}
	for _, a := range link.Addresses {
		card.Addresses = append(card.Addresses, boot.IPWithPrefix{Address: a.Addr().AsSlice(), PrefixLen: a.Bits()})
	}
	for _, gw := range link.Gateways {
		// The gateway is the only peer, so the card itself is the route.
		all := net.IPNet{IP: make(net.IP, gw.BitLen()/8), Mask: net.CIDRMask(0, gw.BitLen())}
		card.Routes = append(card.Routes, boot.Route{Destination: all})
	}
	args.FDBasedLinks = []boot.FDBasedLink{card}
	args.FilePayload = urpc.FilePayload{Files: []*os.File{link.File}}
	return args
}
