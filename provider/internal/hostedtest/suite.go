package hostedtest

import (
	"context"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Fake is a fake service that has a servicetest.Cloud.
type Fake interface {
	Service
	Faults
	Names() []string
	Force(status string)
	Transitions(d time.Duration)
	StopAll() error
	End(ctx context.Context, name string) error
}

// Provider is what providers of hosted services have in common.
type Provider interface {
	driver.Provider
	driver.StateTeller
	driver.ImageChecker
}

// Suite describes a driver and a fake of its service, for the tests that all such
// drivers share.
type Suite[P Provider, F Fake] struct {
	Name string
	// Open opens a provider with the settings of a user: see Connect.
	Open func(dir string, env func(string) string) (P, error)
	// New makes the fake, which takes the secrets of both accounts.
	New func(backing driver.Provider) F
	// Env is how a user sets an account up for the service at an address, with
	// Secret as its secret, and Other what differs for another account.
	Env    func(url string) map[string]string
	Secret string
	Other  map[string]string
	// Path is that of the API below the fake's address. Told tells the fake its
	// address. Nil: it does not need to know.
	Path string
	Told func(F, string)
	// Left names the objects of the service beside sandboxes, and Busy counts what ends a
	// moment later. Nil: nothing.
	Left func(F) []string
	Busy func(F) int
	// Saves: the service has snapshots. Rests: only of sandboxes that are stopped.
	Saves, Rests bool
	// Unrecorded: the service does not store the owner of a sandbox.
	Unrecorded bool
	// Keyless: the service may work without a key.
	Keyless bool
	// Bounded adds to a spec what the service must confirm. Nil: nothing.
	Bounded func(*sandbox.Spec)

	// The service's paths and answers: see Faulty. Inside matches the request that
	// starts a command. Empty: there is none.
	Sandboxes, Sandbox, Inside, Ending   string
	NotFound, Invalid, Changing, Nothing string
	Looks                                int
	Renamed                              [2]string // what changes an answer so that it names another sandbox
	// Absent is the path whose 404 shows nothing. Empty: Sandboxes. Foreign are bodies
	// of such answers.
	Absent  string
	Foreign []string
	// Refusal is an error with the text "TEXT". LooksFirst: a sandbox is first looked
	// for elsewhere than at Sandboxes.
	Refusal    string
	LooksFirst bool
	// Statuses say what the service's words mean, and Deleted is that of a sandbox
	// that was. Restarts: a sandbox that stopped starts again.
	Statuses map[string]sandbox.State
	Deleted  string
	Restarts bool
	// Refused are changes of a spec that the driver refuses without any request.
	Refused map[string]func(*sandbox.Spec)
}

// Served is a service that ends with a test, and the providers that use it.
type Served[P Provider, F Fake] struct {
	*World[P]
	Fake    F
	URL     string
	Backing driver.Provider
	suite   *Suite[P, F]
}

// Connect sets what tests need of a connection.
func Connect(c *hosted.Connection) {
	c.Executable, c.Transport = os.Getenv("ATOLL_BIN"), Transport()
}

// Spec returns the spec of a sandbox.
func Spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

// Reach lets a sandbox reach names and prefixes.
func Reach(s *sandbox.Spec, targets ...sandbox.EgressTarget) {
	s.Network = sandbox.Network{Plain: &sandbox.EgressRules{Allow: targets}}
	for _, t := range targets {
		name := t.Host
		if name == "" {
			name = t.Prefix.String()
		}
		s.Network.Egress = append(s.Network.Egress, name)
	}
}

// Serve starts a service that ends with the test. Its sandboxes are gVisor
// sandboxes on this machine.
func (s *Suite[P, F]) Serve(t *testing.T) *Served[P, F] {
	t.Helper()
	w := &Served[P, F]{Backing: Kernels(t), suite: s}
	w.Fake = s.New(w.Backing)
	w.URL = Serve(t, w.Backing, w.Fake) + s.Path
	if s.Told != nil {
		s.Told(w.Fake, w.URL)
	}
	w.World = &World[P]{
		Name: s.Name, New: func(dir string) (P, error) { return s.Open(dir, lookup(s.Env(w.URL))) },
		Left: func() []string {
			names := w.Fake.Names()
			if s.Left != nil {
				names = append(names, s.Left(w.Fake)...)
			}
			return names
		},
	}
	if s.Busy != nil {
		w.Busy = func() int { return s.Busy(w.Fake) }
	}
	return w
}

func lookup(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

// Variables are the settings of a user in the form of an environment.
func (w *Served[P, F]) Variables() (env []string) {
	for name, value := range w.suite.Env(w.URL) {
		env = append(env, name+"="+value)
	}
	return env
}

// SDK uses the fake with the official SDK: see SDK.
func (w *Served[P, F]) SDK(t *testing.T, env ...string) {
	t.Helper()
	SDK(t, append(env, w.Variables()...)...)
	w.Empty(t)
}

// Faulty is the service for tests with faults.
func (w *Served[P, F]) Faulty(p, again driver.Provider) *Faulty {
	s := w.suite
	return &Faulty{
		Faults: w.Fake, Provider: p, Again: again, Sandboxes: s.Sandboxes, Sandbox: s.Sandbox, Key: s.Secret, Looks: s.Looks,
		NotFound: s.NotFound, Invalid: s.Invalid, Busy: s.Changing, Nothing: s.Nothing, Ending: s.Ending, Other: Replace(s.Renamed[0], s.Renamed[1]),
		Spec: func(id sandbox.ID) *sandbox.Spec {
			spec := Spec(id)
			if s.Bounded != nil {
				s.Bounded(spec)
			}
			return spec
		},
		Count: func() (int, int) { return len(w.Fake.Names()), 0 }, Force: w.Fake.Force,
	}
}

// CreateFaults creates sandboxes while the service fails: see Faulty.Create.
func (s *Suite[P, F]) CreateFaults(t *testing.T, more map[string]CreateFault) {
	w := s.Serve(t)
	w.Faulty(w.Open(t, t.TempDir()), nil).Create(t, more)
}

// Conformance runs the driver suite: see World.Conformance.
func (s *Suite[P, F]) Conformance(t *testing.T, more ...string) {
	w := s.Serve(t)
	WarmUp(t, w.Backing)
	if s.Saves {
		more = append(more, "snapshot", "restore")
	}
	w.Conformance(t, more...)
}

// Check runs `atoll provider check` against the service.
func (s *Suite[P, F]) Check(t *testing.T) {
	w := s.Serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize"}
	if !s.Saves {
		lacks = append(lacks, "snapshot")
	}
	Check(t, s.Name, s.Secret, lacks, w.Variables()...)
	w.Empty(t)
}

// Shared runs the tests that need nothing but the description of a driver.
func (s *Suite[P, F]) Shared(t *testing.T) {
	faulty := func(t *testing.T) (*Served[P, F], *Faulty) {
		w, dir := s.Serve(t), t.TempDir()
		return w, w.Faulty(w.Open(t, dir), w.Open(t, dir))
	}
	t.Run("daemon", func(t *testing.T) { ThroughDaemon(t, func(t *testing.T) *World[P] { return s.Serve(t).World }) })
	t.Run("handover", s.handover)
	t.Run("given up", func(t *testing.T) {
		_, f := faulty(t)
		paths := []string{s.Sandboxes}
		if s.Inside != "" {
			paths = append(paths, s.Inside)
		}
		f.GivenUp(t, paths...)
	})
	t.Run("late", func(t *testing.T) {
		_, f := faulty(t)
		f.Late(t)
	})
	t.Run("false 404", func(t *testing.T) {
		_, f := faulty(t)
		path := s.Absent
		if path == "" {
			path = s.Sandboxes
		}
		f.False404(t, path, s.Foreign...)
	})
	t.Run("conflict", func(t *testing.T) {
		w, f := faulty(t)
		f.Conflict(t)
		w.Empty(t)
	})
	t.Run("refusals", func(t *testing.T) {
		_, f := faulty(t)
		f.Refusals(t, s.Sandboxes, func(text string) string { return strings.ReplaceAll(s.Refusal, "TEXT", text) }, !s.LooksFirst)
	})
	t.Run("statuses", func(t *testing.T) {
		_, f := faulty(t)
		meanings := map[string]Meaning{}
		for status, state := range s.Statuses {
			meanings[status] = Meaning{State: state}
			if state == sandbox.Failed {
				meanings[status] = Meaning{State: state, Resume: sandbox.CodeConflict}
			}
		}
		f.Statuses(t, meanings, s.Deleted)
	})
	if s.Saves && !s.Rests {
		t.Run("kept", func(t *testing.T) {
			w := s.Serve(t)
			Kept(t, s.Name, w.Opener)
			w.Empty(t)
		})
	}
	if s.Restarts {
		t.Run("stopped", s.stopped)
	}
	t.Run("refused", s.refused)
}

func (s *Suite[P, F]) handover(t *testing.T) {
	w := s.Serve(t)
	env := s.Env(w.URL)
	maps.Copy(env, s.Other)
	h := Handover{
		Name: s.Name, Records: !s.Unrecorded, Open: w.Opener, Count: func() int { return len(w.Fake.Names()) },
		Other: func(dir string) (driver.Provider, error) { return s.Open(dir, lookup(env)) },
	}
	h.Run(t)
}

// stopped stops a sandbox as the service does. It starts again with its files,
// also slowly, and is gone once the service has ended it.
func (s *Suite[P, F]) stopped(t *testing.T) {
	w := s.Serve(t)
	p := w.Open(t, t.TempDir())
	w.Fake.Transitions(100 * time.Millisecond)
	in, err := p.Create(t.Context(), Spec("sb-stopped"))
	if err != nil {
		t.Fatal(err)
	}
	Says(t, in, "echo kept >/root/note")
	other, err := p.Attach(t.Context(), in.ID())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Fake.StopAll(); err != nil {
			t.Fatal(err)
		}
		w.Resume(t, in)
		for _, one := range []driver.Instance{in, other} { // other knows only how it ran before
			if got := Says(t, one, "cat /root/note"); got != "kept\n" {
				t.Errorf("it says %q", got)
			}
		}
	}
	if err := w.Fake.End(t.Context(), w.Fake.Names()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Resume resumes a sandbox that sleeps.
func (w *Served[P, F]) Resume(t *testing.T, in driver.Instance) {
	t.Helper()
	r, ok := driver.As[driver.Resumer](in)
	if !ok {
		t.Fatal("no driver.Resumer")
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// refused asks for what the service cannot do, which is refused before any
// request, and opens providers that do not work.
func (s *Suite[P, F]) refused(t *testing.T) {
	open := func(env map[string]string) P {
		t.Helper()
		p, err := s.Open(t.TempDir(), lookup(env))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	changes := map[string]func(*sandbox.Spec){
		"image":  func(spec *sandbox.Spec) { spec.Image = "tar:/x" },
		"mounts": func(spec *sandbox.Spec) { spec.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"rules":  func(spec *sandbox.Spec) { spec.Network = sandbox.Network{Egress: []string{"a.test"}} },
	}
	maps.Copy(changes, s.Refused)
	nowhere := s.Env("http://127.0.0.1:1")
	p := open(nowhere)
	for what, change := range changes {
		spec := Spec("sb-refused")
		change(spec)
		if _, err := p.Create(t.Context(), spec); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := s.Open(t.TempDir(), lookup(s.Env("https://u:hidden@x"))); sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), "hidden") {
		t.Errorf("an address with a password: %v", err)
	}
	if _, err := s.Open("", lookup(nowhere)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("without a directory: %v", err)
	}
	for name, value := range nowhere {
		env := maps.Clone(nowhere)
		if delete(env, name); strings.Contains(value, "://") {
			continue // it would be the public service
		}
		facts, err := open(env).Probe(t.Context())
		if err != nil || facts.Available || !s.Keyless && !strings.Contains(facts.Findings[0].Fix, name) {
			t.Errorf("without %s: %+v, %v", name, facts, err)
		}
	}
}

// Always returns a fault of all requests that match a method and a path.
func Always(method, path string, f servicetest.Fault) servicetest.Fault {
	f.Method, f.Path = method, path
	return f
}

// Rewritten returns a fault that replaces a text in the answers to GET.
func Rewritten(path, from, to string) servicetest.Fault {
	return Always(http.MethodGet, path, servicetest.Fault{Rewrite: Replace(from, to)})
}

// Unavailable are faults during a creation that fails and is requested once.
func Unavailable(faults map[string]servicetest.Fault) map[string]CreateFault {
	all := map[string]CreateFault{}
	for name, f := range faults {
		all[name] = CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	return all
}
