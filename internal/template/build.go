package template

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Config is an image's configuration.
type Config struct {
	Entrypoint   []string
	Cmd          []string
	Env          []string // NAME=value
	User         string
	Workdir      string
	Labels       map[string]string
	StopSignal   string
	ExposedPorts []string // "80/tcp", sorted
	Volumes      []string
}

// Image is a root file system for sandboxes.
type Image struct {
	Digest string
	Size   int64 // bytes on disk
	Config Config
}

// Layer is the difference between two root file systems, as a tar that may be
// compressed.
type Layer struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// Images stores images. It must be safe for concurrent use.
type Images interface {
	// Get pulls an image by reference or digest.
	Get(ctx context.Context, ref string) (Image, error)
	// Private pulls an image from a registry with a login, and stores it under a
	// name that other tenants cannot use.
	Private(ctx context.Context, name, ref string, login Login) (Image, error)
	// Derive creates an image by adding layers to another, and names it.
	Derive(ctx context.Context, name, base string, layers []Layer, cfg Config) (Image, error)
	// Derived returns the image of that name; found is false if there is none.
	Derived(name string) (img Image, found bool, err error)
}

// Login returns the credentials for a registry. It is a function, so that the
// password cannot be serialized.
type Login func() (username, password string)

// Sandboxes creates the sandboxes of build steps. It must be safe for concurrent
// use.
type Sandboxes interface {
	// Open creates a sandbox from an image digest, with that network. The caller
	// closes it.
	Open(ctx context.Context, digest string, network sandbox.Network) (Sandbox, error)
}

// Sandbox is a build sandbox.
type Sandbox interface {
	// Exec runs a command to its end and copies its standard output and error to
	// out.
	Exec(ctx context.Context, cmd sandbox.Command, out io.Writer) (sandbox.Exit, error)
	// ReadFile returns a file of at most max bytes.
	ReadFile(ctx context.Context, name string, max int64) ([]byte, error)
	// Diff writes the changes of the sandbox relative to its image, as an image
	// layer.
	Diff(ctx context.Context, w io.Writer) error
	// Close destroys the sandbox, even when ctx has ended.
	Close(ctx context.Context) error
}

// Request is a build request.
type Request struct {
	Tenant      string
	Description *Description
	Files       *Files // nil: none
	NoCache     bool
	Login       Login // for the registry of Description.From; nil: the shared credentials
	// Network lists the hosts that run steps may reach. It is not part of a step's
	// cache key.
	Network sandbox.Network
	// Log is called with the progress, by one goroutine at a time. It may be nil.
	Log func(durable.BuildEvent)
}

// NamedRequest is a request to build a template with a name.
type NamedRequest struct {
	Name        string // NAME[:TAG]
	Description *Description
	Files       *Files
	NoCache     bool
	Login       Login           // see Request
	Network     sandbox.Network // of run steps
	Build       string          // id of the build, if the client chose one
	CPUs        float64         // of sandboxes created from it; 0: the default
	Memory      int64           // likewise, in bytes
	Log         func(durable.BuildEvent)
}

// TarRequest is a request to build a template from a tar that contains its
// description.
type TarRequest struct {
	Name    string            // NAME[:TAG]
	File    string            // name of the description in Files; empty: Dockerfile
	Args    map[string]string // build arguments
	NoCache bool
	Egress  []string  // hosts that RUN steps may reach; nil: no network
	Start   string    // script to run in every sandbox of it; empty: as in the description
	Ready   string    // script that succeeds when the start script is ready
	Files   io.Reader // a tar of the build files
}

// Builder builds templates. It is safe for concurrent use. Concurrent builds of
// the same steps run them twice and store the result once.
type Builder struct {
	Images    Images
	Sandboxes Sandboxes
	Cache     *Cache
}

// Result is a built template.
type Result struct {
	Image  Image
	Base   string // digest of the base image
	Cached int    // number of steps taken from the cache
}

// Build runs the steps and returns the resulting image. On an error, completed
// steps stay in the cache, and nothing else remains.
func (b *Builder) Build(ctx context.Context, req Request) (*Result, error) {
	if err := req.Description.Validate(); err != nil {
		return nil, err
	}
	if err := req.Network.Validate(); err != nil {
		return nil, err
	}
	w := &work{b: b, req: req, files: cmp.Or(req.Files, &Files{})}
	w.tell(durable.BuildEvent{Text: "FROM " + clip(req.Description.From)})
	base, err := b.base(ctx, &req)
	if err != nil {
		return nil, err
	}
	w.at, w.cfg, w.key = base, cloneConfig(base.Config), firstKey(req.Tenant, base.Digest)
	for i := range req.Description.Steps {
		w.step = i + 1
		if err := w.do(ctx, &req.Description.Steps[i]); err != nil {
			return nil, err
		}
	}
	img, err := w.materialise(ctx)
	if err != nil {
		return nil, err
	}
	return &Result{Image: img, Base: base.Digest, Cached: w.cached}, nil
}

// base pulls the base image. If the pull used a login, the image and everything
// built from it belong to the tenant.
func (b *Builder) base(ctx context.Context, req *Request) (Image, error) {
	from := req.Description.From
	if req.Login == nil {
		return b.Images.Get(ctx, from)
	}
	return b.Images.Private(ctx, imageName(req.Tenant, hash("from", from)), from, req.Login)
}

// work is a build in progress.
type work struct {
	b     *Builder
	req   Request
	files *Files

	step   int    // from 1
	key    key    // of the current state
	at     Image  // the last state that is stored as an image
	above  []key  // cached layers on top of it
	cfg    Config // the configuration of the result
	moved  bool   // cfg differs from that of at
	cached int
}

func (w *work) tell(e durable.BuildEvent) {
	if w.req.Log == nil {
		return
	}
	e.Time, e.Step, e.Steps = time.Now().UTC(), w.step, len(w.req.Description.Steps)
	w.req.Log(e)
}

// do runs one step, or takes it from the cache.
func (w *work) do(ctx context.Context, s *Step) error {
	content := ""
	if s.Op == OpCopy {
		var err error
		if content, err = w.files.contentHash(s); err != nil {
			return err
		}
	}
	if s.Force || w.req.NoCache && (s.Op == OpRun || s.Op == OpCopy) {
		content += rand.Text() // so that no later step is taken from the cache either
	}
	next, err := w.key.next(s, content)
	if err != nil {
		return err
	}
	if s.Op != OpRun && s.Op != OpCopy {
		w.tell(durable.BuildEvent{Text: s.String()})
		w.key = next
		return w.configure(s)
	}
	hit := w.b.Cache.has(w.req.Tenant, next)
	w.tell(durable.BuildEvent{Text: s.String(), Cached: hit})
	switch {
	case hit:
		w.cached++
	case s.Op == OpCopy:
		err = w.copy(ctx, s, next)
	default:
		err = w.run(ctx, s, next)
	}
	if err != nil {
		return err
	}
	w.key, w.above = next, append(w.above, next)
	return nil
}

// configure runs a step that changes only the configuration.
func (w *work) configure(s *Step) error {
	w.moved = true
	c := &w.cfg
	switch s.Op {
	case OpEnv:
		for _, v := range s.Vars {
			c.Env = setEnv(c.Env, v)
		}
	case OpLabel:
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		for _, v := range s.Vars {
			c.Labels[v.Name] = v.Value
		}
	case OpUser:
		c.User = s.Args[0]
	case OpWorkdir:
		c.Workdir = absolute(c.Workdir, s.Args[0])
	case OpCmd:
		c.Cmd = argv(s)
	case OpEntrypoint:
		c.Entrypoint, c.Cmd = argv(s), nil
	case OpStopSignal:
		c.StopSignal = s.Args[0]
	case OpExpose:
		for _, p := range s.Args {
			if !strings.Contains(p, "/") {
				p += "/tcp"
			}
			if !slices.Contains(c.ExposedPorts, p) {
				c.ExposedPorts = append(c.ExposedPorts, p)
			}
		}
		slices.Sort(c.ExposedPorts)
	}
	return nil
}

func argv(s *Step) []string {
	if s.Shell != "" {
		return []string{"/bin/sh", "-c", s.Shell}
	}
	return slices.Clone(s.Args)
}

func setEnv(env []string, v Var) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, v.Name+"=") })
	return append(env, v.Name+"="+v.Value)
}

// absolute resolves a path against the working directory of the image.
func absolute(workdir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/", workdir, name)
}

// destination returns the destination of a copy step, without a leading slash.
// A trailing slash means a directory.
func destination(workdir string, s *Step) string {
	dest := s.Args[len(s.Args)-1]
	abs := strings.TrimPrefix(absolute(workdir, dest), "/")
	if strings.HasSuffix(dest, "/") || dest == "." || strings.HasSuffix(dest, "/.") {
		abs += "/"
	}
	return abs
}

// copy writes the layer of a copy step. It needs no sandbox: names are resolved
// when the layer is applied.
func (w *work) copy(ctx context.Context, s *Step, as key) error {
	own, err := w.owner(ctx, s)
	if err != nil {
		return err
	}
	return w.b.Cache.put(w.req.Tenant, as, func(out io.Writer) error {
		t := tar.NewWriter(out)
		if err := w.files.writeCopy(t, s, "/"+destination(w.cfg.Workdir, s), own); err != nil {
			return err
		}
		return t.Close()
	})
}

// owner resolves --chown in the image.
func (w *work) owner(ctx context.Context, s *Step) (owner, error) {
	chown := s.Chown
	if chown == "" && s.AsUser {
		chown = w.cfg.User
	}
	user, group, grouped := strings.Cut(chown, ":")
	if user == "" {
		return owner{}, nil
	}
	uid, uerr := strconv.ParseUint(user, 10, 31)
	gid, gerr := strconv.ParseUint(cmp.Or(group, user), 10, 31)
	if uerr == nil && gerr == nil {
		return owner{int(uid), int(gid)}, nil
	}
	img, err := w.materialise(ctx)
	if err != nil {
		return owner{}, err
	}
	sb, err := w.b.Sandboxes.Open(ctx, img.Digest, sandbox.Network{})
	if err != nil {
		return owner{}, err
	}
	defer func() { _ = sb.Close(ctx) }()
	const maxFile = 1 << 20
	if uerr != nil {
		users, err := sb.ReadFile(ctx, "/etc/passwd", maxFile)
		if err != nil {
			return owner{}, err
		}
		f := find(users, user, 4)
		if f == nil {
			return owner{}, w.unknown(user)
		}
		uid, _ = strconv.ParseUint(f[2], 10, 31)
		if !grouped {
			gid, _ = strconv.ParseUint(f[3], 10, 31)
		}
	}
	if grouped && gerr != nil {
		groups, err := sb.ReadFile(ctx, "/etc/group", maxFile)
		if err != nil {
			return owner{}, err
		}
		f := find(groups, group, 3)
		if f == nil {
			return owner{}, s.invalid("the image has no group %q", clip(group))
		}
		gid, _ = strconv.ParseUint(f[2], 10, 31)
	}
	return owner{int(uid), int(gid)}, nil
}

// find returns the fields of the line of passwd or group that begins with name.
func find(file []byte, name string, fields int) []string {
	for line := range strings.Lines(string(file)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= fields && f[0] == name {
			return f
		}
	}
	return nil
}

// run runs a command in a sandbox of the current state, and stores its changes.
func (w *work) run(ctx context.Context, s *Step, as key) (err error) {
	img, err := w.materialise(ctx)
	if err != nil {
		return err
	}
	sb, err := w.b.Sandboxes.Open(ctx, img.Digest, w.req.Network)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := sb.Close(ctx); err == nil {
			err = cerr
		}
	}()
	env := map[string]string{}
	for _, v := range s.BuildEnv {
		env[v.Name] = v.Value
	}
	for _, e := range w.cfg.Env {
		name, _, _ := strings.Cut(e, "=")
		delete(env, name) // ENV has precedence over ARG
	}
	cmd := sandbox.Command{Args: s.Args, Shell: s.Shell, User: s.User, Env: env}
	exit, err := sb.Exec(ctx, cmd, logWriter{w})
	if err != nil {
		return err
	}
	if exit.Code == notStarted && strings.HasPrefix(exit.Detail, "no such user") {
		return w.unknown(cmp.Or(s.User, w.cfg.User))
	}
	if exit.Code != 0 || exit.Reason != sandbox.ReasonExited {
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "template.build", Subject: fmt.Sprintf("step %d", w.step),
			Message: fmt.Sprintf("%q ended with code %d (%s)", clip(s.String()), exit.Code, exit.Reason),
			Hint:    "its output is in the build log",
		}
	}
	return w.b.Cache.put(w.req.Tenant, as, func(out io.Writer) error { return sb.Diff(ctx, out) })
}

// notStarted is the exit code of commands that cannot be started.
const notStarted = 126

// UnknownUserError is the cause of a build error: the image does not have this
// user.
type UnknownUserError struct{ User string }

func (e *UnknownUserError) Error() string {
	return fmt.Sprintf("the image has no user %q", clip(e.User))
}

// unknown returns an error of the current step.
func (w *work) unknown(user string) error {
	cause := &UnknownUserError{User: user}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: fmt.Sprintf("step %d", w.step), Message: cause.Error(), Cause: cause}
}

// logWriter reports output as it arrives.
type logWriter struct{ w *work }

func (l logWriter) Write(b []byte) (int, error) {
	l.w.tell(durable.BuildEvent{Text: string(b), Output: true})
	return len(b), nil
}

// materialise creates an image of the current state.
func (w *work) materialise(ctx context.Context) (Image, error) {
	if len(w.above) == 0 && !w.moved {
		return w.at, nil
	}
	name := imageName(w.req.Tenant, w.key)
	img, found, err := w.b.Images.Derived(name)
	if err == nil && !found {
		layers := make([]Layer, len(w.above))
		for i, k := range w.above {
			layers[i] = Layer{Name: string(k), Open: func() (io.ReadCloser, error) { return w.b.Cache.open(w.req.Tenant, k) }}
		}
		img, err = w.b.Images.Derive(ctx, name, w.at.Digest, layers, w.cfg)
	}
	if err != nil {
		return Image{}, err
	}
	w.at, w.above, w.moved = img, nil, false
	return img, nil
}

// NamePrefix is the prefix of the names of all images of builds.
const NamePrefix = "template/"

// imageName returns the name of a state's image in the image store. It is not a
// valid reference, so it cannot be requested.
func imageName(tenant string, k key) string { return ImagePrefix(tenant) + string(k) }

// ImagePrefix is the prefix of the names of all images of a tenant's builds.
func ImagePrefix(tenant string) string { return NamePrefix + string(hash(tenant))[:32] + "/" }

func cloneConfig(c Config) Config {
	c.Entrypoint, c.Cmd, c.Env = slices.Clone(c.Entrypoint), slices.Clone(c.Cmd), slices.Clone(c.Env)
	c.Labels, c.ExposedPorts, c.Volumes = maps.Clone(c.Labels), slices.Clone(c.ExposedPorts), slices.Clone(c.Volumes)
	return c
}
