package remote

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
)

// holdAgain is how long a rejoined command is kept here. Its original Hold is
// no longer known.
const holdAgain = 5 * time.Minute

// rejoins implements driver.Rejoiner.
type rejoins struct{ *remoteSandbox }

// Rejoin implements driver.Rejoiner.
func (r rejoins) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (proc driver.Process, at driver.Cursor, err error) {
	if err := checkID(id); err != nil {
		return nil, at, err
	}
	if err := ctx.Err(); err != nil {
		return nil, at, err
	}
	if p := r.p.recall(r.key(id)); p != nil {
		again, err := p.rewind(from)
		if err != nil {
			p.giveUp()
			return nil, at, err
		}
		return again, from, nil
	}
	err = r.do(ctx, func() error {
		p, where, err := r.s.Rejoin(ctx, id, atoll.Position(from), skip)
		if err == nil {
			proc, at = r.process(p, holdAgain), driver.Cursor(where)
			proc.(*process).begin(at)
		}
		return err
	})
	return proc, at, err
}

// key identifies a command among all commands of the provider.
func (s *remoteSandbox) key(id string) string { return string(s.s.ID()) + "/" + id }

// recall removes and returns a command that leave kept.
func (p *Provider) recall(key string) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.left[key]
	delete(p.left, key)
	return found
}

// leave keeps an ended command for a disconnected caller for the duration of
// its Hold. The other daemon no longer keeps it.
func (p *Provider) leave(key string, one *process) {
	p.mu.Lock()
	if p.left == nil {
		p.left = map[string]*process{}
	}
	p.left[key] = one
	p.mu.Unlock()
	time.AfterFunc(one.hold, func() {
		p.mu.Lock()
		mine := p.left[key] == one
		if mine {
			delete(p.left, key)
		}
		p.mu.Unlock()
		if mine {
			one.giveUp()
		}
	})
}

// kept is how many bytes are kept to be read again: more than can be in transit
// to a caller.
const kept = 2 << 20

// replay is a stream that can be rewound a little.
type replay struct {
	r io.Reader

	mu   sync.Mutex
	at   int64  // bytes read
	tail []byte // the last bytes read
	back int    // how many bytes of the tail to read again
}

// Read implements io.Reader.
func (s *replay) Read(b []byte) (int, error) {
	s.mu.Lock()
	if s.back > 0 {
		n := copy(b, s.tail[len(s.tail)-s.back:])
		s.back -= n
		s.mu.Unlock()
		return n, nil
	}
	s.mu.Unlock()
	n, err := s.r.Read(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at += int64(n)
	if s.tail = append(s.tail, b[:n]...); len(s.tail) > 2*kept {
		s.tail = append([]byte(nil), s.tail[len(s.tail)-kept:]...)
	}
	return n, err
}

// rewind makes the next Read start at an offset and reports whether it can.
func (s *replay) rewind(to int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	back := s.at - to
	if back < 0 || back > int64(len(s.tail)) {
		return false
	}
	s.back = int(back)
	return true
}
