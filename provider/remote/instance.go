package remote

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// remoteSandbox is a sandbox of the other daemon, with the methods that every instance
// and the layers of layers.go need.
type remoteSandbox struct {
	p          *Provider
	id         sandbox.ID
	s          *atoll.Sandbox
	pausedHere atomic.Bool // paused through this instance
	ended      atomic.Bool // destroyed through this instance
}

// ID implements driver.Instance.
func (s *remoteSandbox) ID() sandbox.ID { return s.id }

// Delays between looking at a sandbox that is paused or cannot be reached.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
)

// do makes a call on the sandbox. If a pause prevented it, do repeats it when
// the pause is over.
func (s *remoteSandbox) do(ctx context.Context, call func() error) error {
	if s.pausedHere.Load() {
		if err := s.awake(ctx); err != nil {
			return err
		}
	}
	for {
		err := call()
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return s.explain(ctx, err)
		}
		if state, asked := s.state(ctx); asked != nil || !resting(state) {
			return s.explain(ctx, err)
		}
		if err := s.awake(ctx); err != nil {
			return err
		}
	}
}

// awake waits until the sandbox is not paused.
func (s *remoteSandbox) awake(ctx context.Context) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		state, err := s.state(ctx)
		if err != nil {
			return err
		}
		if !resting(state) {
			s.pausedHere.Store(false)
			return nil
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func resting(s sandbox.State) bool {
	return s == sandbox.Paused || s == sandbox.Pausing || s == sandbox.Resuming
}

// state returns the state of the sandbox, or CodeGone if it no longer exists.
func (s *remoteSandbox) state(ctx context.Context) (sandbox.State, error) {
	now, err := s.p.client.Get(ctx, string(s.s.ID()))
	if err != nil {
		return "", s.explain(ctx, err)
	}
	if now.Info().State == sandbox.Gone {
		return "", s.gone()
	}
	return now.Info().State, nil
}

func (s *remoteSandbox) gone() error {
	return &sandbox.Error{Code: sandbox.CodeGone, Subject: string(s.id), Message: "the sandbox does not exist"}
}

// explain converts an error about this sandbox. A missing sandbox counts as
// gone only if the other daemon's identity is unchanged.
func (s *remoteSandbox) explain(ctx context.Context, err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		return err
	}
	ours := e.Subject == string(s.s.ID()) || e.Subject == string(s.id)
	switch {
	case e.Code == sandbox.CodeGone:
		return s.gone()
	case e.Code == sandbox.CodeNotFound && ours:
		return s.p.absent(ctx, s.id)
	case ours:
		same := *e
		same.Subject = string(s.id)
		return &same
	}
	return s.p.explain(err)
}

// Exec implements driver.Instance.
func (s *remoteSandbox) Exec(ctx context.Context, cmd *sandbox.Command) (proc driver.Process, err error) {
	err = s.do(ctx, func() error {
		p, err := s.s.Exec(ctx, *cmd)
		if err == nil {
			proc = s.process(p, cmd.Hold)
		}
		return err
	})
	return proc, err
}

// Wait implements driver.Instance. It retries while the daemon cannot be
// reached, because that says nothing about the sandbox.
func (s *remoteSandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		exit, err := s.s.Wait(ctx)
		if err == nil {
			s.awaitEnd(ctx)
			return exit, nil
		}
		err = s.explain(ctx, err)
		switch sandbox.CodeOf(err) {
		case sandbox.CodeGone:
			return s.epitaph(ctx), nil
		case sandbox.CodeUnavailable, sandbox.CodeConflict:
		default:
			return exit, err
		}
		if err := pause(ctx, wait); err != nil {
			return sandbox.Exit{}, err
		}
	}
}

// awaitEnd waits briefly until the other daemon has recorded the end of the
// sandbox, so that List agrees with Wait.
func (s *remoteSandbox) awaitEnd(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastLook)
	defer cancel()
	for wait := firstLook; ; wait *= 2 {
		if state, err := s.state(ctx); err != nil || state != sandbox.Running || pause(ctx, wait) != nil {
			return
		}
	}
}

// epitaph returns how a sandbox ended that is gone. The other daemon may need a
// moment to record it.
func (s *remoteSandbox) epitaph(ctx context.Context) sandbox.Exit {
	ctx, cancel := context.WithTimeout(ctx, lastLook)
	defer cancel()
	for wait := firstLook; ; wait *= 2 {
		now, err := s.p.client.Get(ctx, string(s.s.ID()))
		if err == nil && now.Info().Exit != nil {
			return *now.Info().Exit
		}
		if err != nil || now.Info().State == sandbox.Gone || pause(ctx, wait) != nil {
			return sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonKilled}
		}
	}
}

// Destroy implements driver.Instance.
func (s *remoteSandbox) Destroy(ctx context.Context) error {
	err := s.explain(ctx, repeat(ctx, func() error {
		if _, err := s.p.mine(ctx, s.id); err != nil {
			return err // it belongs to another installation, or it is gone
		}
		return s.s.Destroy(ctx)
	}))
	if sandbox.CodeOf(err) == sandbox.CodeGone {
		err = nil
	}
	if err == nil {
		s.ended.Store(true)
	}
	return err
}

// commands implements driver.ProcessManager.
type commands struct{ *remoteSandbox }

func (c commands) Processes(ctx context.Context) (all []sandbox.ProcessInfo, err error) {
	err = c.do(ctx, func() (err error) {
		all, err = c.s.Processes(ctx)
		return err
	})
	return all, err
}

// checkID rejects an ID that is not valid for a command or in a path.
func checkID(id string) error {
	if id != "" && !strings.ContainsAny(id, "/\\?#%") && strings.TrimLeft(id, ".") != "" {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "process.find", Subject: "process", Message: "there is no such command"}
}

func (c commands) Reconnect(ctx context.Context, id string) (proc driver.Process, err error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	err = c.do(ctx, func() error {
		p, err := c.s.Reconnect(ctx, id)
		if err == nil {
			proc = c.process(p, 0)
		}
		return err
	})
	return proc, err
}

func (c commands) Logs(ctx context.Context, id string, opts driver.LogOptions) (r driver.LogReader, err error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	err = c.do(ctx, func() error {
		log, err := c.s.Logs(ctx, id, atoll.LogOptions(opts))
		if err == nil {
			r = log
		}
		return err
	})
	return r, err
}

func (c commands) Kill(ctx context.Context, id string, sig int) error {
	if err := checkID(id); err != nil {
		return err
	}
	return c.do(ctx, func() error { return c.s.Kill(ctx, id, sig) })
}

// files implements driver.FileSystem, driver.Archiver and driver.Watcher.
type files struct{ *remoteSandbox }

func (f files) Stat(ctx context.Context, path string) (info sandbox.FileInfo, err error) {
	err = f.do(ctx, func() (err error) {
		info, err = f.s.Files().Stat(ctx, path)
		return err
	})
	return info, err
}

func (f files) List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		more := true
		err := f.do(ctx, func() error {
			for info, err := range f.s.Files().List(ctx, path, opts.Depth) {
				if err != nil {
					return err
				}
				if more = yield(info, nil); !more {
					return nil
				}
			}
			return nil
		})
		if err != nil && more {
			yield(sandbox.FileInfo{}, err)
		}
	}
}

func (f files) Read(ctx context.Context, path string, opts driver.ReadOptions) (r io.ReadCloser, info sandbox.FileInfo, err error) {
	err = f.do(ctx, func() (err error) {
		r, info, err = f.s.Files().Open(ctx, path, atoll.ReadOptions(opts))
		return err
	})
	return r, info, err
}

func (f files) Write(ctx context.Context, path string, r io.Reader, opts driver.WriteOptions) (info sandbox.FileInfo, err error) {
	err = f.do(ctx, func() (err error) {
		info, err = f.s.Files().Write(ctx, path, r, atoll.WriteOptions{Mode: opts.Mode, Owner: opts.Owner, NoParents: opts.NoParents, NoReplace: opts.NoReplace})
		return err
	})
	return info, err
}

func (f files) Mkdir(ctx context.Context, path string, opts driver.MkdirOptions) error {
	return f.do(ctx, func() error { return f.s.Files().Mkdir(ctx, path, atoll.MkdirOptions(opts)) })
}

func (f files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.do(ctx, func() error { return f.s.Files().Remove(ctx, path, recursive) })
}

func (f files) Move(ctx context.Context, from, to string, overwrite bool) error {
	return f.do(ctx, func() error { return f.s.Files().Move(ctx, from, to, overwrite) })
}

// archives implements driver.Archiver.
type archives struct{ *remoteSandbox }

func (a archives) Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error {
	return a.do(ctx, func() error { return a.s.Files().Export(ctx, path, w, opts.Exclude...) })
}

func (a archives) Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error {
	return a.do(ctx, func() error { return a.s.Files().Import(ctx, path, r, opts.Owner) })
}

// watches implements driver.Watcher.
type watches struct{ *remoteSandbox }

// Watch implements driver.Watcher. It reconnects after a lost connection and
// reports the missed changes as an overflow.
func (w watches) Watch(ctx context.Context, path string, recursive bool) (<-chan sandbox.FileEvent, error) {
	open := func() (events iter.Seq2[sandbox.FileEvent, error], err error) {
		err = w.do(ctx, func() (err error) {
			events, err = w.s.Files().Watch(ctx, path, recursive)
			return err
		})
		return events, err
	}
	events, err := open()
	if err != nil {
		return nil, err
	}
	out := make(chan sandbox.FileEvent)
	send := func(e sandbox.FileEvent) bool {
		select {
		case out <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(out)
		for forward(events, send) {
			if !send(sandbox.FileEvent{Op: sandbox.OpOverflow, Path: "."}) {
				return
			}
			for wait := firstLook; ; wait = min(2*wait, lastLook) {
				if events, err = open(); err == nil {
					break
				}
				if sandbox.CodeOf(err) != sandbox.CodeUnavailable || pause(ctx, wait) != nil {
					return
				}
			}
		}
	}()
	return out, nil
}

// forward passes on all events and reports whether the connection was lost
// before their end.
func forward(events iter.Seq2[sandbox.FileEvent, error], send func(sandbox.FileEvent) bool) (lost bool) {
	for e, err := range events {
		if err != nil {
			return sandbox.CodeOf(err) == sandbox.CodeUnavailable
		}
		if !send(e) {
			return false
		}
	}
	return false
}

// pauses implements driver.Pauser.
type pauses struct{ *remoteSandbox }

func (p pauses) Pause(ctx context.Context) error {
	_, err := p.s.Pause(ctx, sandbox.PauseMemory)
	if err == nil {
		p.pausedHere.Store(true)
	}
	return p.explain(ctx, err)
}

func (p pauses) Resume(ctx context.Context) error {
	_, err := p.s.Resume(ctx)
	if err == nil {
		p.pausedHere.Store(false)
	}
	return p.explain(ctx, err)
}

// sizes implements driver.Resizer.
type sizes struct{ *remoteSandbox }

func (s sizes) Resize(ctx context.Context, limits sandbox.Resources) error {
	return s.do(ctx, func() error {
		_, err := s.s.Update(ctx, sandbox.Change{Resources: limits, RequireLimits: true}) // fails if a limit cannot be enforced
		return err
	})
}

// deadlines implements driver.DeadlineSetter.
type deadlines struct{ *remoteSandbox }

func (d deadlines) SetDeadline(ctx context.Context, at time.Time) error {
	life := time.Duration(0) // no limit
	if !at.IsZero() {
		life = max(time.Until(at), time.Millisecond)
	}
	_, err := d.s.Update(ctx, sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &life}})
	return d.explain(ctx, err)
}

// meters implements driver.Meter.
type meters struct{ *remoteSandbox }

func (m meters) Usage(ctx context.Context) (u sandbox.Usage, err error) {
	err = m.do(ctx, func() (err error) {
		u, err = m.s.Usage(ctx)
		return err
	})
	return u, err
}
