package exec

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Exec starts a command, as control.Sandbox.Exec.
func (h *Handle) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	p, err := h.Sandbox.Exec(h.exec.cfg.Tenants.WithLimits(ctx, h.limits), cmd)
	if err != nil {
		return nil, err
	}
	return h.exec.watch(ctx, h, p, &cmd), nil
}

// Reconnect connects to a background command, as control.Sandbox.Reconnect.
// Its end is recorded by who started it.
func (h *Handle) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	p, err := h.Sandbox.Reconnect(ctx, id)
	if err != nil {
		return nil, err
	}
	return h.command(p, h.limits, driver.Cursor{Stdout: 1, Stderr: 1}), nil // the oldest may be dropped
}

// Rejoin connects to a command where an earlier connection to it was cut, as
// control.Sandbox.Rejoin. Its end is recorded by who started it.
func (h *Handle) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	p, at, err := h.Sandbox.Rejoin(ctx, id, from, skip)
	if err != nil {
		return nil, at, err
	}
	return h.command(p, h.limits, at), at, nil
}

// command is a process whose output is metered.
type command struct {
	driver.Process
	exec   *Service
	tenant string
	limits sandbox.Limits
	bytes  atomic.Int64 // of output that was read
	paused atomic.Int32 // readers that wait for the quota
	pauses atomic.Int64 // of readers, begun or over
	closed sync.Once
	quit   chan struct{} // closed by Close and Detach
	cut    atomic.Bool   // its caller was cut off and may come back
	end    atomic.Pointer[commandEnd]
	letGo  func() // called after Close or Detach; nil: nobody wants to know

	stdout, stderr io.Reader
}

// commandEnd is how and when a command ended, as far as a caller has learnt it.
type commandEnd struct {
	exit sandbox.Exit
	at   time.Time
}

// command wraps a process whose output begins at the cursor.
func (h *Handle) command(p driver.Process, limits sandbox.Limits, at driver.Cursor) *command {
	c := &command{Process: p, exec: h.exec, tenant: h.who.Tenant, limits: limits, quit: make(chan struct{})}
	c.stdout = h.redacted(&meteredOutput{p.Stdout(), c}, at.Stdout > 0)
	c.stderr = h.redacted(&meteredOutput{p.Stderr(), c}, at.Stderr > 0)
	return c
}

// Unwrap returns control's process.
func (c *command) Unwrap() any { return c.Process }

// Throttled reports whether output is held back by a quota, so that a silence
// does not mean its end, and how often that has begun or ended. What was held
// back comes a moment after.
func (c *command) Throttled() (now bool, changes int64) { return c.paused.Load() > 0, c.pauses.Load() }

func (c *command) Stdout() io.Reader { return c.stdout }
func (c *command) Stderr() io.Reader { return c.stderr }

// Wait implements driver.Process, and remembers what is learnt.
func (c *command) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, err := c.Process.Wait(ctx)
	if err == nil {
		c.end.CompareAndSwap(nil, &commandEnd{exit, time.Now()})
	}
	return exit, err
}

func (c *command) Close() (err error) {
	c.closed.Do(func() {
		close(c.quit)
		err = c.Process.Close()
		c.wasLetGo()
	})
	return err
}

func (c *command) wasLetGo() {
	if c.letGo != nil {
		c.letGo()
	}
}

// Detach implements driver.Detacher.
func (c *command) Detach() (err error) {
	c.closed.Do(func() {
		d, ok := driver.As[driver.Detacher](c.Process)
		c.cut.Store(ok)
		close(c.quit)
		if ok {
			err = d.Detach()
		} else {
			err = c.Process.Close()
		}
		c.wasLetGo()
	})
	return err
}

// meteredOutput slows its reader down to what the tenant's quota allows, which
// in turn stops the writer.
type meteredOutput struct {
	from io.Reader
	c    *command
}

func (m *meteredOutput) Read(b []byte) (int, error) {
	n, err := m.from.Read(b)
	m.c.bytes.Add(int64(n))
	if wait := m.c.exec.cfg.Tenants.MeterOutput(m.c.tenant, m.c.limits, n); wait > 0 {
		m.c.pause(wait)
	}
	return n, err
}

func (c *command) pause(d time.Duration) {
	c.paused.Add(1)
	c.pauses.Add(1)
	defer func() {
		c.pauses.Add(1) // first: who sees that it is over also sees that it just was
		c.paused.Add(-1)
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.quit:
	case <-c.exec.Life.Done():
	}
}

// watch returns a started process as its caller sees it, and records its end:
// when it is over and its caller has read what there was, or, in the
// background, when it is over.
func (s *Service) watch(ctx context.Context, h *Handle, inner driver.Process, cmd *sandbox.Command) *command {
	c := h.command(inner, h.limits, driver.Cursor{})
	fact := guard.Action(h.who, ops.ProcessExec, guard.Subject{Sandbox: h.ID(), Name: h.Name(), Subject: inner.Info().ID, Command: cmd})
	fact.Request, fact.Trace = span.IDs(ctx)
	if cmd.Background {
		s.Go(func() { s.awaitBackground(h.inner, c, fact) })
		return c
	}
	began := time.Now()
	c.letGo = func() { s.recordLetGo(h.inner, c, fact, began, cmd.Hold > 0) }
	return c
}

// recordLetGo records the end of a command that its caller has let go of. Most
// callers have waited for that end: only for the others there must be somebody
// who still does.
func (s *Service) recordLetGo(box *control.Sandbox, c *command, fact audit.Action, began time.Time, held bool) {
	if end := c.end.Load(); end != nil {
		s.recordEnd(fact, end.at.Sub(began), c.bytes.Load(), &end.exit.Code, end.exit.Reason)
		return
	}
	if s.Life.Err() != nil {
		return
	}
	s.Go(func() {
		exit, err := c.Process.Wait(s.Life)
		took := time.Since(began)
		switch {
		case err == nil:
			s.recordEnd(fact, took, c.bytes.Load(), &exit.Code, exit.Reason)
		case s.Life.Err() != nil:
		case held && c.cut.Load(): // it waits for its caller, and ends later
			s.awaitAgain(box, fact)
		default: // its caller let go of it
			s.recordEnd(fact, took, c.bytes.Load(), nil, sandbox.ReasonKilled)
		}
	})
}

// awaitBackground waits for the end of a command in the background beside whoever
// started it, who may let go of it meanwhile.
func (s *Service) awaitBackground(box *control.Sandbox, c *command, fact audit.Action) {
	exit, err := c.Process.Wait(s.Life)
	if err == nil {
		s.endedAlone(fact, c.Info().Started, exit)
		return
	}
	select {
	case <-c.quit:
		s.awaitAgain(box, fact)
	default: // its sandbox is gone, or cannot be reached
	}
}

// awaitAgain waits for the end of a command on a connection of its own. What
// cannot be waited for may run on, and is found again.
func (s *Service) awaitAgain(box *control.Sandbox, fact audit.Action) {
	ctx := s.Life
	c, err := box.Reconnect(ctx, fact.Subject)
	if err != nil {
		return
	}
	defer c.Close()
	began := c.Info().Started
	exit, err := c.Wait(ctx)
	if err == nil {
		s.endedAlone(fact, began, exit)
	}
}

// endedAlone records the end of a command that nobody waits for.
func (s *Service) endedAlone(fact audit.Action, began time.Time, exit sandbox.Exit) {
	s.recordEnd(fact, time.Since(began), 0, &exit.Code, exit.Reason)
	s.cfg.Sandboxes.MainEnded(fact.Tenant, fact.Sandbox, fact.Subject, began, exit)
}

func (s *Service) recordEnd(fact audit.Action, took time.Duration, bytes int64, exit *int, reason sandbox.Reason) {
	s.Report(s.Life, s.Audit.FactLater(fact, eventlog.ExecEnded, func(e *eventlog.Event) {
		e.Bytes, e.Duration, e.Exit, e.Reason = bytes, took, exit, reason
	}))
}

// WatchBackground records the ends of the commands that an earlier daemon
// started in a sandbox and that outlived it.
func (s *Service) WatchBackground(tenant string, box *control.Sandbox) {
	all, err := box.Processes(s.Life)
	if err != nil {
		return // what cannot list its commands has none to be found again
	}
	for _, info := range all {
		if info.Running { // and runs on without who started it, or cannot be connected to
			fact := audit.Action{
				Tenant: tenant, Op: ops.ProcessExec, Sandbox: box.ID(), Name: box.Name(), Subject: info.ID,
				Command: &sandbox.Command{Args: info.Args},
			}
			s.Go(func() { s.awaitAgain(box, fact) })
		} else if info.Exit != nil { // perhaps without anybody who learnt of it
			s.cfg.Sandboxes.MainEnded(tenant, box.ID(), info.ID, info.Started, *info.Exit)
		}
	}
}
