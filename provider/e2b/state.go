package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// state is the provider's directory. It says which sandboxes of the account are
// ours, and keeps what the service does not tell of one that has ended.
type state struct{ dir string }

// record is the stored record of a sandbox. It holds no secret.
type record struct {
	Box  string    `json:"box"`  // the service's id
	Ends time.Time `json:"ends"` // as far as this directory knows
	// Life is how long it may run from its start, or from when it was resumed.
	Life   time.Duration `json:"life,omitempty"`
	Doomed bool          `json:"doomed,omitempty"` // we ended it, or were about to
	// Binding is whose sandbox it is; see [Provider.Binding].
	Binding string `json:"binding,omitempty"`
}

const (
	scopeFile = "scope"
	boxesDir  = "boxes"
)

// scope names this directory among all that use the account. It is made when it
// is first needed.
func (s state) scope() (string, error) {
	if err := os.MkdirAll(filepath.Join(s.dir, boxesDir), 0o700); err != nil {
		return "", err
	}
	return identity.Of(filepath.Join(s.dir, scopeFile))
}

// lockPoll is how often a lock that somebody holds is tried.
const lockPoll = 10 * time.Millisecond

// locked is the record of a sandbox that nobody else changes.
type locked struct{ file *os.File }

// lock waits for the record of a sandbox, which need not exist.
func (s state) lock(ctx context.Context, id sandbox.ID) (*locked, error) {
	if _, err := s.scope(); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(s.path(id), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && s.current(id, f) {
			return &locked{f}, nil
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

func (s state) path(id sandbox.ID) string { return filepath.Join(s.dir, boxesDir, string(id)) }

// current reports whether a file was not removed by who held the lock before.
func (s state) current(id sandbox.ID, f *os.File) bool {
	mine, err1 := f.Stat()
	now, err2 := os.Stat(s.path(id))
	return err1 == nil && err2 == nil && os.SameFile(mine, now)
}

func (l *locked) read() (r record) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, 1<<16))
	if err != nil || json.Unmarshal(text, &r) != nil {
		return record{} // there is none yet
	}
	return r
}

// recordSize is the size of all records, so that one is replaced by a single
// write: others read without the lock.
const recordSize = 512

func (l *locked) write(r record) error {
	text, err := json.Marshal(r)
	if err == nil {
		_, err = l.file.WriteAt(append(text, bytes.Repeat([]byte{' '}, max(0, recordSize-len(text)))...), 0)
	}
	return err
}

// remove removes the record. The lock is held until it is closed.
func (l *locked) remove() error {
	if err := os.Remove(l.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (l *locked) unlock() { l.file.Close() }

// recordOf returns what is kept of the sandbox with a service's id; ok is false
// if nothing is, as after we destroyed it.
func (s state) recordOf(id sandbox.ID, boxID string) (r record, ok bool) {
	text, err := os.ReadFile(s.path(id))
	if err != nil || json.Unmarshal(text, &r) != nil || r.Box != boxID {
		return record{}, false
	}
	return r, true
}

// kept is how long the record of a sandbox is kept that has ended by itself:
// whoever used it may still ask why.
const kept = 24 * time.Hour

// sweep removes records that nobody will ask for. The state of another key's
// sandboxes is unknown.
func (s state) sweep(now time.Time, a *api) {
	entries, _ := os.ReadDir(filepath.Join(s.dir, boxesDir)) // there may be none
	if len(entries) == 0 {
		return
	}
	scope, err := s.scope()
	if err != nil {
		return
	}
	for _, e := range entries {
		var r record
		text, err := os.ReadFile(s.path(sandbox.ID(e.Name())))
		if err != nil || json.Unmarshal(text, &r) != nil || now.Before(r.Ends.Add(kept)) || r.Binding != "" && r.Binding != a.binding(scope) {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // one try
		if l, err := s.lock(ctx, sandbox.ID(e.Name())); err == nil {
			if now.After(l.read().Ends.Add(kept)) {
				_ = l.remove()
			}
			l.unlock()
		}
	}
}
