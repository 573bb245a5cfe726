package lease

import "time"

// Rotate prepares the replacement of a sandbox whose lifetime ends soon: it
// gets no new holders, and is drained without a grace period once it has none.
type Rotate struct{ Epoch int64 }

func (o Rotate) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !l.Serves() || l.Epoch != o.Epoch {
		return Effect{}, nil
	}
	l.Rotating, l.Retry = true, time.Time{}
	switch {
	case l.State == Draining:
		l.Expires = m.now
	case len(l.Holders) == 0:
		m.drain()
	}
	return Effect{Done: true}, nil
}

// Evict drains a rotating sandbox that still has holders, because its deadline
// is near. It serves no requests from then on. The holders stay, and get the
// next sandbox when they acquire again.
type Evict struct{ Epoch int64 }

func (o Evict) apply(m *machine) (Effect, error) {
	l := &m.lease
	if l.State != Warm || l.Epoch != o.Epoch || !l.Rotating || !l.Moving.IsZero() && m.now.Before(l.Moving) {
		return Effect{}, nil
	}
	m.drain()
	l.Evicting = true
	return Effect{Done: true}, nil
}

// retryRotation is the time after a failed rotation before the next attempt.
const retryRotation = 5 * time.Minute

// Keep ends a rotation that failed before the sandbox was being ended. The
// sandbox continues to serve, and is rotated again after retryRotation, or when
// the last quarter of its lead begins.
type Keep struct{ Epoch, Drain int64 }

func (o Keep) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !l.Rotating || l.Ending || !m.unwanted(o.Epoch, o.Drain) {
		return Effect{}, nil
	}
	l.Rotating, l.Evicting, l.Retry = false, false, m.now.Add(min(retryRotation, l.Lead()/8))
	if last := l.Deadline.Add(-l.Lead() / 4); m.now.Before(last) && l.Retry.After(last) {
		l.Retry = last
	}
	if len(l.Holders) > 0 {
		l.State, l.Expires = Warm, time.Time{}
	}
	return Effect{Done: true}, nil
}
