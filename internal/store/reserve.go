package store

import (
	"context"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// A database file shares its disk with sandboxes, which may fill it. Nothing is
// done that cannot be written down, so what frees space needs some to begin
// with: it is kept in a file beside the database, and given back bit by bit to
// the transactions that may use it.
const (
	reserveSize = 8 << 20
	reservePart = 512 << 10 // given back at a time
)

type reserveKey struct{}

// WithReserve returns a context whose transactions may use the space that is
// kept for a full disk. It is for what frees space, and for the outcome of what
// was written down before.
func WithReserve(ctx context.Context) context.Context {
	return context.WithValue(ctx, reserveKey{}, true)
}

// MayUseReserve reports whether a context is one of WithReserve.
func MayUseReserve(ctx context.Context) bool {
	may, _ := ctx.Value(reserveKey{}).(bool)
	return may
}

// reserve is that file. Its methods may be called concurrently; a nil reserve is
// that of a database elsewhere, and always whole.
type reserve struct {
	path string

	mu   sync.Mutex
	left int64
}

// openReserve sets space aside, as much as there is.
func openReserve(path string) *reserve {
	r := &reserve{path: path}
	r.fill()
	return r
}

// fill brings the reserve to its size again, and reports whether it has that.
func (r *reserve) fill() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == reserveSize {
		return true
	}
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, reserveSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, reserveSize), 0)
	}
	if err != nil {
		_ = f.Truncate(r.left) // half of it would be of no use to anybody
		return false
	}
	r.left = reserveSize
	return true
}

// give gives some of it back to the disk, and reports whether there was any.
func (r *reserve) give() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if info, err := os.Stat(r.path); err == nil {
		r.left = min(info.Size(), reserveSize) // of an earlier process, if the disk was full when it was opened
	}
	if r.left == 0 {
		return false
	}
	r.left = max(r.left-reservePart, 0)
	return os.Truncate(r.path, r.left) == nil
}

// errReserved refuses what may not use the reserve.
var errReserved = errors.New("the rest of the disk is reserved for what frees space")

// withReserve runs an update, with the reserve where it may have that. What may
// not is refused while some of the reserve is missing.
func (s *Store) withReserve(ctx context.Context, update func() error) error {
	may := MayUseReserve(ctx)
	if !s.reserve.fill() && !may {
		return exhausted(errReserved)
	}
	err := update()
	for may && diskFull(err) && s.reserve.give() {
		err = update()
	}
	return err
}

func diskFull(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == lib.SQLITE_FULL
}

// Full reports whether what frees space had to use the reserve, and nothing else
// can be recorded until there is room for it again.
func (s *Store) Full() bool { return !s.reserve.fill() }
