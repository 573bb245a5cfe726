package supervise

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Mains runs the main commands of sandboxes. The caller fills in the fields.
type Mains struct {
	Core    *core.Core
	Records *records.Records
	Remover *remove.Remover
	Exec    *exec.Service

	held sync.Map // sandbox.ID → nil: not to be restarted
	// restarting are the main commands (mainProcess) that are about to be
	// restarted, and backoffs are the last delays, by sandbox.
	restarting, backoffs sync.Map
}

// Hold keeps the main command of a sandbox from being restarted, until release.
func (s *Mains) Hold(id sandbox.ID) (release func()) {
	s.held.Store(id, nil)
	return func() { s.held.Delete(id) }
}

// Delays before a main command is restarted. The delay doubles from the first
// to the last value, and is reset after the command has run for calmAfter.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = time.Minute
	calmAfter    = 10 * time.Second
)

const reasonMainEnded = "its main command ended"

// mainProcess is a main command that was started.
type mainProcess struct {
	sandbox sandbox.ID
	process string
}

// Start starts the main command of a running sandbox, on behalf of its owner.
func (s *Mains) Start(ctx context.Context, b *store.Sandbox, image engine.ImageConfig) error {
	m := b.Spec.Main
	args := engine.CommandLine(image, m.Entrypoint, m.Args)
	if len(args) == 0 && m.TTY != nil {
		args = []string{"/bin/sh"}
	}
	if len(args) == 0 {
		return nil // neither the request nor the image has a command
	}
	id, err := s.execMain(ctx, b.ID, args, m)
	if err != nil {
		return err
	}
	none := ""
	*b, err = s.changeMain(ctx, b.Tenant, b.ID, func(b *store.Sandbox, m *sandbox.MainCommand) {
		m.Args, m.Entrypoint, m.Process, m.Restarts, b.Exit = args, &none, id, 0, nil
	})
	if err == nil {
		s.checkMain(b.Tenant, b.ID, id)
	}
	return err
}

// execMain starts a main command and returns its id.
func (s *Mains) execMain(ctx context.Context, sb sandbox.ID, args []string, m *sandbox.MainCommand) (string, error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	h, err := s.Exec.Open(ctx, string(sb))
	if err != nil {
		return "", err
	}
	p, err := h.Exec(ctx, sandbox.Command{Args: args, TTY: m.TTY, Stdin: m.Stdin, Background: true})
	if err != nil {
		return "", err
	}
	id := p.Info().ID
	return id, p.Close()
}

// changeMain changes the record of a main command. It copies the MainCommand,
// which other copies of the record share.
func (s *Mains) changeMain(ctx context.Context, tenant string, id sandbox.ID, change func(*store.Sandbox, *sandbox.MainCommand)) (store.Sandbox, error) {
	return store.Write(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(ctx, tenant, id, store.Expect{States: []sandbox.State{sandbox.Running}, Observed: true}, func(b *store.Sandbox) {
			if b.Spec.Main == nil {
				return
			}
			m := *b.Spec.Main
			b.Spec.Main = &m
			change(b, &m)
		})
	})
}

// recordMain is changeMain while holding the sandbox's lock, so that it does
// not interfere with an operation in progress.
func (s *Mains) recordMain(ctx context.Context, tenant string, id sandbox.ID, change func(*store.Sandbox, *sandbox.MainCommand)) error {
	release, err := s.Records.Locks.Take(ctx, id)
	if err != nil {
		return nil //nolint:nilerr // the daemon is stopping; the next one will notice
	}
	defer release()
	_, err = s.changeMain(ctx, tenant, id, change)
	return records.IgnoreGone(records.IgnoreChanged(err))
}

// checkMain handles a command that ended before its id was recorded.
func (s *Mains) checkMain(tenant string, id sandbox.ID, process string) {
	b, err := s.Records.Record(s.Core.Life, tenant, id)
	if err != nil {
		return
	}
	if s.Records.Here(s.Core.Life, &b) != nil {
		return
	}
	sb, err := s.Records.Providers.Attach(s.Core.Life, &b) // that it is gone is recorded elsewhere: the caller may have its lock
	if err != nil {
		return
	}
	all, err := sb.Processes(s.Core.Life)
	if err != nil {
		return
	}
	for _, p := range all {
		if p.ID == process && p.Exit != nil {
			s.MainEnded(tenant, id, process, p.Started, *p.Exit)
		}
	}
}

// MainEnded is called when a background command has ended. If it is the main
// command of its sandbox, it is restarted, or the sandbox is removed, or marked
// as exited.
func (s *Mains) MainEnded(tenant string, id sandbox.ID, process string, began time.Time, exit sandbox.Exit) {
	switch exit.Reason {
	case sandbox.ReasonKilled, sandbox.ReasonLifetime, sandbox.ReasonCrashed, sandbox.ReasonLost:
		return // the sandbox has ended, too
	}
	b, err := s.Records.Record(s.Core.Life, tenant, id)
	if err != nil || b.State != sandbox.Running || b.Spec.Main == nil || b.Spec.Main.Process != process || b.Exit != nil {
		return
	}
	_, held := s.held.Load(id)
	switch m := b.Spec.Main; {
	case !held && m.Again(exit):
		// By the command, not by the sandbox: the next one may end before this is over.
		ended := mainProcess{id, process}
		if _, waiting := s.restarting.LoadOrStore(ended, nil); !waiting {
			s.Core.Go(func() {
				defer s.restarting.Delete(ended)
				s.restartMain(tenant, id, process, s.backoff(id, began))
			})
		}
	case !held && m.Remove:
		s.Core.Go(func() {
			s.Core.Report(s.Core.Life, records.IgnoreGone(s.Remover.DestroyAs(guard.WithOwner(s.Core.Life, tenant), string(id), ops.SandboxDestroy, reasonMainEnded)))
		})
	default:
		s.Core.Go(func() {
			s.Core.Report(s.Core.Life, s.recordMain(s.Core.Life, tenant, id, func(b *store.Sandbox, m *sandbox.MainCommand) {
				if m.Process == process {
					b.Exit = &exit
				}
			}))
		})
	}
}

// backoff returns the delay before a main command is restarted.
func (s *Mains) backoff(id sandbox.ID, began time.Time) time.Duration {
	wait := firstBackoff
	if last, ok := s.backoffs.Load(id); ok && time.Since(began) < calmAfter {
		wait = min(2*last.(time.Duration), lastBackoff)
	}
	s.backoffs.Store(id, wait)
	return wait
}

// restartMain restarts a main command after wait. While the sandbox is paused,
// it waits.
func (s *Mains) restartMain(tenant string, id sandbox.ID, process string, wait time.Duration) {
	ctx := guard.WithOwner(s.Core.Life, tenant)
	for {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		b, err := s.Records.Record(ctx, tenant, id)
		if _, held := s.held.Load(id); err != nil || held || b.Spec.Main == nil || b.Spec.Main.Process != process {
			return
		}
		switch b.State {
		case sandbox.Running:
		case sandbox.Paused, sandbox.Pausing, sandbox.Resuming, sandbox.Lost:
			wait = calmAfter
			continue
		default:
			s.backoffs.Delete(id)
			return
		}
		next, err := s.execMain(ctx, id, b.Spec.Main.Args, b.Spec.Main)
		if err != nil {
			s.Core.Report(ctx, err)
			wait = min(2*wait, lastBackoff)
			continue
		}
		err = s.recordMain(ctx, tenant, id, func(_ *store.Sandbox, m *sandbox.MainCommand) {
			m.Process = next
			m.Restarts++
		})
		if err != nil {
			s.Core.Report(ctx, err)
			return
		}
		s.Core.Go(func() { s.checkMain(tenant, id, next) })
		return
	}
}
