package record

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// The reasons for which a recorder ends.
var (
	errStopped = errors.New("stopped")
	errTime    = errors.New("time limit")
	errTurn    = errors.New("the turn is over")
	errClosing = errors.New("the daemon ends")
)

const (
	enterTries  = 10 // failures to reach the terminal of a running sandbox
	storeTries  = 5
	storePause  = 200 * time.Millisecond
	storeTime   = 5 * time.Minute
	closingTime = 5 * time.Second // for storing when the daemon ends
)

// lookAgain is the pause between looks at a sandbox whose connection was lost.
var lookAgain = 500 * time.Millisecond

// source is what a recorder records.
type source interface {
	// record records until the recording ends, and returns why.
	record(ctx context.Context) sandbox.Reason
	// settle waits for what is on its way, for a short time. last: the recording is
	// about to be ended.
	settle(ctx context.Context, last bool)
	// rest returns what belongs at the end of the file. The caller holds mu.
	rest() []byte
}

// recorder is a recording that runs.
type recorder struct {
	s    *Service
	by   viewing.StreamSession
	from source
	ctx  context.Context
	end  context.CancelCauseFunc
	done chan struct{} // closed when all is stored, or could not be

	storing sync.Mutex // taken before mu; guards what is in the blob store

	mu    sync.Mutex
	row   store.Recording // ID, Tenant, Sandbox, Format and Started do not change
	file  *os.File
	bytes int64 // written completely
}

// run records until the recording ends, and stores it.
func (r *recorder) run() {
	defer close(r.done)
	defer func() {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		delete(r.s.running, r.row.ID)
	}()
	ctx, cancel := context.WithTimeoutCause(r.ctx, time.Duration(r.row.Max)*time.Second, errTime)
	defer cancel()
	defer r.end(nil)
	r.finish(r.from.record(ctx))
}

// ended returns the reason for the end of a context.
func ended(ctx context.Context) sandbox.Reason {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopped):
		return viewing.ReasonAdmin
	case errors.Is(cause, errTime):
		return viewing.ReasonTimeLimit
	case errors.Is(cause, errTurn):
		return viewing.ReasonTurnOver
	case sandbox.CodeOf(cause) == sandbox.CodeUnauthorized:
		return viewing.ReasonGrantRevoked
	}
	return viewing.ReasonReaped
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
		sb, err := r.s.cfg.Find(ctx, string(r.row.Sandbox))
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return r.gone(ctx)
		case err != nil:
			continue
		}
		switch sb.State {
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
		return viewing.ReasonRollover
	}
	return viewing.ReasonReaped
}

// append writes to the file. It returns why the recording has to end. The caller
// holds mu.
func (r *recorder) append(lines []byte) sandbox.Reason {
	if r.bytes+int64(len(lines)) > r.s.cfg.SizeLimit {
		return viewing.ReasonSizeLimit
	}
	if _, err := r.file.Write(lines); err != nil {
		r.s.note(err)
		_ = r.file.Truncate(r.bytes)
		return viewing.ReasonDiskFull
	}
	r.bytes += int64(len(lines))
	return ""
}

// written opens the part of the file that is written completely.
func (r *recorder) written() (*os.File, int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes == 0 {
		return nil, 0, io.EOF
	}
	file, err := os.Open(r.s.path(&r.row))
	return file, r.bytes, err
}

// flush stores what was recorded until now.
func (r *recorder) flush(ctx context.Context) error {
	r.storing.Lock()
	defer r.storing.Unlock()
	r.mu.Lock()
	row, size := r.row, r.bytes
	r.mu.Unlock()
	if size == 0 || row.State != viewing.RecordingRunning {
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
	_ = r.append(r.from.rest())
	r.s.note(errors.Join(r.file.Sync(), r.file.Close()))
	r.row.State, r.row.Reason, r.row.Ended = viewing.RecordingFinalizing, why, time.Now().UTC()
	row, size := r.row, r.bytes
	r.mu.Unlock()

	patience := storeTime
	if r.s.cfg.Life.Err() != nil || errors.Is(context.Cause(r.ctx), errClosing) {
		patience = closingTime
	}
	ctx, cancel := context.WithTimeout(store.WithReserve(context.WithoutCancel(r.ctx)), patience)
	defer cancel()
	if size == 0 { // it ended before anything was seen
		if why != viewing.ReasonNoDisplay && why != viewing.ReasonFFmpeg {
			row.Reason = viewing.ReasonSandboxDeath
		}
		r.s.note(r.s.complete(ctx, &row, viewing.RecordingFailed))
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
	state := viewing.RecordingAvailable
	if err != nil {
		r.s.note(err)
		state, row.Reason = viewing.RecordingFailed, viewing.ReasonUploadFailed
	}
	r.s.note(r.s.complete(ctx, &row, state))
}
