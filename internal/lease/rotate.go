package lease

import "time"

// Rotate has the sandbox replaced because its lifetime ends soon: it takes no
// new holder, and is drained without a grace period once it has none.
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

// Evict drains a rotating sandbox that still has holders, because its deadline is
// near. It serves nobody from then on. The holders stay, and get the next
// sandbox when they acquire again.
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

// retryRotation is how long a sandbox serves after its rotation failed, before
// it is tried again.
const retryRotation = 5 * time.Minute

// Keep ends a rotation that failed before the sandbox was being ended: the
// sandbox goes on serving, and is rotated again after a while.
type Keep struct{ Epoch, Drain int64 }

func (o Keep) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !l.Rotating || l.Ending || !m.unwanted(o.Epoch, o.Drain) {
		return Effect{}, nil
	}
	l.Rotating, l.Evicting, l.Retry = false, false, m.now.Add(min(retryRotation, l.Lead()/8))
	if len(l.Holders) > 0 {
		l.State, l.Expires = Warm, time.Time{}
	}
	return Effect{Done: true}, nil
}
