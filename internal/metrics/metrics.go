// Package metrics counts what a daemon does, in the form that Prometheus
// reads. No name, tenant, path or key of anybody is part of a metric.
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

// Stats is what there is now.
type Stats struct {
	Sandboxes map[sandbox.State]int64 // of this daemon
	Leases    map[string]int64        // of all daemons on the database, by state
	// Unsettled is how many actions were announced and have no outcome yet.
	Unsettled int64
	// DiskFull: only what frees space can be done.
	DiskFull bool
	// Making and Waiting are the requests for sandboxes that are being carried out,
	// and those that wait until the machine can.
	Making, Waiting int
	// GatewaySilent: the gateway's process runs and does not answer.
	GatewaySilent bool
	// Warnings is how much is wrong with the default provider, stopped sandboxes
	// included.
	Warnings int
}

// Metrics counts requests. It may be used concurrently.
type Metrics struct {
	page     http.Handler
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	active   prometheus.Gauge
}

// New returns a Metrics that asks stats for what there is each time somebody
// reads it, and shows what leases counts.
func New(stats func(context.Context) (Stats, error), leases *Leases) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_http_requests_total", Help: "Requests that were answered, by the pattern of their path.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_http_request_seconds", Help: "How long requests took, streams included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_http_requests_active", Help: "Requests that are being answered."}),
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.requests, m.seconds, m.active, &population{stats}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg.MustRegister(leases.rotations, leases.evictions, leases.orphans, leases.acquire)
	m.page = promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

// ServeHTTP shows all metrics. Who may see them is the caller's business.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.page.ServeHTTP(w, r) }

// Wrap counts what next answers. next is, or ends in, a http.ServeMux, which
// tells the pattern.
func (m *Metrics) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		m.active.Inc()
		seen := &answer{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			m.active.Dec()
			route := r.Pattern // of a path that somebody made up there is none
			if route == "" || route == "/" {
				route = "other"
			}
			m.requests.WithLabelValues(route, strconv.Itoa(seen.status)).Inc()
			m.seconds.WithLabelValues(route).Observe(time.Since(began).Seconds())
		}()
		next.ServeHTTP(seen, r)
	})
}

// answer remembers the status of an answer.
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

// Unwrap lets http.ResponseController and WebSockets find what is below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

var (
	sandboxes   = prometheus.NewDesc("atoll_sandboxes", "Sandboxes of this daemon that are not gone, by state.", []string{"state"}, nil)
	leaseStates = prometheus.NewDesc("atoll_leases", "Leases of sessions in the database, of all its daemons, by state.", []string{"state"}, nil)
	unsettled   = prometheus.NewDesc("atoll_unsettled_actions", "Actions that were announced and have no outcome yet.", nil, nil)
	diskFull    = prometheus.NewDesc("atoll_disk_full", "Whether the disk is so full that nothing can be made.", nil, nil)
	making      = prometheus.NewDesc("atoll_sandboxes_in_progress", "Requests for sandboxes that are being carried out, or wait for the machine.", []string{"phase"}, nil)
	gateway     = prometheus.NewDesc("atoll_gateway_silent", "Whether the gateway's process runs and does not answer.", nil, nil)
	warnings    = prometheus.NewDesc("atoll_provider_warnings", "What atoll doctor warns of about the default provider, stopped sandboxes included.", nil, nil)
	storeUp     = prometheus.NewDesc("atoll_store_up", "Whether the database answers.", nil, nil)
)

// statsTimeout bounds what a reader of metrics waits for the database.
const statsTimeout = 5 * time.Second

// population tells what there is when it is asked.
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
