package e2bapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// metric is the resource usage of a sandbox at one time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// metricsAPI serves the resource usage of sandboxes.
type metricsAPI struct {
	finder
	usage Usage
}

// measure returns the present usage of a sandbox. The CPU usage is the average
// since its creation, because there are no samples in between.
func (h *metricsAPI) measure(r *http.Request, s *sandbox.Sandbox) ([]metric, error) {
	if s.State != sandbox.Running {
		return []metric{}, nil
	}
	u, err := h.usage.Usage(r.Context(), string(s.ID))
	if err != nil {
		return nil, err
	}
	m := metric{
		Timestamp: stamp(u.Sampled), TimestampUnix: u.Sampled.Unix(), CPUCount: cpuCount(s.Resources.CPUs),
		MemUsed: max(0, u.Memory), MemTotal: max(0, s.Resources.Memory), DiskUsed: max(0, u.Disk), DiskTotal: max(0, s.Resources.Disk),
	}
	if lived := u.Sampled.Sub(s.Created); lived > 0 && u.CPU > 0 {
		m.CPUUsedPct = min(100, 100*u.CPU.Seconds()/lived.Seconds()/float64(m.CPUCount))
	}
	return []metric{m}, nil
}

func (h *metricsAPI) metrics(w http.ResponseWriter, r *http.Request) error {
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	all, err := h.measure(r, &s.Sandbox)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	for name, outside := range map[string]func(at, bound int64) bool{
		"start": func(at, bound int64) bool { return at < bound }, "end": func(at, bound int64) bool { return at > bound },
	} {
		if bound, err := strconv.ParseInt(q.Get(name), 10, 64); err == nil && len(all) > 0 && outside(all[0].TimestampUnix, bound) {
			all = []metric{}
		}
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

func (h *metricsAPI) metricsOfMany(w http.ResponseWriter, r *http.Request) error {
	ids := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
	if len(ids) > maxPage {
		return invalid("sandbox_ids", "are more than %d", maxPage)
	}
	out := map[string]metric{}
	for _, public := range ids {
		r.SetPathValue("id", public)
		s, err := h.find(r.Context(), r)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue
		}
		var m []metric
		if err == nil {
			m, err = h.measure(r, &s.Sandbox)
		}
		if err != nil {
			return err
		}
		if len(m) > 0 {
			out[publicID(s.ID)] = m[0]
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"sandboxes": out})
	return nil
}
