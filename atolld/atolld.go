// Package atolld runs Atoll's daemon inside another Go program. Its client
// speaks the same API as any other, through memory, so that the daemon
// authorises and records what it does.
//
// A program that uses it is executed again for the kernel of every sandbox and
// for the helper processes of the daemon, so its main function begins with
// [Main], and it is built with CGO_ENABLED=0.
package atolld

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/gateway/egress"
	_ "github.com/atoll-run/atoll/internal/guest/early" // must see the process before everything else
	"github.com/atoll-run/atoll/internal/registry"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/provider/gvisor"
)

// Main must be called first in main. It returns at once in the program itself,
// and never in a process that is a part of a sandbox, the egress gateway or the
// server of a bucket.
func Main() {
	egress.Main()
	gvisor.Main()
	bucket.Main()
}

// Provider makes sandboxes with a driver of the program's own.
type Provider struct {
	Name    string // one with the name of a built-in provider replaces that
	Summary string // one line
	Warning string // shown whenever it runs something; usually empty
	// Driver is an open provider, which the Server closes. Exactly one of Driver
	// and Open is set.
	Driver driver.Provider
	// Open opens the provider when it is first needed. dir is a directory for it
	// alone, which may be missing; options are those of Server.ProviderOptions.
	Open func(dir string, options json.RawMessage) (driver.Provider, error)
}

func (p Provider) entry() (registry.Entry, error) {
	e := registry.Entry{Name: p.Name, Summary: p.Summary, Warning: p.Warning}
	if (p.Driver == nil) == (p.Open == nil) {
		return e, errors.New("atolld: provider " + p.Name + " needs either a Driver or a way to Open one")
	}
	e.Open = func(h registry.Host) (driver.Provider, error) {
		if p.Driver != nil {
			return p.Driver, nil
		}
		return p.Open(h.Dir, h.Options)
	}
	return e, nil
}

// Server is a daemon. Its exported fields may be changed until Start; the zero
// value works on the user's own state directory, alone.
type Server struct {
	// StateDir is where state is kept, and belongs to this daemon alone.
	// Empty: as the command line would choose.
	StateDir string
	// Store is the address of a PostgreSQL database that several daemons share.
	// It may hold a password. Empty: a file in StateDir.
	Store string
	// Blobs is the address of the store of workspaces and snapshots: a directory,
	// or s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Empty: a directory in
	// StateDir.
	Blobs string
	// Buckets are those that can be workspaces, each "[TENANT/]NAME=ADDRESS".
	Buckets []string
	// Provider makes the sandboxes that ask for no other. Empty: gvisor.
	Provider string
	// Providers are available besides those that are built in.
	Providers []Provider
	// ProviderOptions are options of providers, as JSON objects, by name.
	ProviderOptions map[string]json.RawMessage
	// SharedProviders are those that callers with an API key may choose besides
	// Provider. The owner of the machine may choose any.
	SharedProviders []string
	// Policies is a file, or a directory of files, that limits what sandboxes may
	// be. Empty: nothing does.
	Policies string
	// Egress is what the owner of the machine decides about all networks.
	Egress Egress
	// Socket also serves the command line and other programs of this user,
	// on a socket in StateDir.
	Socket bool
	// Listen is a TCP address to serve callers with an API key on, with TLS. A
	// loopback address may do without if Plain is set. Empty: none.
	Listen string
	TLS    *tls.Config
	Plain  bool
	Hosts  []string // names of this machine, besides localhost and addresses
	// AuditKeep is how long events are kept. Zero: for ever.
	AuditKeep time.Duration
	// Pool is the number of warm sandboxes to keep per image (0 disables it).
	Pool int
	// Logger gets what no caller can be told. Nil discards it.
	Logger *slog.Logger

	mu     sync.Mutex
	daemon *daemon.Daemon
	closed bool
}

// Egress is what the owner of the machine decides about the networks of all
// sandboxes. Empty fields are taken from ATOLL_EGRESS_ALLOW and its like.
type Egress struct {
	Allow []string // addresses and CIDRs that rules may allow although they are not public
	Proxy string   // http:// or socks5:// for all that leaves; it may hold a password
	Roots string   // PEM file of authorities that are trusted besides the machine's
	Hosts string   // file of names with addresses, as /etc/hosts

	// HostPorts are ports of the machine's loopback that rules may open, by the
	// name sandbox.MachineHost.
	HostPorts []string
}

// Start starts the daemon: when it returns, it answers. The context bounds the
// start only. A daemon that works on the same StateDir is CodeConflict. The
// caller closes the Server.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon != nil || s.closed {
		return errors.New("atolld: the server was started before")
	}
	providers, err := s.entries()
	if err != nil {
		return err
	}
	d, err := daemon.Start(ctx, daemon.Options{
		StateDir: s.StateDir, Store: s.Store, Blobs: s.Blobs, Buckets: s.Buckets,
		Provider: s.Provider, Providers: providers, ProviderOptions: s.ProviderOptions, SharedProviders: s.SharedProviders,
		Policies: s.Policies, Egress: daemon.Egress(s.Egress), AuditKeep: s.AuditKeep, Pool: s.Pool,
		Socket: s.Socket, Listen: s.Listen, TLS: s.TLS, Plain: s.Plain, Hosts: s.Hosts, Logger: s.Logger,
	})
	if err != nil {
		return err
	}
	s.daemon = d
	return nil
}

// entries returns the built-in providers and those of the program.
func (s *Server) entries() ([]registry.Entry, error) {
	entries := all.Builtin()
	for _, p := range s.Providers {
		e, err := p.entry()
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(entries, func(b registry.Entry) bool { return b.Name == e.Name }); i >= 0 {
			entries[i] = e
			continue
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Client returns a client of the started daemon, which the caller closes.
func (s *Server) Client() (*atoll.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon == nil || s.closed {
		return nil, errors.New("atolld: the server does not run")
	}
	return atoll.New(atoll.Options{Transport: s.daemon.Memory().Transport()})
}

// Addr returns the TCP address that the daemon listens on, nil without one.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon == nil {
		return nil
	}
	return s.daemon.TCP()
}

// Close ends the daemon in good order. Sandboxes live on, and are found again
// by the next one on the same StateDir. Close is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.daemon == nil {
		return nil
	}
	return s.daemon.Close()
}
