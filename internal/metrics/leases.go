package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Leases counts what happens to the leases of sessions. It may be used
// concurrently.
type Leases struct {
	rotations, evictions, orphans prometheus.Counter
	acquire                       *prometheus.HistogramVec
}

// NewLeases returns a Leases for [New].
func NewLeases() *Leases {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Leases{
		rotations: counter("atoll_lease_rotations_total", "Rotations of sandboxes that were begun because their deadline is near."),
		evictions: counter("atoll_lease_evictions_total", "Sandboxes that were saved while they had holders because their deadline is very near."),
		orphans:   counter("atoll_lease_orphans_ended_total", "Sandboxes that an attempt made, nobody wanted and were ended."),
		acquire: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_lease_acquire_seconds", Help: "How long holders waited for the sandbox of a session, by the role that they got.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120},
		}, []string{"role"}),
	}
}

// Acquired records how long a holder waited.
func (l *Leases) Acquired(role string, took time.Duration) {
	l.acquire.WithLabelValues(role).Observe(took.Seconds())
}

// Rotated counts a rotation that was begun.
func (l *Leases) Rotated() { l.rotations.Inc() }

// Evicted counts an eviction.
func (l *Leases) Evicted() { l.evictions.Inc() }

// OrphanEnded counts an orphan that was ended.
func (l *Leases) OrphanEnded() { l.orphans.Inc() }
