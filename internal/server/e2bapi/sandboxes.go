package e2bapi

import (
	"context"
	"maps"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Labels that record how a sandbox was requested. Metadata are labels, too, but
// may not have this prefix.
const (
	labelPrefix   = "e2b."
	labelTemplate = labelPrefix + "template"
	labelTimeout  = labelPrefix + "timeout" // seconds
	labelUser     = labelPrefix + "user"    // of commands and files for which the client names none
	labelDir      = labelPrefix + "dir"     // working directory of commands
	labelInternet = labelPrefix + "internet"
	labelPrivate  = labelPrefix + "private" // its ports require a token
	labelHost     = labelPrefix + "host"    // Host header of requests to its ports
	labelHTTPS    = labelPrefix + "https"   // its ports that serve HTTPS
	labelName     = labelPrefix + "name"    // of a snapshot
	labelTag      = labelPrefix + "tag"     // of a snapshot; empty: default
)

// newSandbox is a request to create a sandbox. Absent fields are nil or zero.
type newSandbox struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	Network             *network          `json:"network"`
	IAM                 *iam              `json:"iam"`
	AutoPause           bool              `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"`
	AutoResume          *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	VolumeMounts []volumeMount `json:"volumeMounts"`
}

// made describes a new sandbox to the client that created it.
type made struct {
	TemplateID         string  `json:"templateID"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken"`
	TrafficAccessToken string  `json:"trafficAccessToken"` // the code interpreter requires it, too
	Domain             *string `json:"domain"`
}

// listed is a sandbox in a listing.
type listed struct {
	TemplateID   string            `json:"templateID"`
	SandboxID    string            `json:"sandboxID"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata"`
	VolumeMounts []volumeMount     `json:"volumeMounts"`
}

// detail is a sandbox with everything that clients see.
type detail struct {
	listed
	EnvdAccessToken     string   `json:"envdAccessToken"`
	AllowInternetAccess *bool    `json:"allowInternetAccess"`
	Domain              *string  `json:"domain"`
	Network             *network `json:"network,omitempty"`
	Lifecycle           struct {
		AutoResume bool   `json:"autoResume"`
		OnTimeout  string `json:"onTimeout"`
	} `json:"lifecycle"`
}

// The default timeouts of both versions of the API, and the longest timeout.
const (
	timeoutV1  = 15 * time.Second
	timeoutV2  = 300 * time.Second
	maxTimeout = 10 * 365 * 24 * time.Hour
)

// sandboxAPI creates sandboxes, lists them and changes their state.
type sandboxAPI struct {
	*common
	finder
	lifecycle Lifecycle
	networks  Networks
	templates *templateAPI
	volumes   *volumeAPI
	identity  Identity
}

// finder finds the sandbox of a request by its path.
type finder struct{ sandboxes Sandboxes }

func (h *sandboxAPI) create(w http.ResponseWriter, r *http.Request) error {
	return h.createSandbox(w, r, timeoutV1)
}

func (h *sandboxAPI) createV2(w http.ResponseWriter, r *http.Request) error {
	return h.createSandbox(w, r, timeoutV2)
}

func (h *sandboxAPI) createSandbox(w http.ResponseWriter, r *http.Request, timeout time.Duration) error {
	var req newSandbox
	if err := read(r, &req); err != nil {
		return err
	}
	if err := req.refuse(); err != nil {
		return err
	}
	if req.IAM != nil && len(req.IAM.Tokens) > 0 {
		if err := h.identity.Available(); err != nil {
			return err
		}
	}
	timeout, err := seconds(req.Timeout, timeout)
	if err != nil {
		return err
	}
	spec, err := req.spec(timeout, h.internet(req.AllowInternetAccess))
	if err == nil {
		err = h.templates.resolve(r.Context(), &spec)
	}
	if err == nil {
		spec.Workspaces, err = h.volumes.mount(r.Context(), req.VolumeMounts)
	}
	if err != nil {
		return err
	}
	s, err := h.sandboxes.CreateFor(r.Context(), spec, max(timeout, time.Millisecond)) // 0 would mean no timeout
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, h.made(r.Context(), &s))
	return nil
}

// refuse returns an error for a feature that Atoll lacks.
func (req *newSandbox) refuse() error {
	switch {
	case req.AutoPauseMemory != nil && !req.AutoPause:
		return invalid("autoPauseMemory", "needs autoPause")
	case req.AutoPauseMemory != nil && !*req.AutoPauseMemory && req.AutoResume != nil && req.AutoResume.Enabled:
		return invalid("autoResume", "cannot resume a sandbox that keeps no memory")
	}
	return nil
}

// spec converts the request to a sandbox.Spec.
func (req *newSandbox) spec(timeout time.Duration, internet bool) (sandbox.Spec, error) {
	spec := sandbox.Spec{Env: req.EnvVars, Labels: map[string]string{}}
	for k, v := range req.Metadata {
		if strings.HasPrefix(k, labelPrefix) {
			return spec, invalid("metadata", "%.80q begins with %q, which Atoll keeps for itself", k, labelPrefix)
		}
		spec.Labels[k] = v
	}
	template := strings.ToLower(strings.TrimSpace(req.TemplateID))
	spec.Lifetime = req.lifetime()
	if err := req.Network.label(spec.Labels); err != nil {
		return spec, err
	}
	if err := req.IAM.label(spec.Labels); err != nil {
		return spec, err
	}
	spec.Labels[labelTemplate] = template
	spec.Labels[labelTimeout] = strconv.FormatInt(int64(timeout/time.Second), 10)
	if req.AllowInternetAccess != nil {
		spec.Labels[labelInternet] = strconv.FormatBool(*req.AllowInternetAccess)
	}
	var err error
	spec.Network, err = req.Network.spec(internet, audiences(spec.Labels))
	return spec, err
}

// imageScheme is the prefix of templates that are images. E2B has no such
// templates.
const imageScheme = "image:"

// lifetime returns what happens at the end of the sandbox's timeout.
func (req *newSandbox) lifetime() sandbox.Lifetime {
	l := sandbox.Lifetime{TimeoutAction: sandbox.IdleDelete, Wakes: req.AutoResume != nil && req.AutoResume.Enabled}
	if req.AutoPause {
		l.TimeoutAction = sandbox.IdleSleep
		if req.AutoPauseMemory != nil && !*req.AutoPauseMemory {
			l.TimeoutAction = sandbox.IdleStop
		}
	}
	return l
}

// seconds returns a number of seconds as a duration. 0 is valid, and means now.
func seconds(n *int64, otherwise time.Duration) (time.Duration, error) {
	switch {
	case n == nil:
		return otherwise, nil
	case *n < 0 || *n > int64(maxTimeout/time.Second):
		return 0, invalid("timeout", "%d is not a number of seconds between 0 and %d", *n, int64(maxTimeout/time.Second))
	}
	return time.Duration(*n) * time.Second, nil
}

func (h *common) made(ctx context.Context, s *sandbox.Sandbox) made {
	keyID := h.rights.Key(ctx)
	return made{
		TemplateID: templateName(s), SandboxID: publicID(s.ID), ClientID: "atoll", EnvdVersion: EnvdVersion, EnvdAccessToken: h.tokens.envd(s.ID, keyID),
		TrafficAccessToken: h.tokens.traffic(s.ID, keyID), Domain: h.domain(),
	}
}

func (h *common) domain() *string {
	if h.opts.Domain == "" {
		return nil
	}
	return &h.opts.Domain
}

// templateName returns the template of a sandbox. A sandbox that was created
// through another API has only an image.
func templateName(s *sandbox.Sandbox) string {
	if t := s.Labels[labelTemplate]; t != "" {
		return t
	}
	return imageScheme + s.Image
}

// stateOf returns E2B's name for the state of a sandbox. Sandboxes in a state
// that E2B lacks do not exist for its clients.
func stateOf(s *sandbox.Detail) (state string, exists bool) {
	switch s.State {
	case sandbox.Running, sandbox.Resuming:
		return "running", true
	case sandbox.Paused, sandbox.Pausing:
		return "paused", true
	case sandbox.Stopped:
		return "paused", s.Kept // stopped: only its files are kept kept
	}
	return "", false
}

// never is the end of a sandbox without a timeout.
var never = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

func toListed(s *sandbox.Detail) listed {
	state, _ := stateOf(s)
	l := listed{
		TemplateID: templateName(&s.Sandbox), SandboxID: publicID(s.ID), ClientID: "atoll", StartedAt: stamp(s.Created), EndAt: never, State: state,
		EnvdVersion: EnvdVersion, CPUCount: cpuCount(s.Resources.CPUs), MemoryMB: max(0, s.Resources.Memory>>20), DiskSizeMB: max(0, s.Resources.Disk>>20),
		Metadata: map[string]string{}, VolumeMounts: toMounts(s),
	}
	switch {
	case state == "paused":
		l.EndAt = stamp(s.Updated)
	case !s.Expires.IsZero():
		l.EndAt = stamp(s.Expires)
	}
	maps.Copy(l.Metadata, s.Labels)
	maps.DeleteFunc(l.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, labelPrefix) })
	return l
}

// stamp formats a time with the precision of E2B.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func cpuCount(cpus float64) int {
	if cpus <= 0 {
		return runtime.NumCPU()
	}
	return int(math.Ceil(cpus))
}

// find returns the sandbox of a request, if it exists for clients.
func (h finder) find(ctx context.Context, r *http.Request) (sandbox.Detail, error) {
	id, err := privateID(r.PathValue("id"))
	if err != nil {
		return sandbox.Detail{}, err
	}
	s, err := h.sandboxes.Inspect(ctx, string(id))
	if err != nil {
		return s, err
	}
	if _, exists := stateOf(&s); !exists {
		return s, noSandbox(r.PathValue("id"))
	}
	return s, nil
}

func (h *sandboxAPI) get(w http.ResponseWriter, r *http.Request) error {
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	d := detail{listed: toListed(&s), EnvdAccessToken: h.tokens.envd(s.ID, h.rights.Key(r.Context())), Domain: h.domain(), Network: toNetwork(&s)}
	d.Lifecycle.OnTimeout, d.Lifecycle.AutoResume = "kill", s.Lifetime.Wakes
	if a := s.Lifetime.TimeoutAction; a == sandbox.IdleSleep || a == sandbox.IdleStop {
		d.Lifecycle.OnTimeout = "pause"
	}
	if v, err := strconv.ParseBool(s.Labels[labelInternet]); err == nil {
		d.AllowInternetAccess = &v
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

func (h *sandboxAPI) kill(w http.ResponseWriter, r *http.Request) error {
	s, err := h.find(r.Context(), r)
	if err == nil {
		err = h.sandboxes.Destroy(r.Context(), string(s.ID))
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// connect ensures that a sandbox runs, with at least the requested timeout.
func (h *sandboxAPI) connect(w http.ResponseWriter, r *http.Request) error {
	return h.run(w, r, timeoutV2, false)
}

// resume is connect for old clients: the sandbox must be paused.
func (h *sandboxAPI) resume(w http.ResponseWriter, r *http.Request) error {
	return h.run(w, r, timeoutV1, true)
}

func (h *sandboxAPI) run(w http.ResponseWriter, r *http.Request, timeout time.Duration, paused bool) error {
	var req struct {
		Timeout *int64 `json:"timeout"`
		Memory  *bool  `json:"memory"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	timeout, err := seconds(req.Timeout, timeout)
	if err != nil {
		return err
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	state, _ := stateOf(&s)
	if state == "running" && paused {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: publicID(s.ID), Message: "the sandbox is running"}
	}
	status, memory := http.StatusOK, req.Memory == nil || *req.Memory
	var running sandbox.Sandbox
	if state == "running" {
		running, err = h.sandboxes.Expire(r.Context(), string(s.ID), h.opts.Now().Add(timeout), true)
	}
	if state == "paused" || sandbox.CodeOf(err) == sandbox.CodeConflict { // it was just paused
		status = http.StatusCreated
		running, err = h.wakeUntil(r, timeout, memory)
	}
	if err != nil {
		return err
	}
	writeJSON(w, status, h.made(r.Context(), &running))
	return nil
}

// wakeUntil resumes a sandbox and sets its timeout.
func (h *sandboxAPI) wakeUntil(r *http.Request, timeout time.Duration, memory bool) (running sandbox.Sandbox, err error) {
	s, err := h.find(r.Context(), r)
	if err == nil {
		err = h.wake(r.Context(), &s, memory)
	}
	if err != nil {
		return running, err
	}
	return h.sandboxes.Expire(r.Context(), string(s.ID), h.opts.Now().Add(timeout), false)
}

// wake resumes a paused sandbox, with its memory or only its files. It waits for
// other operations on the sandbox, and does nothing if it is running then.
func (h *sandboxAPI) wake(ctx context.Context, s *sandbox.Detail, memory bool) (err error) {
	switch ref := string(s.ID); {
	case !memory:
		_, err = h.lifecycle.Reboot(ctx, ref)
	case s.State == sandbox.Stopped:
		_, err = h.lifecycle.Start(ctx, ref)
	default:
		_, err = h.lifecycle.Resume(ctx, ref)
	}
	return err
}

func (h *sandboxAPI) setTimeout(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	if req.Timeout == nil {
		return invalid("timeout", "none given")
	}
	timeout, err := seconds(req.Timeout, 0)
	if err != nil {
		return err
	}
	return h.expire(w, r, timeout, false)
}

// maxRefresh is the longest time that a refresh can add.
const maxRefresh = 3600

func (h *sandboxAPI) refresh(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Duration int64 `json:"duration"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	if req.Duration < 0 || req.Duration > maxRefresh {
		return invalid("duration", "%d is not between 0 and %d", req.Duration, maxRefresh)
	}
	return h.expire(w, r, time.Duration(req.Duration)*time.Second, true)
}

func (h *sandboxAPI) expire(w http.ResponseWriter, r *http.Request, timeout time.Duration, extend bool) error {
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	if state, _ := stateOf(&s); state == "paused" {
		return noSandbox(publicID(s.ID))
	}
	if _, err := h.sandboxes.Expire(r.Context(), string(s.ID), h.opts.Now().Add(timeout), extend); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
