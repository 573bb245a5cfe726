// Package atolld runs Atoll's daemon inside another Go program. Its client uses
// the same API as any other client, over connections in memory, so
// authorization, policies and the event log apply as usual.
//
// The program is executed again for the kernel of every sandbox and for the
// helper processes of the daemon. So its main function must begin with [Main],
// and it must be built with CGO_ENABLED=0.
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
	_ "github.com/atoll-run/atoll/internal/guest/early" // must be initialised first
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/provider/gvisor"
)

// Main must be called first in main. In the program itself it returns at once.
// In a process that runs a part of a sandbox, the egress gateway or the server
// of a bucket, it never returns.
func Main() {
	egress.Main()
	gvisor.Main()
	bucket.Main()
}

// Provider is a provider whose driver is part of the program.
type Provider struct {
	Name    string // replaces a built-in provider of the same name
	Summary string // one line
	Warning string // shown whenever it runs a command; usually empty
	// Driver is an open provider, which the Server closes. Exactly one of Driver
	// and Open is set.
	Driver driver.Provider
	// Open opens the provider when it is first needed. dir is a directory for this
	// provider only, which may be missing. options are those of
	// Server.ProviderOptions.
	Open func(dir string, options json.RawMessage) (driver.Provider, error)
}

func (p Provider) entry() (providerset.Entry, error) {
	e := providerset.Entry{Name: p.Name, Summary: p.Summary, Warning: p.Warning}
	if (p.Driver == nil) == (p.Open == nil) {
		return e, errors.New("atolld: provider " + p.Name + " needs either a Driver or a way to Open one")
	}
	e.Open = func(h providerset.Host) (driver.Provider, error) {
		if p.Driver != nil {
			return p.Driver, nil
		}
		return p.Open(h.Dir, h.Options)
	}
	return e, nil
}

// Server is a daemon. Its exported fields must not be changed after Start. The
// zero value uses the user's own state directory.
type Server struct {
	// StateDir is the state directory. Only one daemon may use it. Empty: the
	// default of the command line.
	StateDir string
	// Store is the address of a PostgreSQL database that several daemons share.
	// It may hold a password. Empty: a file in StateDir.
	Store string
	// Blobs is the address of the store of workspaces and snapshots: a directory,
	// or s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Empty: a directory in
	// StateDir.
	Blobs string
	// ShareImages is the address of a store, as for Blobs, below whose images/ this
	// daemon shares images of registries with other daemons. Empty: Blobs, if set.
	ShareImages string
	// ShareImagesKeep is how long parts of images that nobody uses stay in images/ of
	// Blobs; less than 14 days counts as 14. Zero: forever.
	ShareImagesKeep time.Duration
	// Buckets are S3 buckets that can be workspaces, each "[TENANT/]NAME=ADDRESS".
	Buckets []string
	// Provider is the default provider. Empty: gvisor.
	Provider string
	// Providers are providers in addition to the built-in ones.
	Providers []Provider
	// ProviderOptions are options of providers, as JSON objects, by name.
	ProviderOptions map[string]json.RawMessage
	// SharedProviders are the providers that callers with an API key may choose, in
	// addition to Provider. The owner of the machine may choose any.
	SharedProviders []string
	// Policies is a policy file, or a directory of policy files. Empty: there are
	// no policies.
	Policies string
	// Egress are settings for the networks of all sandboxes.
	Egress Egress
	// Socket also serves the API on a Unix socket in StateDir, for the command line
	// and other programs of this user.
	Socket bool
	// Listen is a TCP address for callers with an API key. It needs TLS, unless it
	// is a loopback address and Plain is set. Empty: none.
	Listen string
	TLS    *tls.Config
	Plain  bool
	Hosts  []string // names of this machine, besides localhost and addresses
	// AuditKeep is how long events are kept. Zero: forever.
	AuditKeep time.Duration
	// Pool is the number of warm sandboxes to keep per image (0 disables it).
	Pool int
	// Logger gets the log of the daemon. Nil discards it.
	Logger *slog.Logger

	mu     sync.Mutex
	daemon *daemon.Daemon
	closed bool
}

// Egress are settings for the networks of all sandboxes. Empty fields are taken
// from the environment variables ATOLL_EGRESS_*.
type Egress struct {
	Allow []string // non-public addresses and CIDRs that rules may allow
	Proxy string   // http:// or socks5:// proxy for all connections; it may hold a password
	Roots string   // PEM file of certificate authorities to trust in addition to the machine's
	Hosts string   // file of names and addresses, like /etc/hosts

	// HostPorts are ports on the machine's loopback that rules may allow, under the
	// name sandbox.MachineHost.
	HostPorts []string
}

// Start starts the daemon. When it returns, the daemon serves requests. The
// context bounds the start only. If another daemon uses the same StateDir,
// Start returns CodeConflict. The caller closes the Server.
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
		StateDir: s.StateDir, Store: s.Store, Blobs: s.Blobs, ShareImages: s.ShareImages, ShareImagesKeep: s.ShareImagesKeep, Buckets: s.Buckets,
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
func (s *Server) entries() ([]providerset.Entry, error) {
	entries := all.Builtin()
	for _, p := range s.Providers {
		e, err := p.entry()
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(entries, func(b providerset.Entry) bool { return b.Name == e.Name }); i >= 0 {
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

// Close shuts the daemon down. Sandboxes keep running; the next daemon on the
// same StateDir finds them again. Close is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.daemon == nil {
		return nil
	}
	return s.daemon.Close()
}
