package e2bapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// The states of a build.
const (
	buildWaiting  = "waiting"
	buildBuilding = "building"
	buildReady    = "ready"
	buildError    = "error"
)

// Limits of the remembered builds.
const (
	maxBuilds    = 256 // of a tenant
	maxBuildLogs = 20_000
	maxLogPage   = 100
)

// build is a requested build. Its state is lost when the daemon ends; the
// template is not.
type build struct {
	tenant  string
	want    order
	created time.Time

	mu       sync.Mutex
	status   string
	entries  []buildEntry
	line     string // an incomplete line of output
	step     int    // of the last entry
	reason   *buildReason
	finished time.Time
}

// buildEntry is a line of the log of a build.
type buildEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step,omitempty"`
}

// buildReason says why a build failed.
type buildReason struct {
	Message    string       `json:"message"`
	Step       string       `json:"step,omitempty"`
	LogEntries []buildEntry `json:"logEntries"`
}

// builds contains the remembered builds. Create it with newBuilds.
type builds struct {
	mu     sync.Mutex
	known  map[string]*build // by id
	queue  buildQueue
	life   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup
	closed bool
}

func newBuilds() *builds {
	b := &builds{known: map[string]*build{}}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// close cancels the running builds.
func (s *builds) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
}

// add remembers a build. It replaces the oldest finished one.
func (s *builds) add(b *build) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of(b.tenant) >= maxBuilds && !s.forgetOne(b.tenant) {
		return &sandbox.Error{Code: sandbox.CodeExhausted, Subject: "builds", Message: "too many builds go on", Hint: "wait until some are over"}
	}
	s.known[b.want.ID] = b
	return nil
}

// of returns the number of remembered builds of a tenant. The lock is held.
func (s *builds) of(tenant string) (n int) {
	for _, b := range s.known {
		if b.tenant == tenant {
			n++
		}
	}
	return n
}

func (s *builds) forgetOne(tenant string) bool {
	var oldest *build
	for _, b := range s.known {
		b.mu.Lock()
		idle := b.status != buildBuilding
		b.mu.Unlock()
		if idle && b.tenant == tenant && (oldest == nil || b.created.Before(oldest.created)) {
			oldest = b
		}
	}
	if oldest != nil {
		delete(s.known, oldest.want.ID)
	}
	return oldest != nil
}

// get returns a build of a tenant.
func (s *builds) get(tenant, template, id string) (*build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.known[id]
	if b == nil || b.tenant != tenant || b.want.Name != template {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: clip(id), Message: "no such build, or it has expired"}
	}
	return b, nil
}

// start runs a build on behalf of its caller.
func (s *builds) start(ctx context.Context, b *build, do func(context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case s.closed:
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon is ending"}
	case b.status != buildWaiting || b.begun():
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.want.ID, Message: "the build was started before"}
	}
	b.status = buildBuilding
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.life, cancel)
	s.work.Go(func() {
		defer cancel()
		defer stop()
		if s.queue.take(ctx, b.tenant) == nil {
			defer s.queue.done(b.tenant)
		}
		b.finish(do(ctx))
	})
	return nil
}

// begun reports whether a build was started. The caller holds mu.
func (b *build) begun() bool { return !b.finished.IsZero() }

func (b *build) finish(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flush(time.Now())
	b.status, b.finished = buildReady, time.Now()
	if err == nil {
		return
	}
	b.status = buildError
	b.reason = &buildReason{Message: buildProblem(err), Step: "base", LogEntries: []buildEntry{}}
	if b.step > 0 {
		b.reason.Step = strconv.Itoa(b.step)
	}
	last := b.entries[max(0, len(b.entries)-10):]
	b.reason.LogEntries = append(b.reason.LogEntries, last...)
	b.entries = append(b.entries, buildEntry{stamp(time.Now()), b.reason.Message, "error", b.reason.Step})
}

// buildProblem returns why a build failed, in E2B's format.
func buildProblem(err error) string {
	if unknown, ok := errors.AsType[*template.UnknownUserError](err); ok {
		return fmt.Sprintf("invalid username: '%.80s'", unknown.User)
	}
	return newProblem(err).Message
}

// tell logs messages of the builder, and splits output into lines.
func (b *build) tell(e durable.BuildEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Step != b.step || !e.Output {
		b.flush(e.Time)
	}
	b.step = e.Step
	if !e.Output {
		b.note(e.Time, e.Text)
		return
	}
	b.line += e.Text
	for {
		line, rest, whole := strings.Cut(b.line, "\n")
		if !whole && len(b.line) < maxLine {
			return
		}
		if !whole {
			line, rest = b.line[:maxLine], b.line[maxLine:]
		}
		b.note(e.Time, strings.TrimSuffix(line, "\r"))
		b.line = rest
	}
}

const maxLine = 4096

// flush logs the last, incomplete line.
func (b *build) flush(at time.Time) {
	if b.line != "" {
		b.note(at, b.line)
		b.line = ""
	}
}

func (b *build) note(at time.Time, text string) {
	switch len(b.entries) {
	case maxBuildLogs:
		return
	case maxBuildLogs - 1:
		text = "what comes after this is not kept"
	}
	step := ""
	if b.step > 0 {
		step = strconv.Itoa(b.step)
	}
	b.entries = append(b.entries, buildEntry{stamp(at), strings.ToValidUTF8(text, "\ufffd"), "info", step})
}

// buildAPI builds templates and receives the files for them.
type buildAPI struct {
	*common
	services  *Services
	templates *templateAPI
	builds    *builds
	tickets   tickets
	uploads   uploads
}

func newBuildAPI(c *common, s *Services, t *templateAPI) *buildAPI {
	return &buildAPI{common: c, services: s, templates: t, builds: newBuilds(), uploads: uploads{c.opts.Uploads}}
}

// create creates a build. Its description is sent later.
func (h *buildAPI) create(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name     string   `json:"name"`
		Alias    string   `json:"alias"` // of old clients
		Tags     []string `json:"tags"`
		CPUCount int      `json:"cpuCount"`
		MemoryMB int64    `json:"memoryMB"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	whole := cmp.Or(req.Name, req.Alias)
	name, first := splitRef(r.Context(), whole)
	if name == "" || isBase(name) || strings.Contains(name, "/") {
		return invalid("name", "%.80q cannot be the name of a template of your tenant", name)
	}
	if req.CPUCount < 0 || req.MemoryMB < 0 {
		return invalid("template", "cpuCount or memoryMB is negative")
	}
	if strings.Contains(whole, ":") || len(req.Tags) == 0 {
		req.Tags = append([]string{first}, req.Tags...)
	}
	tags, err := ownTags(req.Tags)
	if err != nil {
		return err
	}
	known, err := h.templates.tags(r.Context(), name)
	if err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: it ends the program instead
	b := &build{
		tenant: tenantOf(r.Context()), status: buildWaiting, created: h.opts.Now(),
		want: order{ID: uuid(id), Name: name, Tags: tags, CPUs: float64(req.CPUCount), Memory: req.MemoryMB << 20},
	}
	if err := h.builds.add(b); err != nil {
		return err
	}
	shown := make([]string, len(tags))
	for i, tag := range tags {
		shown[i] = toTag(tag)
	}
	writeJSON(w, http.StatusAccepted, map[string]any{
		"templateID": name, "buildID": b.want.ID, "public": len(known) > 0 && known[0].Public, "names": []string{name}, "tags": shown, "aliases": []string{name},
	})
	return nil
}

// find returns the build that a path names.
func (h *buildAPI) find(r *http.Request) (*build, error) {
	name, _ := splitRef(r.Context(), r.PathValue("id"))
	return h.builds.get(tenantOf(r.Context()), name, r.PathValue("build"))
}

// start starts a build from its description.
func (h *buildAPI) start(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		FromImage         string         `json:"fromImage"`
		FromTemplate      string         `json:"fromTemplate"`
		FromImageRegistry *registryLogin `json:"fromImageRegistry"`
		Force             bool           `json:"force"`
		Steps             []buildStep    `json:"steps"`
		StartCmd          string         `json:"startCmd"`
		ReadyCmd          string         `json:"readyCmd"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	b, err := h.find(r)
	if err != nil {
		return err
	}
	if (req.FromImage == "") == (req.FromTemplate == "") {
		return invalid("template", "exactly one of fromImage and fromTemplate is needed")
	}
	want := b.want
	want.Steps, want.Start, want.Ready, want.Force = req.Steps, req.StartCmd, req.ReadyCmd, req.Force
	switch login := req.FromImageRegistry; {
	case login == nil:
		want.From, err = h.from(r.Context(), req.FromImage, req.FromTemplate)
	case req.FromImage == "":
		err = invalid("fromImageRegistry", "is for fromImage")
	default:
		want.From = req.FromImage
		want.Login, err = login.open()
		want.Region = login.Region
	}
	if err != nil {
		return err
	}
	if ready := want.From == "host" || want.From == "base" || want.From == interpreterImage || want.From == desktopName; ready ||
		!strings.HasPrefix(want.From, template.Prefix) && len(want.Steps) > 0 {
		want.User, want.MakeUser = defaultUser, !ready
	}
	if h.opts.Internet {
		want.Network = sandbox.Network{Inline: &sandbox.Profile{Default: sandbox.Allow}}
	}
	err = h.builds.start(r.Context(), b, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon ended before the build", Cause: err}
		}
		if want.Region != "" {
			accessKey, secret := want.Login()
			login, err := h.services.ECRLogin(ctx, want.From, accessKey, func() string { return secret }, want.Region)
			if err != nil {
				return err
			}
			want.Login = login
		}
		return h.build(ctx, &want, b.tell)
	})
	if err == nil {
		w.WriteHeader(http.StatusAccepted)
	}
	return err
}

// registryLogin is a client's credential for a registry.
type registryLogin struct {
	Type               string `json:"type"`
	Username           string `json:"username"`
	Password           string `json:"password"`
	ServiceAccountJSON string `json:"serviceAccountJson"`
	AccessKey          string `json:"awsAccessKeyId"`
	SecretKey          string `json:"awsSecretAccessKey"`
	Region             string `json:"awsRegion"`
}

// maxLogin limits each part of a login.
const maxLogin = 64 << 10

// open returns the login for the builder. With a region, it contains AWS keys,
// which are exchanged for the registry's login.
func (l *registryLogin) open() (func() (username, password string), error) {
	username, password := l.Username, l.Password
	switch l.Type {
	case "registry":
	case "gcp": // the user name of Google's registries for such keys
		username, password = "_json_key", l.ServiceAccountJSON
	case "aws":
		if username, password = l.AccessKey, l.SecretKey; l.Region == "" {
			return nil, invalid("fromImageRegistry", "the region is missing")
		}
	default:
		return nil, invalid("fromImageRegistry", "the type is not one of registry, gcp and aws")
	}
	if l.Type != "aws" && l.Region != "" {
		return nil, invalid("fromImageRegistry", "a region is for the type aws")
	}
	switch {
	case username == "" || strings.Contains(username, ":") || len(username) > maxLogin:
		return nil, invalid("fromImageRegistry", "the user name is missing, too long, or has a colon")
	case password == "" || len(password) > maxLogin:
		return nil, invalid("fromImageRegistry", "the password is missing or too long")
	}
	return func() (string, string) { return username, password }, nil
}

// baseImages are the images that SDKs use by default. They mean the template base.
var baseImages = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(docker\.io/)?e2bdev/(base|code-interpreter)(:[a-zA-Z0-9_.-]+)?$`)
})

// from returns the image or template that a build starts from.
func (h *buildAPI) from(ctx context.Context, image, template string) (string, error) {
	name, _ := splitRef(ctx, template)
	if baseImages().MatchString(image) {
		name = "base"
		if strings.Contains(image, interpreterImage) {
			name = interpreterName
		}
	}
	switch {
	case isBase(name):
		return h.templates.baseImage(ctx, name)
	case image != "":
		return strings.TrimPrefix(image, imageScheme), nil
	}
	_, from, err := h.templates.find(ctx, template)
	if err != nil || from != "" {
		return from, err
	}
	if there, err := h.templates.isDesktop(ctx, name); err != nil || there {
		return desktopName, err
	}
	return "", noTemplate(template)
}

func (h *buildAPI) status(w http.ResponseWriter, r *http.Request) error {
	b, err := h.find(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	offset, limit := 0, maxLogPage
	if text := q.Get("logsOffset"); text != "" {
		if offset, err = strconv.Atoi(text); err != nil || offset < 0 {
			return invalid("logsOffset", "is not a number of entries")
		}
	}
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 || limit > maxLogPage {
			return invalid("limit", "is not between 0 and %d", maxLogPage)
		}
	}
	least := 0
	if level := q.Get("level"); level != "" {
		if least = slices.Index(logLevels, level); least < 0 {
			return invalid("level", "is not one of %s", strings.Join(logLevels, ", "))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	page := []buildEntry{}
	for _, e := range b.entries[min(offset, len(b.entries)):] {
		if slices.Index(logLevels, e.Level) >= least && len(page) < limit {
			page = append(page, e)
		}
	}
	out := map[string]any{"templateID": b.want.Name, "buildID": b.want.ID, "status": b.status, "logs": []string{}, "logEntries": page}
	if b.reason != nil {
		out["reason"] = b.reason
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// logs returns only the entries from a time on.
func (h *buildAPI) logs(w http.ResponseWriter, r *http.Request) error {
	b, err := h.find(r)
	if err != nil {
		return err
	}
	q, err := logQuery(r.URL.Query(), "cursor")
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	page := []buildEntry{}
	for _, e := range b.entries {
		if !e.Timestamp.Before(q.since) && len(page) < min(q.limit, maxLogPage) {
			page = append(page, e)
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": page})
	return nil
}
