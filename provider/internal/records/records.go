// Package records stores the records of a hosted provider's sandboxes: one
// small file for each, which one process at a time changes.
package records

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/provider/internal/identity"
)

// Dir is a directory of records of type R. Its methods may be called
// concurrently, by any number of processes.
type Dir[R any] struct {
	Root string // the provider's directory, which need not exist
	Name string // of the directory within
}

const scopeFile = "scope"

// Scope returns a name that identifies the provider's directory among all users
// of an account. It is created when it is first needed.
func (d Dir[R]) Scope() (string, error) {
	if err := os.MkdirAll(filepath.Join(d.Root, d.Name), 0o700); err != nil {
		return "", err
	}
	return identity.Of(filepath.Join(d.Root, scopeFile))
}

// Path returns the file of a record.
func (d Dir[R]) Path(id string) string { return filepath.Join(d.Root, d.Name, id) }

// lockPoll is the interval of trying to get a lock.
const lockPoll = 10 * time.Millisecond

// Locked is a record that the caller has locked. Only one goroutine at a time
// may use it.
type Locked[R any] struct{ file *os.File }

// Lock locks a record, which need not exist. The caller must unlock it.
func (d Dir[R]) Lock(ctx context.Context, id string) (*Locked[R], error) {
	if _, err := d.Scope(); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(d.Path(id), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && d.current(id, f) {
			return &Locked[R]{f}, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// current reports whether the previous holder of the lock did not remove the
// file.
func (d Dir[R]) current(id string, f *os.File) bool {
	mine, err1 := f.Stat()
	now, err2 := os.Stat(d.Path(id))
	return err1 == nil && err2 == nil && os.SameFile(mine, now)
}

// Get returns a record without locking it.
func (d Dir[R]) Get(id string) (r R, ok bool) {
	text, err := os.ReadFile(d.Path(id))
	return r, err == nil && json.Unmarshal(text, &r) == nil
}

// IDs lists the records, including the lock files of records being created.
func (d Dir[R]) IDs() (ids []string) {
	entries, _ := os.ReadDir(filepath.Join(d.Root, d.Name)) // the directory may be missing
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// Read returns the record, or the zero value if there is none yet.
func (l *Locked[R]) Read() (r R) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, 1<<16))
	if err != nil || json.Unmarshal(text, &r) != nil {
		var none R
		return none
	}
	return r
}

// size is the minimum size of a record. A single write replaces a record,
// because others read it without the lock.
const size = 512

// Write replaces the record.
func (l *Locked[R]) Write(r R) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	whole := size
	if info, err := l.file.Stat(); err == nil {
		whole = max(whole, int(info.Size())) // overwrites all of a longer record
	}
	_, err = l.file.WriteAt(append(text, bytes.Repeat([]byte{' '}, max(0, whole-len(text)))...), 0)
	return err
}

// Remove removes the record. The lock is held until Unlock.
func (l *Locked[R]) Remove() error {
	if err := os.Remove(l.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unlock releases the lock.
func (l *Locked[R]) Unlock() { l.file.Close() }

// Sweep removes the records that are not locked and for which needless is true.
func (d Dir[R]) Sweep(needless func(R) bool) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // one try
	for _, id := range d.IDs() {
		if r, ok := d.Get(id); !ok || !needless(r) {
			continue
		}
		if l, err := d.Lock(ctx, id); err == nil {
			if needless(l.Read()) {
				_ = l.Remove()
			}
			l.Unlock()
		}
	}
}

// grace is how long a caller that has given up waits for the cleanup.
const grace = 10 * time.Second

// Finish calls f, which must clean up when its context ends, because a request
// to a service cannot be canceled. Finish returns when f has returned, or grace
// after ctx has ended; f then continues in work.
func Finish[T any](ctx context.Context, work *sync.WaitGroup, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	work.Go(func() {
		v, err := f()
		done <- result{v, err}
	})
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(late) }) })
	defer stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-late:
		var none T
		return none, ctx.Err()
	}
}
