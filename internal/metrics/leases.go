package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Leases counts events of session leases. It is safe for concurrent use.
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
		rotations: counter("atoll_lease_rotations_total", "Rotations of sandboxes started because their deadline was near."),
		evictions: counter("atoll_lease_evictions_total", "Sandboxes saved while they had holders because their deadline was very near."),
		orphans:   counter("atoll_lease_orphans_ended_total", "Orphaned sandboxes of sessions that were ended."),
		acquire: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_lease_acquire_seconds", Help: "How long holders waited for the sandbox of a session, by their role.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120},
		}, []string{"role"}),
	}
}

// Acquired records how long a holder waited.
func (l *Leases) Acquired(role string, took time.Duration) {
	l.acquire.WithLabelValues(role).Observe(took.Seconds())
}

// Rotated counts the start of a rotation.
func (l *Leases) Rotated() { l.rotations.Inc() }

// Evicted counts an eviction.
func (l *Leases) Evicted() { l.evictions.Inc() }

// OrphanEnded counts the end of an orphan.
func (l *Leases) OrphanEnded() { l.orphans.Inc() }
