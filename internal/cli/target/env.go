// Package target is where commands act: this machine, or a daemon, which it finds or
// starts.
package target

import (
	"cmp"
	"context"
	"errors"
	"runtime"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// System is the node that the commands act on. It is opened when the first command
// needs it; everything in it opens as late as it can.
type System interface {
	// Engine returns the engine of the named provider. If attached is
	// set, the sandboxes it makes end with this process, however it ends.
	Engine(ctx context.Context, provider string, attached bool) (*engine.Engine, error)
	// Probe returns what the named provider can do here.
	Probe(ctx context.Context, provider string) (driver.Facts, error)
	// Trial returns what the conformance suite needs to test the named provider:
	// a function that opens it anew, and one to be called at the end.
	Trial(provider string) (open func(context.Context) (driver.Provider, error), end func() error, err error)
	localImages
	// Close closes everything that was opened. It ends no sandbox.
	Close() error
}

// ProviderInfo is what is known about a provider without opening it.
type ProviderInfo struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	Warning string `json:"warning,omitempty"` // said whenever it runs something
}

// Env is where the commands of one run act: on this machine, or on a daemon.
type Env struct {
	*term.Term
	// Engine continues the command in the engine, and returns only if that fails.
	// The light program has it instead of Open and of what only App has. It is nil
	// if the engine is linked in, and in a client build for a system without
	// sandboxes, which uses the daemon in ATOLL_HOST.
	Engine func(stateDir string) error
	// Open opens the node whose state is kept in stateDir; empty means the user's
	// own. Close closes it. It is nil in a client.
	Open func(stateDir string) (System, error)
	// Providers are those there are, the default first.
	Providers []ProviderInfo
	// Version is the output of `atoll version`.
	Version Version

	StateDir string        // --state-dir
	Provider string        // --provider
	Direct   bool          // --no-daemon
	Tenant   string        // --tenant
	system   System        // once it is open
	conn     *atoll.Client // of a daemon, once it was found
	Client   *atoll.Client // conn, in the tenant of --tenant
	Sessions bool          // the command names sessions and not sandboxes
	Quiet    bool          // no warnings about new sandboxes
	patience patience      // with a daemon that is slow
}

// Close ends what the commands have opened. It ends no sandbox.
func (e *Env) Close() error {
	var err error
	if e.system != nil {
		err = e.system.Close()
	}
	if e.conn != nil {
		err = errors.Join(err, e.conn.Close())
	}
	return err
}

// Version says what this program is made of.
type Version struct {
	Atoll  string `json:"atoll"`
	Engine string `json:"engine,omitempty"` // of the sandbox kernel that is linked in
	Go     string `json:"go"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
}

// DefaultProvider names the provider that is used unless another one is named.
func (e *Env) DefaultProvider() string {
	if len(e.Providers) == 0 {
		return ""
	}
	return e.Providers[0].Name
}

// ChosenProvider returns the provider that the flag, else the environment,
// else the default names.
func (e *Env) ChosenProvider() string {
	return cmp.Or(e.AskedProvider(), e.DefaultProvider())
}

// AskedProvider returns the provider that the flag, else the environment names,
// empty if neither does.
func (e *Env) AskedProvider() string {
	if e.Provider != "" {
		return e.Provider
	}
	name, _ := e.LookupEnv("ATOLL_PROVIDER")
	return name
}

// WarningOf returns the warning to show before something runs on a provider.
func (e *Env) WarningOf(provider string) string {
	for _, p := range e.Providers {
		if p.Name == provider {
			return p.Warning
		}
	}
	return ""
}

// Node opens the node, once.
func (e *Env) Node() (System, error) {
	if e.system != nil {
		return e.system, nil
	}
	if e.Open == nil {
		return nil, e.InEngine("nothing can run on this machine")
	}
	system, err := e.Open(e.StateDir)
	if err != nil {
		return nil, err
	}
	e.system = system
	return system, nil
}

// ClientOnly is why something cannot be done here.
func ClientOnly(what string) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Message: what + ": sandboxes need Linux, and this is the client for " + runtime.GOOS,
		Hint: "set ATOLL_HOST to the address of a daemon, such as https://HOST:7070, and ATOLL_KEY to a key of it",
	}
}

// openEngine opens the engine of the chosen provider.
func (e *Env) openEngine(ctx context.Context, attached bool) (*engine.Engine, error) {
	system, err := e.Node()
	if err != nil {
		return nil, err
	}
	return system.Engine(ctx, e.ChosenProvider(), attached)
}
