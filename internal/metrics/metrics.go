// Package metrics provides Prometheus metrics of a daemon. Metrics contain no
// names, tenants, paths or keys.
package metrics

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/atoll-run/atoll/sandbox"
)

// Stats is the current state of a daemon.
type Stats struct {
	Sandboxes map[sandbox.State]int64 // of this daemon
	Leases    map[string]int64        // of all daemons on the database, by state
	// Unsettled is the number of attempts without a recorded outcome.
	Unsettled int64
	// DiskFull means that only operations that free space are possible.
	DiskFull bool
	// Making and Waiting are the numbers of sandbox creations in progress, and of
	// those waiting for admission.
	Making, Waiting int
	// GatewaySilent means that the gateway process is running but does not
	// respond.
	GatewaySilent bool
	// Machines counts the self-hosted machines that this daemon has heard, by
	// liveness, and MachineStreams the connections to their daemons.
	Machines       map[string]int
	MachineStreams int
	// HeldBytes and HeldTime are what streams of desktops, terminals and ports were
	// too fast for.
	HeldBytes int64
	HeldTime  time.Duration
	// Warnings is the number of warnings about the default provider, including
	// those about stopped sandboxes.
	Warnings int
}

// Metrics counts requests. It is safe for concurrent use.
type Metrics struct {
	page     http.Handler
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	active   prometheus.Gauge
}

// New returns a Metrics that calls stats whenever the metrics are read. It also
// serves the metrics of leases.
func New(stats func(context.Context) (Stats, error), leases *Leases) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_http_requests_total", Help: "Completed requests, by path pattern.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_http_request_seconds", Help: "Duration of requests, including streams.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_http_requests_active", Help: "Requests in progress."}),
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.requests, m.seconds, m.active, &population{stats}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg.MustRegister(leases.rotations, leases.evictions, leases.orphans, leases.acquire)
	m.page = promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

// ServeHTTP serves all metrics. The caller controls access.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.page.ServeHTTP(w, r) }

// Wrap counts the requests of next, which must be or end in a http.ServeMux
// that sets the pattern.
func (m *Metrics) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		m.active.Inc()
		seen := &answer{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			m.active.Dec()
			route := r.Pattern // empty for an unknown path
			if route == "" || route == "/" {
				route = "other"
			}
			m.requests.WithLabelValues(route, strconv.Itoa(seen.status)).Inc()
			m.seconds.WithLabelValues(route).Observe(time.Since(began).Seconds())
		}()
		next.ServeHTTP(seen, r)
	})
}

// answer records the status of a response.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap gives http.ResponseController and WebSockets access to the underlying
// writer.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

var (
	sandboxes   = prometheus.NewDesc("atoll_sandboxes", "Sandboxes of this daemon that are not gone, by state.", []string{"state"}, nil)
	leaseStates = prometheus.NewDesc("atoll_leases", "Leases of sessions in the database, of all its daemons, by state.", []string{"state"}, nil)
	unsettled   = prometheus.NewDesc("atoll_unsettled_actions", "Attempted actions without a recorded outcome.", nil, nil)
	diskFull    = prometheus.NewDesc("atoll_disk_full", "Whether the disk is too full to create sandboxes.", nil, nil)
	making      = prometheus.NewDesc("atoll_sandboxes_in_progress", "Creations of sandboxes that are in progress or waiting.", []string{"phase"}, nil)
	gateway     = prometheus.NewDesc("atoll_gateway_silent", "Whether the gateway process is running but does not respond.", nil, nil)
	machines    = prometheus.NewDesc("atoll_machines", "Self-hosted machines that this daemon has heard, by liveness.", []string{"liveness"}, nil)
	streams     = prometheus.NewDesc("atoll_machine_streams", "Connections of this daemon to self-hosted machines.", nil, nil)
	warnings    = prometheus.NewDesc("atoll_provider_warnings", "Number of warnings of atoll doctor about the default provider, including those about stopped sandboxes.", nil, nil)
	heldBytes   = prometheus.NewDesc("atoll_stream_held_bytes_total", "Bytes of streams of desktops, terminals and ports that waited because of their rate.", nil, nil)
	heldTime    = prometheus.NewDesc("atoll_stream_held_seconds_total", "How long they waited, all together.", nil, nil)
	storeUp     = prometheus.NewDesc("atoll_store_up", "Whether the database responds.", nil, nil)
)

// statsTimeout limits the wait for the database when metrics are read.
const statsTimeout = 5 * time.Second

// population collects the current state.
type population struct {
	stats func(context.Context) (Stats, error)
}

func (p *population) Describe(to chan<- *prometheus.Desc) {
	to <- sandboxes
	to <- leaseStates
	to <- unsettled
	to <- storeUp
	to <- diskFull
	to <- making
	to <- gateway
	to <- warnings
	to <- machines
	to <- streams
	to <- heldBytes
	to <- heldTime
}

func (p *population) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	c, err := p.stats(ctx)
	if err != nil {
		to <- prometheus.MustNewConstMetric(storeUp, prometheus.GaugeValue, 0)
		return
	}
	to <- prometheus.MustNewConstMetric(storeUp, prometheus.GaugeValue, 1)
	to <- prometheus.MustNewConstMetric(gateway, prometheus.GaugeValue, number(c.GatewaySilent))
	to <- prometheus.MustNewConstMetric(warnings, prometheus.GaugeValue, float64(c.Warnings))
	to <- prometheus.MustNewConstMetric(making, prometheus.GaugeValue, float64(c.Making), "making")
	to <- prometheus.MustNewConstMetric(making, prometheus.GaugeValue, float64(c.Waiting), "waiting")
	to <- prometheus.MustNewConstMetric(diskFull, prometheus.GaugeValue, number(c.DiskFull))
	to <- prometheus.MustNewConstMetric(unsettled, prometheus.GaugeValue, float64(c.Unsettled))
	to <- prometheus.MustNewConstMetric(streams, prometheus.GaugeValue, float64(c.MachineStreams))
	to <- prometheus.MustNewConstMetric(heldBytes, prometheus.CounterValue, float64(c.HeldBytes))
	to <- prometheus.MustNewConstMetric(heldTime, prometheus.CounterValue, c.HeldTime.Seconds())
	for liveness, n := range c.Machines {
		to <- prometheus.MustNewConstMetric(machines, prometheus.GaugeValue, float64(n), liveness)
	}
	for state, n := range c.Sandboxes {
		to <- prometheus.MustNewConstMetric(sandboxes, prometheus.GaugeValue, float64(n), string(state))
	}
	for state, n := range c.Leases {
		to <- prometheus.MustNewConstMetric(leaseStates, prometheus.GaugeValue, float64(n), state)
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
