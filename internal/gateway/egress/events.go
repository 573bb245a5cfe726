package egress

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// Event is one decision.
type Event = messages.Event

// Limits on the events of one sandbox, because a sandbox can cause any number.
const (
	eventsPerSecond = 50
	eventBurst      = 200
)

// eventReporter reports events up to a rate limit, and counts the dropped ones.
type eventReporter struct {
	send  func(Event)
	limit *rate.Limiter

	mu     sync.Mutex
	missed int
}

func newEventReporter(send func(Event)) *eventReporter {
	return &eventReporter{send: send, limit: rate.NewLimiter(eventsPerSecond, eventBurst)}
}

func (t *eventReporter) tell(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	t.mu.Lock()
	if !t.limit.Allow() {
		t.missed++
		t.mu.Unlock()
		return
	}
	e.Missed, t.missed = t.missed, 0
	t.mu.Unlock()
	t.send(e)
}
