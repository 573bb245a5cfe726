// Package all lists the providers that Atoll is built with. Nothing in it is
// constructed before it is asked for by name.
package all

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// Options are what a provider may need to know of the node it works for.
type Options struct {
	// StateDir is a directory for this provider alone. It may be missing.
	StateDir string
	// Images opens the node's images, which the node closes.
	Images func() (*image.Store, error)
	// Network connects sandboxes that ask for it, for providers that can use
	// one. Nil: there is no network.
	Network gvisor.Network
	// Attached makes sandboxes end with this process, if the provider can.
	Attached bool
	// Pool is how many sandboxes the provider may make ahead, if it can.
	Pool int
}

// Entry is a provider that can be opened.
type Entry struct {
	Name    string
	Summary string // one line for a person
	Warning string // what everybody who uses it must know; empty for most
	Open    func(Options) (driver.Provider, error)
}

// Registry is a list of providers, the default first. It does not change, and
// may be used concurrently.
type Registry struct{ entries []Entry }

// NewRegistry returns a registry. It panics if a name is not usable or appears
// twice: the list is part of the program.
func NewRegistry(entries ...Entry) *Registry {
	seen := map[string]bool{}
	for _, e := range entries {
		if err := sandbox.ValidateName(e.Name); err != nil || e.Open == nil {
			panic(fmt.Sprintf("provider %q cannot be registered", e.Name))
		}
		if seen[e.Name] {
			panic(fmt.Sprintf("provider %q is registered twice", e.Name))
		}
		seen[e.Name] = true
	}
	return &Registry{slices.Clone(entries)}
}

// Entries returns all providers, the default first.
func (r *Registry) Entries() []Entry { return slices.Clone(r.entries) }

// Lookup returns the provider of that name. A failure is CodeInvalid and names
// those there are.
func (r *Registry) Lookup(name string) (Entry, error) {
	var known []string
	for _, e := range r.entries {
		if e.Name == name {
			return e, nil
		}
		known = append(known, e.Name)
	}
	return Entry{}, &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "provider.open", Subject: name, Message: "there is no such provider",
		Hint: "choose one of: " + strings.Join(known, ", "),
	}
}
