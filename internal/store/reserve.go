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

// A database file shares its disk with sandboxes, which may fill it. Every
// action must be recorded, so even actions that free space need some. A file
// next to the database reserves it; it is released in parts to the transactions
// that may use it.
const (
	reserveSize = 8 << 20
	reservePart = 512 << 10 // released at a time
)

type reserveKey struct{}

// WithReserve returns a context for transactions that may use the space
// reserved for a full disk. It is for actions that free space, and for the
// outcomes of recorded intents.
func WithReserve(ctx context.Context) context.Context {
	return context.WithValue(ctx, reserveKey{}, true)
}

// MayUseReserve reports whether a context is one of WithReserve.
func MayUseReserve(ctx context.Context) bool {
	may, _ := ctx.Value(reserveKey{}).(bool)
	return may
}

// reserve is that file. Its methods may be called concurrently. A nil reserve
// is for a database server and is always full.
type reserve struct {
	path string

	mu   sync.Mutex
	left int64
}

// openReserve reserves space, as much as is available.
func openReserve(path string) *reserve {
	r := &reserve{path: path}
	r.fill()
	return r
}

// fill restores the full size of the reserve, and reports whether that succeeded.
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
		_ = f.Truncate(r.left) // a part would be useless
		return false
	}
	r.left = reserveSize
	return true
}

// give releases a part of it, and reports whether there was any.
func (r *reserve) give() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if info, err := os.Stat(r.path); err == nil {
		r.left = min(info.Size(), reserveSize) // smaller if an earlier process used a part and the disk was still full
	}
	if r.left == 0 {
		return false
	}
	r.left = max(r.left-reservePart, 0)
	return os.Truncate(r.path, r.left) == nil
}

// errReserved is the error of transactions that may not use the reserve.
var errReserved = errors.New("the rest of the disk is reserved for what frees space")

// withReserve runs an update, with the reserve if the context allows it. Other
// updates are refused while the reserve is not full.
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

// Full reports whether the reserve was used and is not restored yet. Until
// then, only actions that free space can be recorded.
func (s *Store) Full() bool { return !s.reserve.fill() }
