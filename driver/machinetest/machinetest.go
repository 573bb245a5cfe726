// Package machinetest is a self-hosted machine for the tests of programs that
// use one. It is enrolled with a real daemon over a real NATS server, and its
// sandboxes are in memory: they have files, a small shell and snapshots, and run
// nothing of this computer.
package machinetest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/internal/machine/local"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Options describe a machine.
type Options struct {
	// Dir is a directory for the machine's files, which may be missing. A socket is
	// in it, so its path must be short, at most about 90 bytes.
	Dir string
	// URL is the address of the NATS server, such as nats://127.0.0.1:4222. CA is a
	// file with certificates to trust for tls://, in PEM; empty: those of the system.
	URL, CA string
	// Name is the name of the machine.
	Name string
	// Token enrols the machine, as for: atoll machine join --token-file. Empty: Code
	// is called with a code that somebody has to approve, and how long it is valid.
	Token string
	Code  func(code string, life time.Duration)
	// Fault, if not nil, is called before every operation on a sandbox with its
	// name, such as "exec" or "write". If it returns an error, the operation fails
	// with that error. It may also wait. It must be safe for concurrent use.
	Fault func(op string) error
	// Logger gets the messages of the machine. Nil: none.
	Logger *slog.Logger
}

// Machine is a machine. Its methods are safe for concurrent use, but only one
// of Connect, Disconnect, Pause, Resume and Close may run at a time.
type Machine struct {
	opts  Options
	id    string
	world *fake.World

	mu   sync.Mutex
	seen []string

	stop context.CancelFunc // nil: disconnected
	done chan error
}

// Start enrols a machine and connects it. It waits for the approval if there is
// no token, but not until the daemon has heard of the machine. The caller closes
// it. Errors have the codes of atoll machine join.
func Start(ctx context.Context, o Options) (*Machine, error) {
	if o.Token == "" && o.Code == nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machinetest.start", Subject: "token", Message: "give a Token, or Code to show a code"}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	show := o.Code
	if show == nil {
		show = func(string, time.Duration) {}
	}
	e, err := agent.Enrol(ctx, agent.Request{
		Dir: o.Dir, URL: o.URL, CA: o.CA, Name: o.Name, Mode: operator.ModeSandboxes, Token: o.Token, Version: "test",
		Consents: map[operator.Consent]string{operator.ConsentSandboxes: "a test"},
	}, show)
	if err != nil {
		return nil, err
	}
	m := &Machine{opts: o, id: e.Machine, world: new(fake.World)}
	return m, m.Connect()
}

// ID returns the id of the machine. Its provider is selfhosted-ID.
func (m *Machine) ID() string { return m.id }

// Requests returns the names of the operations that were asked for so far, in
// their order.
func (m *Machine) Requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.seen)
}

func (m *Machine) request(op string) error {
	m.mu.Lock()
	m.seen = append(m.seen, op)
	m.mu.Unlock()
	if m.opts.Fault == nil {
		return nil
	}
	return m.opts.Fault(op)
}

// Connect starts the machine's program again after Disconnect. Sandboxes are
// still there.
func (m *Machine) Connect() error {
	if m.stop != nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() {
		done <- agent.Run(ctx, agent.Config{Dir: m.opts.Dir, Version: "test", Logger: m.opts.Logger, Serve: m.serve(ready)})
	}()
	select {
	case <-ready:
		m.stop, m.done = stop, done
		return nil
	case err := <-done:
		stop()
		return err
	}
}

func (m *Machine) serve(ready chan<- struct{}) func(context.Context, agent.Enrolled) (agent.Local, error) {
	entry := providerset.Entry{Name: "fake", Open: func(h providerset.Host) (driver.Provider, error) {
		return fake.New(fake.Options{World: m.world, SnapshotDir: h.Snapshots, Fault: m.request}), nil
	}}
	return func(ctx context.Context, e agent.Enrolled) (agent.Local, error) {
		l, err := local.Start(ctx, e, local.Options{Dir: m.opts.Dir, Sandboxes: entry, Version: "test", Logger: m.opts.Logger})
		if err == nil {
			close(ready)
		}
		return l, err
	}
}

// Disconnect ends the machine's program, as when it is switched off. The machine
// is offline at once.
func (m *Machine) Disconnect() error {
	if m.stop == nil {
		return nil
	}
	m.stop()
	m.stop = nil
	return <-m.done
}

// Ended returns a channel with the reason why the machine's program ended by
// itself: its enrolment was revoked, or another program took its place. It is of
// the last Connect, and has nothing after Disconnect.
func (m *Machine) Ended() <-chan error { return m.done }

// Pause withdraws the owner's consent, as atoll machine pause does: everything
// in the sandboxes stops, and the machine is offline.
func (m *Machine) Pause() error {
	_, err := agent.Pause(m.opts.Dir)
	return err
}

// Resume ends a pause.
func (m *Machine) Resume() error {
	_, err := agent.Resume(m.opts.Dir)
	return err
}

// Close ends the enrolment and the machine's program. The files stay. A machine
// that is disconnected keeps its enrolment.
func (m *Machine) Close() error {
	if m.stop == nil {
		return nil
	}
	_, err := agent.Leave(context.Background(), agent.Config{Dir: m.opts.Dir})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound { // it has left
		err = nil
	}
	return errors.Join(err, m.Disconnect())
}
