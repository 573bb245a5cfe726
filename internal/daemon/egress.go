package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/events"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/daemon/node"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	decisionQueue  = 4096
	decisionPeriod = 500 * time.Millisecond // period in which similar decisions are combined to one record
	flushTime      = 10 * time.Second       // for a gateway that is slow
)

// egress connects the gateway and the control plane: it passes policies to the
// gateway, and decisions of the gateway to the log.
type egress struct {
	d         *Daemon
	decisions chan decided
	flushes   chan chan struct{}
	settle    func(context.Context) error // waits until all decisions so far are in the channel
}

type decided struct {
	id sandbox.ID
	e  gateway.Event
}

func newEgress(d *Daemon) *egress {
	e := &egress{d: d, decisions: make(chan decided, decisionQueue), flushes: make(chan chan struct{})}
	e.settle = func(ctx context.Context) error {
		g, err := d.node.Gateway()
		if err != nil {
			return err
		}
		return g.Flush(ctx)
	}
	return e
}

// configure sets the node's egress functions.
func (e *egress) configure() {
	e.d.node.DecideEgress(node.Egress{
		Logger: e.d.opts.Logger,
		Own:    e.d.ownPorts,
		Event:  e.hear,
		With: func(ctx context.Context, spec *sandbox.Spec, connect func(gateway.Policy) error) error {
			return e.d.services.Profiles.With(ctx, spec.ID, func(p profiles.Egress) error { return connect(policyOf(p)) })
		},
	})
}

// hear queues a decision of the gateway.
func (e *egress) hear(id sandbox.ID, ev gateway.Event) {
	select {
	case e.decisions <- decided{id, ev}:
	default: // the gateway limits the events of one sandbox; the channel limits those of all
	}
}

// startEgress records decisions, and takes over links of an earlier daemon.
func (d *Daemon) startEgress(ctx context.Context, e *egress) error {
	life, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { e.record(life) })
	d.onClose(func() error {
		stop()
		work.Wait()
		return nil
	})
	g, err := d.node.Gateway()
	if err != nil {
		return err
	}
	d.gatewayFailed(g.Resume(ctx))
	return nil
}

// enforceEgress passes all rules to the gateway: an earlier daemon may have ended
// before it passed on a change.
func (d *Daemon) enforceEgress(ctx context.Context) {
	d.gatewayFailed(d.services.Profiles.EnforceAll(ctx))
}

// gatewayFailed logs an error of the gateway. Sandboxes without a network are not
// affected, so the daemon starts anyway.
func (d *Daemon) gatewayFailed(err error) {
	if err != nil {
		d.opts.Logger.Error("gateway failed", "error", err)
	}
}

// ownPorts are the daemon's own ports. Sandboxes cannot reach them through the
// gateway, even if the operator allows the addresses.
func (d *Daemon) ownPorts() []netip.AddrPort {
	var own []netip.AddrPort
	e2b := d.e2b.settings().Listen
	if addr := d.e2b.address(); addr != nil {
		e2b = addr.String()
	}
	for _, listen := range []string{d.opts.Listen, e2b, d.opts.Bridge.Listen, d.console.address()} {
		_, port, err := net.SplitHostPort(listen)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
			own = append(own, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(n)), netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(n)))
		}
	}
	return own
}

// SetEgress implements profiles.Gateway.
func (e *egress) SetEgress(ctx context.Context, id sandbox.ID, p profiles.Egress) error {
	g, err := e.d.node.Gateway()
	if err != nil {
		return err
	}
	return g.SetPolicy(ctx, id, policyOf(p))
}

func policyOf(p profiles.Egress) gateway.Policy {
	out := gateway.Policy{Profile: p.Profile, ProxyPassword: p.ProxyPassword.Reveal()}
	for _, c := range p.EgressLimits {
		out.EgressLimits = append(out.EgressLimits, messages.EgressLimit(c))
	}
	for _, s := range p.Secrets {
		out.Secrets = append(out.Secrets, messages.Secret{
			Name: s.Name, Version: int(s.Version), Value: s.Value.Reveal(), Placeholder: s.Placeholder,
			Hosts: s.Hosts, SwapHosts: s.SwapHosts, In: s.In,
		})
	}
	return out
}

// kind groups decisions that are combined to one record.
type kind struct {
	id      sandbox.ID
	typ     eventlog.Type
	rule    string
	subject string
}

// summary is the sum of combined decisions.
type summary struct {
	times int
	bytes int64
}

// record writes decisions to the log until ctx ends.
func (e *egress) record(ctx context.Context) {
	pending := map[kind]*summary{}
	tick := time.NewTicker(decisionPeriod)
	defer tick.Stop()
	for {
		select {
		case d := <-e.decisions:
			e.gather(ctx, pending, d)
		case done := <-e.flushes:
			for len(e.decisions) > 0 {
				e.gather(ctx, pending, <-e.decisions)
			}
			e.write(ctx, pending)
			clear(pending)
			close(done)
		case <-tick.C:
			e.write(ctx, pending)
			clear(pending)
		case <-ctx.Done():
			e.write(context.WithoutCancel(ctx), pending)
			return
		}
	}
}

// gather adds a decision to its summary.
func (e *egress) gather(ctx context.Context, pending map[kind]*summary, d decided) {
	k := kind{d.id, typeOf(d.e.Verdict), d.e.Rule, subjectOf(d.e)}
	s := pending[k]
	if s == nil {
		s = &summary{}
		pending[k] = s
	}
	s.times, s.bytes = s.times+1+d.e.Missed, s.bytes+d.e.Sent+d.e.Got
	e.used(ctx, d)
}

// flush returns when all decisions made so far have been recorded.
func (e *egress) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	e.note(e.settle(ctx))
	done := make(chan struct{})
	select {
	case e.flushes <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// heard is an event service that first flushes decisions of the gateway.
type heard struct {
	*events.Service
	egress *egress
}

// Events implements api.Events.
func (h heard) Events(ctx context.Context, q sandbox.EventQuery) ([]sandbox.Event, error) {
	if slices.Contains(q.Ops, string(ops.EgressFlow)) {
		h.egress.flush(ctx)
	}
	return h.Service.Events(ctx, q)
}

func (e *egress) write(ctx context.Context, pending map[kind]*summary) {
	for k, s := range pending {
		if s.times > 1 {
			k.subject += fmt.Sprintf(" ×%d", s.times)
		}
		err := e.d.services.Profiles.Decided(ctx, k.id, profiles.Decision{Type: k.typ, Subject: k.subject, Rule: k.rule, Bytes: s.bytes})
		e.note(err)
	}
}

// used records the use of secrets.
func (e *egress) used(ctx context.Context, d decided) {
	for _, s := range d.e.Secrets {
		name, version, _ := strings.Cut(s, "@")
		n, _ := strconv.ParseInt(version, 10, 64)
		e.note(e.d.services.Profiles.SecretUsed(ctx, d.id, profiles.SecretUse{Secret: name, Version: n, Rule: d.e.Rule, Host: d.e.Host}))
	}
}

func (e *egress) note(err error) {
	switch sandbox.CodeOf(err) {
	case "", sandbox.CodeNotFound, sandbox.CodeGone: // the sandbox is gone
	default:
		e.d.opts.Logger.Error("recording egress failed", "error", err)
	}
}

func typeOf(v messages.Verdict) eventlog.Type {
	switch v {
	case messages.Allowed:
		return eventlog.EgressAllowed
	case messages.Limited:
		return eventlog.EgressLimited
	case messages.Failed:
		return eventlog.EgressFailed
	}
	return eventlog.EgressDenied
}

// subjectOf describes the traffic and the reason for the decision in one line.
func subjectOf(e gateway.Event) string {
	host := cmp.Or(e.Host, "")
	if host == "" && e.Addr.IsValid() {
		host = e.Addr.String()
	}
	if e.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
	}
	text := e.Kind + " " + host
	if e.Method != "" {
		text = fmt.Sprintf("%s %s %s%s %d", e.Kind, e.Method, host, e.Path, e.Status)
	}
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	return text
}
