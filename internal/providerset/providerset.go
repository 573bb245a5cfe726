// Package providerset holds the providers of a daemon, or of a command without a
// daemon: an explicit list of entries, each opened on first use.
package providerset

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// Host has the machine's resources for a provider.
type Host struct {
	// Dir is a directory for this provider alone. It may not exist yet.
	Dir string
	// Snapshots is the directory for its snapshots. It may not exist yet.
	Snapshots string
	LookupEnv func(string) (string, bool)
	// Options are the provider's own options, as a JSON object. See Decode.
	Options json.RawMessage
	// Images opens the image store, which the host closes.
	Images func() (*image.Store, error)
	// Network connects sandboxes to the egress gateway. Nil: there is none.
	Network Network
	// Attached ends sandboxes with this process, if the provider supports it.
	Attached bool
	// Pool is the number of warm sandboxes to keep per image (0 disables it).
	Pool int
}

// Network connects sandboxes to the egress gateway. It must be safe for
// concurrent use.
type Network interface {
	// Connect creates the network card of a sandbox. former is what programs in
	// the sandbox know from before a snapshot; it may be empty.
	Connect(ctx context.Context, spec *sandbox.Spec, former gateway.Known) (*gateway.Link, error)
	// ConnectEthernet is like Connect for the card of a virtual machine, which sends
	// Ethernet frames.
	ConnectEthernet(ctx context.Context, spec *sandbox.Spec, former gateway.Known) (*gateway.Link, error)
	// Known returns what programs in a sandbox know about its network. It is empty
	// for a sandbox without a network.
	Known(ctx context.Context, id sandbox.ID) (gateway.Known, error)
}

// Decode decodes the provider's options into a struct. Unknown options are
// CodeInvalid.
func (h Host) Decode(into any) error {
	if len(h.Options) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(h.Options))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: "options", Message: err.Error()}
	}
	return nil
}

// Env returns an environment variable, empty if it is not set.
func (h Host) Env(name string) string {
	if h.LookupEnv == nil {
		return ""
	}
	v, _ := h.LookupEnv(name)
	return v
}

// Entry is a provider that can be opened.
type Entry struct {
	Name    string
	Summary string // one line
	Warning string // shown when the provider runs a command; usually empty
	// Isolation is that of its sandboxes, if its driver does not say.
	Isolation sandbox.Isolation
	// Check reports missing credentials, given a function that returns environment
	// variables, before anything uses the network. Nil: there is nothing to check.
	Check func(env func(string) string) error
	Open  func(Host) (driver.Provider, error)
}

// Registry opens providers by name, each once. It is safe for concurrent use.
// The caller closes it.
type Registry struct {
	entries []Entry
	host    func(name string) Host

	mu     sync.Mutex
	opened map[string]*opening
	closed bool
}

// opening is the state of a provider.
type opening struct {
	mu       sync.Mutex // held while the provider is being opened
	provider *Provider  // nil: not yet, or the last attempt failed
}

// New returns a registry of entries, the default first. host returns the
// resources of a provider by name. An invalid or repeated name is CodeInvalid.
func New(host func(name string) Host, entries ...Entry) (*Registry, error) {
	r := &Registry{entries: slices.Clone(entries), host: host, opened: map[string]*opening{}}
	for _, e := range entries {
		if err := sandbox.ValidateName(e.Name); err != nil || e.Open == nil {
			return nil, invalid(e.Name, "the provider cannot be registered: it needs a valid name and a way to open it")
		}
		if r.opened[e.Name] != nil {
			return nil, invalid(e.Name, "the provider is registered twice")
		}
		r.opened[e.Name] = &opening{}
	}
	if len(entries) == 0 {
		return nil, invalid("", "there are no providers")
	}
	return r, nil
}

func invalid(subject, message string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "provider.open", Subject: subject, Message: message}
}

// Entries returns all providers, the default first.
func (r *Registry) Entries() []Entry { return slices.Clone(r.entries) }

// Names returns the names of all providers, the default first.
func (r *Registry) Names() []string {
	names := make([]string, len(r.entries))
	for i, e := range r.entries {
		names[i] = e.Name
	}
	return names
}

// Lookup returns the entry with that name. An unknown name is CodeInvalid.
func (r *Registry) Lookup(name string) (Entry, error) {
	for _, e := range r.entries {
		if e.Name == name {
			return e, nil
		}
	}
	return Entry{}, &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "provider.open", Subject: name, Message: "there is no such provider",
		Hint: "choose one of: " + strings.Join(r.Names(), ", "),
	}
}

// Open returns a provider, and opens it on first use. The registry closes it.
// After a failure, the next call tries again.
func (r *Registry) Open(ctx context.Context, name string) (*Provider, error) {
	entry, err := r.Lookup(name)
	if err != nil {
		return nil, err
	}
	o := r.opened[name]
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.provider != nil {
		return o.provider, nil
	}
	d, err := r.Fresh(entry.Name)
	if err != nil {
		return nil, err
	}
	p := &Provider{Provider: d, Name: name, isolation: entry.Isolation}
	if b, ok := driver.As[driver.Binder](d); ok {
		if p.Binding, err = b.Binding(ctx); err != nil {
			return nil, errors.Join(unavailable(name, err), d.Close())
		}
	}
	if b, ok := driver.As[driver.FormerBinder](d); ok {
		if p.Former, err = b.FormerBindings(ctx); err != nil {
			return nil, errors.Join(unavailable(name, err), d.Close())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.Join(unavailable(name, errors.New("the registry is closed")), d.Close())
	}
	o.provider = p
	return p, nil
}

// Fresh opens a new instance of a provider, unless credentials are missing.
// The caller closes it.
func (r *Registry) Fresh(name string) (driver.Provider, error) {
	entry, err := r.Lookup(name)
	if err != nil {
		return nil, err
	}
	host := r.host(name)
	if entry.Check != nil {
		if err := entry.Check(host.Env); err != nil {
			return nil, err
		}
	}
	d, err := entry.Open(host)
	if err != nil {
		return nil, unavailable(name, err)
	}
	return d, nil
}

func unavailable(name string, err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "provider.open", Subject: name, Message: err.Error(),
		Hint: "see what this machine lacks with: atoll doctor", Cause: err,
	}
}

// Close closes all open providers. It does not end sandboxes. It is idempotent.
func (r *Registry) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	var failed []error
	for _, name := range r.Names() {
		if p := r.opened[name].provider; p != nil {
			failed = append(failed, p.Close())
		}
	}
	return errors.Join(failed...)
}
