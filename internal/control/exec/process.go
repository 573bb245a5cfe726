package exec

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Exec starts a command; see engine.Sandbox.Exec.
func (h *Handle) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	p, err := h.Sandbox.Exec(h.exec.cfg.Tenants.WithLimits(ctx, h.limits), cmd)
	if err != nil {
		return nil, err
	}
	return h.exec.watch(ctx, h, p, &cmd), nil
}

// Reconnect connects to a background command; see engine.Sandbox.Reconnect.
// Its end is recorded by the call that started it.
func (h *Handle) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	p, err := h.Sandbox.Reconnect(ctx, id)
	if err != nil {
		return nil, err
	}
	return h.command(p, h.limits, driver.Cursor{Stdout: 1, Stderr: 1}), nil // the oldest output may have been dropped
}

// Rejoin connects to a command where an earlier connection was lost; see
// engine.Sandbox.Rejoin. Its end is recorded by the call that started it.
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
	limits operator.Limits
	bytes  atomic.Int64 // of output read
	paused atomic.Int32 // number of readers that wait for the quota
	pauses atomic.Int64 // number of waits, started or ended
	closed sync.Once
	quit   chan struct{} // closed by Close and Detach
	cut    atomic.Bool   // its caller was disconnected and may come back
	end    atomic.Pointer[commandEnd]
	letGo  func() // called after Close or Detach; may be nil

	stdout, stderr io.Reader
}

// commandEnd is the end of a command, as far as a caller has seen it.
type commandEnd struct {
	exit sandbox.Exit
	at   time.Time
}

// command wraps a process whose output starts at the cursor.
func (h *Handle) command(p driver.Process, limits operator.Limits, at driver.Cursor) *command {
	c := &command{Process: p, exec: h.exec, tenant: h.who.Tenant, limits: limits, quit: make(chan struct{})}
	c.stdout = h.redacted(&meteredOutput{p.Stdout(), c}, at.Stdout > 0)
	c.stderr = h.redacted(&meteredOutput{p.Stderr(), c}, at.Stderr > 0)
	return c
}

// Unwrap returns the control process.
func (c *command) Unwrap() any { return c.Process }

// Throttled reports whether output is being delayed by a quota, so that silence
// does not mean the end of the output. changes counts how often throttling
// started or ended.
func (c *command) Throttled() (now bool, changes int64) { return c.paused.Load() > 0, c.pauses.Load() }

func (c *command) Stdout() io.Reader { return c.stdout }
func (c *command) Stderr() io.Reader { return c.stderr }

// Wait implements driver.Process, and stores the result.
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

// meteredOutput limits its reader to the tenant's quota, which also slows down
// the writer.
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
		c.pauses.Add(1) // before paused is decremented, so that a reader who sees that it is over also sees the change
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

// watch wraps a started process for its caller, and records its end: when it
// has ended and the caller has read its output or, for a background command,
// when it has ended.
func (s *Service) watch(ctx context.Context, h *Handle, inner driver.Process, cmd *sandbox.Command) *command {
	c := h.command(inner, h.limits, driver.Cursor{})
	fact := guard.Action(h.who, ops.ProcessExec, guard.Subject{Sandbox: h.ID(), Name: h.Name(), Subject: inner.Info().ID, Command: cmd})
	fact.Request, fact.Trace = span.IDs(ctx)
	if cmd.TTY != nil {
		s.Report(s.Life, s.Audit.FactLater(fact, eventlog.TerminalStarted, func(e *eventlog.Event) {
			e.Cols, e.Rows, e.Dir = cmd.TTY.Cols, cmd.TTY.Rows, cmd.Dir
		}))
	}
	if cmd.Background {
		s.Go(func() { s.awaitBackground(h.inner, c, fact) })
		return c
	}
	began := time.Now()
	c.letGo = func() { s.recordLetGo(h.inner, c, fact, began, cmd.Hold > 0) }
	return c
}

// recordLetGo records the end of a command whose caller has closed it. If the
// caller has not waited for the end, a goroutine does.
func (s *Service) recordLetGo(sb *engine.Sandbox, c *command, fact audit.Action, began time.Time, held bool) {
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
		case err == nil && exit.Reason == sandbox.ReasonSignaled: // closing it ended it
			s.recordEnds(fact, took, c.bytes.Load(), &exit.Code, exit.Reason, sandbox.ReasonOwnerGone)
		case err == nil:
			s.recordEnd(fact, took, c.bytes.Load(), &exit.Code, exit.Reason)
		case s.Life.Err() != nil:
		case held && c.cut.Load(): // it waits for its caller and ends later
			s.awaitAgain(sb, fact)
		default: // its caller closed it
			s.recordEnds(fact, took, c.bytes.Load(), nil, sandbox.ReasonKilled, sandbox.ReasonOwnerGone)
		}
	})
}

// awaitBackground waits for the end of a background command, independently of
// its caller.
func (s *Service) awaitBackground(sb *engine.Sandbox, c *command, fact audit.Action) {
	exit, err := c.Process.Wait(s.Life)
	if err == nil {
		s.endedAlone(fact, c.Info().Started, exit)
		return
	}
	select {
	case <-c.quit:
		s.awaitAgain(sb, fact)
	default: // its sandbox is gone or cannot be reached
	}
}

// awaitAgain waits for the end of a command on a new connection. If it cannot,
// the command may still be running, and is found again later.
func (s *Service) awaitAgain(sb *engine.Sandbox, fact audit.Action) {
	ctx := s.Life
	c, err := sb.Reconnect(ctx, fact.Subject)
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

// endedAlone records the end of a command that no caller waits for.
func (s *Service) endedAlone(fact audit.Action, began time.Time, exit sandbox.Exit) {
	s.recordEnd(fact, time.Since(began), 0, &exit.Code, exit.Reason)
	s.cfg.Sandboxes.MainEnded(fact.Tenant, fact.Sandbox, fact.Subject, began, exit)
}

// recordEnd records the end of a command, and of its terminal.
func (s *Service) recordEnd(fact audit.Action, took time.Duration, bytes int64, exit *int, reason sandbox.Reason) {
	s.recordEnds(fact, took, bytes, exit, reason, reason)
}

// recordEnds is recordEnd if the terminal ended for another reason.
func (s *Service) recordEnds(fact audit.Action, took time.Duration, bytes int64, exit *int, reason, ofTerminal sandbox.Reason) {
	s.Report(s.Life, s.Audit.FactLater(fact, eventlog.ExecEnded, func(e *eventlog.Event) {
		e.Bytes, e.Duration, e.Exit, e.Reason = bytes, took, exit, reason
	}))
	if fact.Command != nil && fact.Command.TTY != nil {
		s.Report(s.Life, s.Audit.FactLater(fact, eventlog.TerminalExited, func(e *eventlog.Event) { e.Exit, e.Reason = exit, ofTerminal }))
	}
}

// WatchBackground records the ends of commands that an earlier daemon started
// in a sandbox.
func (s *Service) WatchBackground(tenant string, sb *engine.Sandbox) {
	all, err := sb.Processes(s.Life)
	if err != nil {
		return // a provider that keeps no list has no commands to find
	}
	for _, info := range all {
		if info.Running { // its starter is gone, or it cannot be connected to
			fact := audit.Action{
				Tenant: tenant, Op: ops.ProcessExec, Sandbox: sb.ID(), Name: sb.Name(), Subject: info.ID,
				Command: &sandbox.Command{Args: info.Args},
			}
			if info.TTY {
				fact.Command.TTY = &sandbox.WindowSize{}
			}
			s.Go(func() { s.awaitAgain(sb, fact) })
		} else if info.Exit != nil { // its end may not have been recorded
			s.cfg.Sandboxes.MainEnded(tenant, sb.ID(), info.ID, info.Started, *info.Exit)
		}
	}
}
