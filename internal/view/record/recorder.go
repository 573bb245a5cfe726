package record

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/view/terminal"
	"github.com/atoll-run/atoll/sandbox"
)

// The reasons for which a recorder ends.
var (
	errStopped = errors.New("stopped")
	errTime    = errors.New("time limit")
	errClosing = errors.New("the daemon ends")
)

const (
	lookAgain   = 500 * time.Millisecond
	enterTries  = 10 // failures to reach the terminal of a running sandbox
	storeTries  = 5
	storePause  = 200 * time.Millisecond
	storeTime   = 5 * time.Minute
	closingTime = 5 * time.Second // for storing when the daemon ends
)

// recorder is a recording that runs.
type recorder struct {
	s    *Service
	by   sandbox.StreamSession
	ctx  context.Context
	end  context.CancelCauseFunc
	done chan struct{} // closed when all is stored, or could not be
	// size is the size for a terminal that is entered again.
	size sandbox.WindowSize

	storing sync.Mutex // taken before mu; guards what is in the blob store

	mu    sync.Mutex
	row   store.Recording // ID, Tenant and Sandbox do not change
	file  *os.File
	bytes int64 // written completely
	cast  *cast
	typed *secret.Redaction // nil: input is not redacted
	term  *terminal.Terminal
	view  *terminal.Viewer
}

// run records until the recording ends, and stores it.
func (r *recorder) run(t *terminal.Terminal, leave func()) {
	defer close(r.done)
	defer func() {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		delete(r.s.running, r.row.ID)
	}()
	ctx, cancel := context.WithTimeoutCause(r.ctx, time.Duration(r.row.Max)*time.Second, errTime)
	defer cancel()
	defer r.end(nil)
	r.finish(r.record(ctx, t, leave))
}

// record records a terminal, over several connections to it, and returns why it
// ended.
func (r *recorder) record(ctx context.Context, t *terminal.Terminal, leave func()) sandbox.Reason {
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
func (r *recorder) follow(ctx context.Context, t *terminal.Terminal) (last bool, why sandbox.Reason) {
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
			return true, sandbox.ReasonTakenOver
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
func (r *recorder) exited(ctx context.Context, exit sandbox.Exit) (last bool, why sandbox.Reason) {
	if exit.Reason == "" || exit.Reason == sandbox.ReasonExited {
		return true, sandbox.ReasonExited
	}
	select {
	case <-time.After(lookAgain):
	case <-ctx.Done():
	}
	box, err := r.s.cfg.Find(r.ctx, string(r.row.Sandbox))
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && box.State == sandbox.Gone:
		return true, r.gone(r.ctx)
	case err == nil && (box.State == sandbox.Pausing || box.State == sandbox.Paused || box.State == sandbox.Resuming):
		return false, ""
	}
	return true, exit.Reason
}

// ended returns the reason for the end of a context.
func ended(ctx context.Context) sandbox.Reason {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopped):
		return sandbox.ReasonAdmin
	case errors.Is(cause, errTime):
		return sandbox.ReasonTimeLimit
	case sandbox.CodeOf(cause) == sandbox.CodeUnauthorized:
		return sandbox.ReasonGrantRevoked
	}
	return sandbox.ReasonReaped
}

// await waits until a sandbox whose connection was lost runs again. It returns
// why it will not.
func (r *recorder) await(ctx context.Context) sandbox.Reason {
	for {
		select {
		case <-ctx.Done():
			return ended(ctx)
		case <-time.After(lookAgain):
		}
		box, err := r.s.cfg.Find(ctx, string(r.row.Sandbox))
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return r.gone(ctx)
		case err != nil:
			continue
		}
		switch box.State {
		case sandbox.Running, sandbox.Exited:
			return ""
		case sandbox.Stopped, sandbox.Failed, sandbox.Gone:
			return r.gone(ctx)
		}
	}
}

// gone returns the reason for the end of a sandbox.
func (r *recorder) gone(ctx context.Context) sandbox.Reason {
	if r.by.Ref != "" && sandbox.CodeOf(r.s.cfg.Epoch(ctx, r.by.Ref, r.by.Epoch)) == sandbox.CodeStale {
		return sandbox.ReasonRollover
	}
	return sandbox.ReasonReaped
}

// write appends a change to the file. It returns why the recording has to end.
func (r *recorder) write(c terminal.Change) sandbox.Reason {
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

func (r *recorder) append(lines []byte) sandbox.Reason {
	if r.bytes+int64(len(lines)) > r.s.cfg.SizeLimit {
		return sandbox.ReasonSizeLimit
	}
	if _, err := r.file.Write(lines); err != nil {
		r.s.note(err)
		_ = r.file.Truncate(r.bytes)
		return sandbox.ReasonDiskFull
	}
	r.bytes += int64(len(lines))
	return ""
}

// drain waits for output that is on its way, for a short time.
func (r *recorder) drain(ctx context.Context) {
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

// written opens the part of the file that is written completely.
func (r *recorder) written() (*os.File, int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes == 0 {
		return nil, 0, io.EOF
	}
	file, err := os.Open(r.s.path(r.row.ID))
	return file, r.bytes, err
}

// flush stores what was recorded until now.
func (r *recorder) flush(ctx context.Context) error {
	r.storing.Lock()
	defer r.storing.Unlock()
	r.mu.Lock()
	row, size := r.row, r.bytes
	r.mu.Unlock()
	if size == 0 || row.State != sandbox.RecordingRunning {
		return nil
	}
	if err := r.s.upload(ctx, &row, size); err != nil {
		return err
	}
	r.mu.Lock()
	r.row.Size = row.Size
	r.mu.Unlock()
	return r.s.cfg.Store.Update(ctx, func(tx *store.Tx) error { return tx.Recordings().Set(ctx, row) })
}

// finish stores a recording that has ended.
func (r *recorder) finish(why sandbox.Reason) {
	r.storing.Lock()
	defer r.storing.Unlock()
	r.mu.Lock()
	if r.cast != nil {
		at := time.Since(r.row.Started)
		var rest []byte
		if r.typed != nil {
			rest = r.cast.data(at, input, r.typed.End())
		}
		_ = r.append(append(rest, r.cast.rest(at)...))
	}
	r.s.note(errors.Join(r.file.Sync(), r.file.Close()))
	r.row.State, r.row.Reason, r.row.Ended = sandbox.RecordingFinalizing, why, time.Now().UTC()
	row, size := r.row, r.bytes
	r.mu.Unlock()

	patience := storeTime
	if r.s.cfg.Life.Err() != nil || errors.Is(context.Cause(r.ctx), errClosing) {
		patience = closingTime
	}
	ctx, cancel := context.WithTimeout(store.WithReserve(context.WithoutCancel(r.ctx)), patience)
	defer cancel()
	if size == 0 { // the terminal ended before anything was seen
		row.Reason = sandbox.ReasonBoxDeath
		r.s.note(r.s.complete(ctx, &row, sandbox.RecordingFailed))
		return
	}
	err := r.s.cfg.Store.Update(ctx, func(tx *store.Tx) error { return tx.Recordings().Set(ctx, row) })
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		r.s.note(err)
	}
	for try := range storeTries {
		if err = r.s.upload(ctx, &row, size); err == nil {
			break
		}
		select {
		case <-time.After(storePause << try):
		case <-ctx.Done():
		}
	}
	state := sandbox.RecordingAvailable
	if err != nil {
		r.s.note(err)
		state, row.Reason = sandbox.RecordingFailed, sandbox.ReasonUploadFailed
	}
	r.s.note(r.s.complete(ctx, &row, state))
}
