// Package selfhosted makes sandboxes on a self-hosted machine, which connects to
// this daemon. The machine has a daemon of its own, and this provider is package
// remote over a connection that outlives the loss of messages and of the
// transport: nothing is sent twice, and output continues.
package selfhosted

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of the kind of provider. That of a machine has its id, too.
const Name = "selfhosted"

// Link reaches machines.
type Link interface {
	// Dial connects to the daemon of a machine. An offline machine is
	// CodeUnavailable.
	Dial(ctx context.Context, id string) (net.Conn, error)
	// Credentials returns a key of that daemon, and its provider.
	Credentials(id string) (key, provider string)
}

// Options describe a machine.
type Options struct {
	Dir     string // for this provider alone
	Machine string // its id
	Name    string // for people
	Whole   bool   // the mode whole-machine
	Link    Link
	// Idle is how long an unused connection to the machine is kept. Zero: 30
	// seconds.
	Idle time.Duration
}

// Provider makes sandboxes on a machine.
type Provider struct {
	*remote.Provider
	opts Options
}

var (
	_ driver.Binder    = (*Provider)(nil)
	_ driver.Permanent = (*Provider)(nil)
)

// idle is how long an unused connection to a machine is kept.
const idle = 30 * time.Second

// New opens the provider. The machine need not be online.
func New(o Options) (*Provider, error) {
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Link.Dial(ctx, o.Machine) },
		DisableCompression: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: cmp.Or(o.Idle, idle),
	}
	p, err := remote.New(remote.Options{
		Dir: o.Dir, Address: "http://localhost", Name: "the machine " + o.Name, Transport: signer{o, transport},
	})
	return &Provider{p, o}, err
}

// signer adds the key of the machine's present process to requests, and the epoch
// of the session that they are for.
type signer struct {
	o    Options
	next *http.Transport
}

// RoundTrip implements http.RoundTripper. The key is known when the machine was
// heard, which a connection waits for.
func (s signer) RoundTrip(r *http.Request) (*http.Response, error) {
	key, _ := s.o.Link.Credentials(s.o.Machine)
	if key == "" {
		conn, err := s.o.Link.Dial(r.Context(), s.o.Machine)
		if err != nil {
			return nil, err
		}
		conn.Close()
		key, _ = s.o.Link.Credentials(s.o.Machine)
	}
	res, err := s.send(r, key)
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		return res, err
	}
	now, _ := s.o.Link.Credentials(s.o.Machine)
	if now == key {
		return res, nil
	}
	// The machine's program was started anew since, and did nothing.
	res.Body.Close()
	if r.Body != nil && r.Body != http.NoBody {
		if r.GetBody == nil {
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnavailable, Op: "machine.dial", Message: "the machine's program was restarted during the request", Hint: "try again",
			}
		}
		r = r.Clone(r.Context())
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return s.send(r, now)
}

func (s signer) send(r *http.Request, key string) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+key)
	if session, epoch := span.Epoch(r.Context()); epoch > 0 {
		r.Header.Set(span.SessionHeader, session)
		r.Header.Set(span.EpochHeader, strconv.FormatInt(epoch, 10))
	}
	return s.next.RoundTrip(r)
}

// CloseIdleConnections implements the method that http.Client looks for.
func (s signer) CloseIdleConnections() { s.next.CloseIdleConnections() }

// Unwrap implements driver.Unwrapper.
func (p *Provider) Unwrap() any { return p.Provider }

// Binding implements driver.Binder. It is the machine, which is known without
// asking it.
func (p *Provider) Binding(ctx context.Context) (string, error) { return p.opts.Machine, ctx.Err() }

// Permanent implements driver.Permanent. A machine that people share with agents
// is not gone because its program says so.
func (p *Provider) Permanent() bool { return p.opts.Whole }

// Probe implements driver.Provider.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	facts, err := p.Provider.Probe(ctx)
	facts.Provider = Name + "-" + p.opts.Machine
	if p.opts.Whole {
		facts.Findings = append(facts.Findings, driver.Finding{
			Severity: driver.Warning, Subject: "mode", Message: "whole-machine: commands run with all rights of the machine's owner",
		})
	} else {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: driver.Note, Subject: "mode", Message: "sandboxes: apart from the files of the machine's owner"})
	}
	return facts, err
}
