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
)

// Config is what an image says about how to run it.
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

// Image is a root file system that sandboxes can be made of.
type Image struct {
	Digest string
	Size   int64 // bytes on disk
	Config Config
}

// Layer is a difference between two root file systems, a tar that may be
// compressed.
type Layer struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// Images keeps images. Its methods may be called concurrently.
type Images interface {
	// Get fetches an image by a reference or a digest.
	Get(ctx context.Context, ref string) (Image, error)
	// Private fetches an image of a registry with a login, under a name by which
	// nobody else gets it.
	Private(ctx context.Context, name, ref string, login Login) (Image, error)
	// Derive makes an image of layers over another, and names it.
	Derive(ctx context.Context, name, base string, layers []Layer, cfg Config) (Image, error)
	// Derived returns the image of that name; found is false if there is none.
	Derived(name string) (img Image, found bool, err error)
}

// Login tells a registry who asks. It is a function so that nothing that is
// written down can hold what it says.
type Login func() (username, password string)

// Boxes makes the sandboxes that steps run in. Its methods may be called
// concurrently.
type Boxes interface {
	// Open makes a sandbox of an image, by its digest, with that network. The
	// caller closes it.
	Open(ctx context.Context, digest string, network sandbox.Network) (Box, error)
}

// Box is a sandbox of a build.
type Box interface {
	// Exec runs a command to its end and copies its output, both streams, to
	// out as it comes.
	Exec(ctx context.Context, cmd sandbox.Command, out io.Writer) (sandbox.Exit, error)
	// ReadFile returns a file of at most max bytes.
	ReadFile(ctx context.Context, name string, max int64) ([]byte, error)
	// Diff writes what the sandbox changed of its image, as an image layer.
	Diff(ctx context.Context, w io.Writer) error
	// Close destroys the sandbox, even when ctx has ended.
	Close(ctx context.Context) error
}

// Request asks for a build.
type Request struct {
	Tenant      string
	Description *Description
	Files       *Files // nil: none
	NoCache     bool
	Login       Login // for the registry of Description.From; nil: what everybody has
	// Network lists the hosts that run steps may reach. It is no part of the
	// key of a step: it says where files may come from, not which ones a step
	// makes.
	Network sandbox.Network
	// Log is told what goes on, by one goroutine at a time. It may be nil.
	Log func(sandbox.BuildEvent)
}

// NamedRequest asks for a template with a name.
type NamedRequest struct {
	Name        string // NAME[:TAG]
	Description *Description
	Files       *Files
	NoCache     bool
	Login       Login           // see Request
	Network     sandbox.Network // of run steps
	Build       string          // id of the build, for clients that gave it one
	CPUs        float64         // of sandboxes created from it; 0: the default
	Memory      int64           // the same, in bytes
	Log         func(sandbox.BuildEvent)
}

// TarRequest asks for a template that is described by one of the files of a tar.
type TarRequest struct {
	Name    string            // NAME[:TAG]
	File    string            // of Files, with the description; empty: Dockerfile
	Args    map[string]string // of the build
	NoCache bool
	Egress  []string  // hosts that RUN steps may reach; nil: no network
	Start   string    // script that runs in every sandbox of it; empty: what the description says
	Ready   string    // script that succeeds when that is ready
	Files   io.Reader // a tar of the files of the build
}

// Builder builds templates. Its methods may be called concurrently; two builds
// of the same steps do the work twice and keep it once.
type Builder struct {
	Images Images
	Boxes  Boxes
	Cache  *Cache
}

// Result is a built template.
type Result struct {
	Image  Image
	Base   string // digest of what it began with
	Cached int    // steps that were not carried out
}

// Build carries the steps out and returns the image they make. When it fails,
// the steps that were finished stay cached, and nothing else remains.
func (b *Builder) Build(ctx context.Context, req Request) (*Result, error) {
	if err := req.Description.Validate(); err != nil {
		return nil, err
	}
	if err := req.Network.Validate(); err != nil {
		return nil, err
	}
	w := &work{b: b, req: req, files: cmp.Or(req.Files, &Files{})}
	w.tell(sandbox.BuildEvent{Text: "FROM " + clip(req.Description.From)})
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

// base fetches the image that a build begins with. One that took a login is the
// tenant's, like all that is made of it.
func (b *Builder) base(ctx context.Context, req *Request) (Image, error) {
	from := req.Description.From
	if req.Login == nil {
		return b.Images.Get(ctx, from)
	}
	return b.Images.Private(ctx, imageName(req.Tenant, hash("from", from)), from, req.Login)
}

// work is one build under way.
type work struct {
	b     *Builder
	req   Request
	files *Files

	step   int    // from 1
	key    key    // of the state reached
	at     Image  // the last state that is an image
	above  []key  // layers of the cache that lie over it
	cfg    Config // what the image is to want
	moved  bool   // cfg is not what at says any more
	cached int
}

func (w *work) tell(e sandbox.BuildEvent) {
	if w.req.Log == nil {
		return
	}
	e.Time, e.Step, e.Steps = time.Now().UTC(), w.step, len(w.req.Description.Steps)
	w.req.Log(e)
}

// do carries out one step, or finds it in the cache.
func (w *work) do(ctx context.Context, s *Step) error {
	content := ""
	if s.Op == OpCopy {
		var err error
		if content, err = w.files.contentHash(s); err != nil {
			return err
		}
	}
	if s.Force || w.req.NoCache && (s.Op == OpRun || s.Op == OpCopy) {
		content += rand.Text() // and nothing after it is cached either
	}
	next, err := w.key.next(s, content)
	if err != nil {
		return err
	}
	if s.Op != OpRun && s.Op != OpCopy {
		w.tell(sandbox.BuildEvent{Text: s.String()})
		w.key = next
		return w.configure(s)
	}
	hit := w.b.Cache.has(w.req.Tenant, next)
	w.tell(sandbox.BuildEvent{Text: s.String(), Cached: hit})
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

// configure carries out a step that changes only what the image wants.
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

// destination is where a copy step copies to, without the slash at the
// beginning; a slash at the end says that it is a directory.
func destination(workdir string, s *Step) string {
	dest := s.Args[len(s.Args)-1]
	abs := strings.TrimPrefix(absolute(workdir, dest), "/")
	if strings.HasSuffix(dest, "/") || dest == "." || strings.HasSuffix(dest, "/.") {
		abs += "/"
	}
	return abs
}

// copy writes the layer of a copy step. It needs no sandbox: what the names
// mean in the image is decided when the layer is applied.
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

// owner finds out what --chown means in the image.
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
	box, err := w.b.Boxes.Open(ctx, img.Digest, sandbox.Network{})
	if err != nil {
		return owner{}, err
	}
	defer func() { _ = box.Close(ctx) }()
	const maxFile = 1 << 20
	if uerr != nil {
		users, err := box.ReadFile(ctx, "/etc/passwd", maxFile)
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
		groups, err := box.ReadFile(ctx, "/etc/group", maxFile)
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

// find returns the fields of a line of passwd or group that begins with name.
func find(file []byte, name string, fields int) []string {
	for line := range strings.Lines(string(file)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= fields && f[0] == name {
			return f
		}
	}
	return nil
}

// run carries out a command in a sandbox of the state reached so far, and keeps
// what it changed.
func (w *work) run(ctx context.Context, s *Step, as key) (err error) {
	img, err := w.materialise(ctx)
	if err != nil {
		return err
	}
	box, err := w.b.Boxes.Open(ctx, img.Digest, w.req.Network)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := box.Close(ctx); err == nil {
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
	exit, err := box.Exec(ctx, cmd, logWriter{w})
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
			Hint:    "its output is in the log of the build",
		}
	}
	return w.b.Cache.put(w.req.Tenant, as, func(out io.Writer) error { return box.Diff(ctx, out) })
}

// notStarted is the code of commands that cannot be started.
const notStarted = 126

// UnknownUserError is the cause of an error of a build whose image has no such user.
type UnknownUserError struct{ User string }

func (e *UnknownUserError) Error() string {
	return fmt.Sprintf("the image has no user %q", clip(e.User))
}

// unknown is an error of the present step.
func (w *work) unknown(user string) error {
	cause := &UnknownUserError{User: user}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: fmt.Sprintf("step %d", w.step), Message: cause.Error(), Cause: cause}
}

// logWriter tells output as it comes.
type logWriter struct{ w *work }

func (l logWriter) Write(b []byte) (int, error) {
	l.w.tell(sandbox.BuildEvent{Text: string(b), Output: true})
	return len(b), nil
}

// materialise makes the state reached so far an image.
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

// NamePrefix begins the names of all images of builds.
const NamePrefix = "template/"

// imageName is the name of the image of a state in the image store. It is no
// reference, so that nobody can ask for it.
func imageName(tenant string, k key) string { return ImagePrefix(tenant) + string(k) }

// ImagePrefix begins the names of all images of a tenant's builds.
func ImagePrefix(tenant string) string { return NamePrefix + string(hash(tenant))[:32] + "/" }

func cloneConfig(c Config) Config {
	c.Entrypoint, c.Cmd, c.Env = slices.Clone(c.Entrypoint), slices.Clone(c.Cmd), slices.Clone(c.Env)
	c.Labels, c.ExposedPorts, c.Volumes = maps.Clone(c.Labels), slices.Clone(c.ExposedPorts), slices.Clone(c.Volumes)
	return c
}
