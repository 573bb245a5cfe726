package record

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/view/terminal"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// tape records a terminal.
type tape struct {
	*recorder
	entered *terminal.Terminal
	leave   func()
	// size is the size for a terminal that is entered again.
	size sandbox.WindowSize

	// The recorder's mu guards the rest.
	cast  *cast
	typed *secret.Redaction // nil: input is not redacted
	term  *terminal.Terminal
	view  *terminal.Viewer
}

// record records over several connections to the terminal.
func (r *tape) record(ctx context.Context) sandbox.Reason {
	t, leave := r.entered, r.leave
	for tries := 0; ; {
		last, why := r.follow(ctx, t)
		leave()
		if last {
			return why
		}
		for {
			if why := r.await(ctx); why != "" {
				return why
			}
			var err error
			if t, leave, err = r.s.cfg.Terminals.EnterTerminal(r.row.Tenant, r.row.Sandbox, r.row.Process, r.size); err == nil {
				break
			}
			if tries++; tries == enterTries || sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return r.gone(ctx)
			}
		}
	}
}

// follow records one connection to the terminal. last is false if the
// connection was lost.
func (r *tape) follow(ctx context.Context, t *terminal.Terminal) (last bool, why sandbox.Reason) {
	v, _ := t.View(false, terminal.Join{Input: r.row.Input})
	defer v.Close()
	defer context.AfterFunc(ctx, v.Close)()
	r.mu.Lock()
	r.term, r.view = t, v
	r.mu.Unlock()
	for c := v.Screen(); ; {
		switch {
		case c.Exit != nil:
			return r.exited(ctx, *c.Exit)
		case sandbox.CodeOf(c.Err) == sandbox.CodeConflict:
			return true, viewing.ReasonTakenOver
		case c.Screen == nil && c.Output == nil && c.Input == nil && c.Size == sandbox.WindowSize{}:
			return false, ""
		}
		if why := r.write(c); why != "" {
			return true, why
		}
		var err error
		if c, err = v.Next(); err != nil {
			return true, ended(ctx)
		}
	}
}

// exited returns the reason for the end of a command. last is false if its
// sandbox was put to disk, where the command may go on later.
func (r *tape) exited(ctx context.Context, exit sandbox.Exit) (last bool, why sandbox.Reason) {
	if exit.Reason == "" || exit.Reason == sandbox.ReasonExited {
		return true, sandbox.ReasonExited
	}
	select {
	case <-time.After(lookAgain):
	case <-ctx.Done():
	}
	sb, err := r.s.cfg.Find(r.ctx, string(r.row.Sandbox))
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && sb.State == sandbox.Gone:
		return true, r.gone(r.ctx)
	case err == nil && (sb.State == sandbox.Pausing || sb.State == sandbox.Paused || sb.State == sandbox.Resuming):
		return false, ""
	}
	return true, exit.Reason
}

// write appends a change to the file. It returns why the recording has to end.
func (r *tape) write(c terminal.Change) sandbox.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Since(r.row.Started)
	var lines []byte
	if r.cast == nil {
		r.cast = newCast()
		lines = r.cast.header(c.Size, r.row.Started, r.row.Title)
	} else if c.Size != r.size && c.Size != (sandbox.WindowSize{}) {
		lines = r.cast.size(at, c.Size)
	}
	if c.Size != (sandbox.WindowSize{}) {
		r.size = c.Size
	}
	switch {
	case c.Screen != nil:
		lines = append(lines, r.cast.screen(at, c.Screen)...)
	case c.Output != nil:
		lines = append(lines, r.cast.data(at, output, c.Output)...)
	case c.Input != nil && r.typed != nil:
		lines = append(lines, r.cast.data(at, input, r.typed.Push(c.Input))...)
	case c.Input != nil:
		lines = append(lines, r.cast.data(at, input, c.Input)...)
	}
	return r.append(lines)
}

// settle waits for output that is on its way.
func (r *tape) settle(ctx context.Context, _ bool) {
	r.mu.Lock()
	t, v := r.term, r.view
	r.mu.Unlock()
	if t == nil {
		return
	}
	t.Settle()
	late := time.After(quietTime)
	for v.Behind() {
		select {
		case <-time.After(quietTime / 200):
		case <-late:
			return
		case <-r.done:
			return
		case <-ctx.Done():
			return
		}
	}
	r.mu.Lock() // what was taken last is written
	defer r.mu.Unlock()
}

func (r *tape) rest() (rest []byte) {
	if r.cast == nil {
		return nil
	}
	at := time.Since(r.row.Started)
	if r.typed != nil {
		rest = r.cast.data(at, input, r.typed.End())
	}
	return append(rest, r.cast.rest(at)...)
}
