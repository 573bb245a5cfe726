package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// TestMain builds the program that kernels and gateways run from: they have to
// be static.
func TestMain(m *testing.M) {
	if code, ok := runInside(); ok {
		os.Exit(code)
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, remove, err := scratch.Dir("atoll-gateway-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = remove() }()
	if program = os.Getenv("ATOLL_KERNEL"); program == "" {
		program = filepath.Join(dir, "atoll")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../../cmd/atoll")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
			return 1
		}
	}
	imagesDir = filepath.Join(dir, "images")
	return m.Run()
}

var (
	program   string
	imagesDir string
)

var images = sync.OnceValues(func() (*image.Store, error) { return image.Open(imagesDir, image.Options{}) })

// rig is a gateway with sandboxes.
type rig struct {
	tb       testing.TB
	gateway  *gateway.Gateway
	provider *gvisor.Provider
	state    string   // the provider's directory
	dir      string   // the gateway's
	policies sync.Map // sandbox.ID → gateway.Policy

	mu     sync.Mutex
	events map[sandbox.ID][]gateway.Event
	heard  chan struct{} // holds a token after every event
}

// newRig makes a gateway that may reach the loopback, under the names that
// servers of the test have.
func newRig(tb testing.TB, settings gateway.Settings) *rig {
	tb.Helper()
	return newRigIn(tb, settings, func(f func()) { f() })
}

// rig makes a gateway that lives in this world.
func (w *world) rig() *rig { return newRigIn(w.tb, w.settings(), w.outside.do) }

// newRigIn makes a gateway. in starts its process.
func newRigIn(tb testing.TB, settings gateway.Settings, in func(func())) *rig {
	tb.Helper()
	need.Program(tb, "curl") // what runs in the sandboxes
	need.Program(tb, "python3")
	r := &rig{tb: tb, dir: tb.TempDir(), events: map[sandbox.ID][]gateway.Event{}, heard: make(chan struct{}, 1)}
	var err error
	r.gateway, err = gateway.New(gateway.Options{
		Dir: r.dir, Executable: program, Event: r.note, Settings: func() gateway.Settings { return settings },
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.gateway.Close() })
	in(func() {
		l, err := r.gateway.Connect(context.Background(), "first", gateway.Policy{}, gateway.Known{})
		if err != nil {
			tb.Fatal(err)
		}
		l.File.Close()
	})
	store, err := images()
	if err != nil {
		tb.Fatal(err)
	}
	r.state = tb.TempDir()
	r.provider, err = gvisor.New(gvisor.Options{StateDir: r.state, Images: store, Kernel: program, Attached: true, Network: r})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.provider.Close() })
	return r
}

// Connect and Known make it the network of its sandboxes.
func (r *rig) Connect(ctx context.Context, spec *sandbox.Spec, former gvisor.Known) (*gvisor.Link, error) {
	p, ok := r.policies.Load(spec.ID)
	if !ok {
		profile, local := spec.Network.Local()
		if !local {
			return nil, fmt.Errorf("no policy for %s", spec.ID)
		}
		p = gateway.Policy{Profile: profile}
	}
	l, err := r.gateway.Connect(ctx, spec.ID, p.(gateway.Policy), gateway.Known(former))
	if err != nil {
		return nil, err
	}
	return &gvisor.Link{File: l.File, MTU: l.MTU, Addresses: l.Addresses, Gateways: l.Gateways, DNS: l.DNS, CA: l.CA}, nil
}

func (r *rig) Known(ctx context.Context, id sandbox.ID) (gvisor.Known, error) {
	k, err := r.gateway.Known(ctx, id)
	return gvisor.Known(k), err
}

func (r *rig) note(id sandbox.ID, e gateway.Event) {
	r.mu.Lock()
	r.events[id] = append(r.events[id], e)
	r.mu.Unlock()
	select {
	case r.heard <- struct{}{}:
	default:
	}
}

// sandbox makes a sandbox that may do what the policy says.
func (r *rig) sandbox(id sandbox.ID, p gateway.Policy) *rigSandbox {
	r.tb.Helper()
	in, err := r.provider.Create(context.Background(), r.spec(id, p))
	if err != nil {
		r.tb.Fatal(err)
	}
	return r.own(in)
}

// spec describes a sandbox that may do what the policy says.
func (r *rig) spec(id sandbox.ID, p gateway.Policy) *sandbox.Spec {
	r.policies.Store(id, p)
	return &sandbox.Spec{
		ID: id, Name: string(id), Image: "host", Network: sandbox.Network{Inline: &p.Profile}, Resources: sandbox.Resources{Memory: 1 << 30},
	}
}

// own destroys a sandbox when the test ends.
func (r *rig) own(in driver.Instance) *rigSandbox {
	r.tb.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			r.tb.Errorf("destroying the sandbox: %v", err)
		}
	})
	return &rigSandbox{r, in}
}

// awaitEvent waits for an event of a sandbox.
func (r *rig) awaitEvent(id sandbox.ID, want func(gateway.Event) bool) gateway.Event {
	r.tb.Helper()
	limit := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		for _, e := range r.events[id] {
			if want(e) {
				r.mu.Unlock()
				return e
			}
		}
		seen := fmt.Sprintf("%+v", r.events[id])
		r.mu.Unlock()
		select {
		case <-r.heard:
		case <-limit:
			r.tb.Fatalf("no such event among %s", seen)
		}
	}
}

// forget drops the events of a sandbox that were heard so far.
func (r *rig) forget(id sandbox.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.events, id)
}

// rigSandbox is a sandbox of a rig.
type rigSandbox struct {
	r  *rig
	in driver.Instance
}

// sh runs a script inside and returns what it wrote, and its exit code.
func (s *rigSandbox) sh(script string) (string, int) {
	s.r.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	p, err := s.in.Exec(ctx, &sandbox.Command{Args: []string{"sh", "-c", script}, Timeout: 50 * time.Second})
	if err != nil {
		s.r.tb.Fatal(err)
	}
	defer p.Close()
	var out, errs bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(&out, p.Stdout()) })
	reading.Go(func() { _, _ = io.Copy(&errs, p.Stderr()) })
	exit, err := p.Wait(ctx)
	if err != nil {
		s.r.tb.Fatal(err)
	}
	reading.Wait()
	return out.String() + errs.String(), exit.Code
}

// background runs a script inside and returns when it has said that it is ready.
// It ends when its input does.
func (s *rigSandbox) background(script string) driver.Process {
	s.r.tb.Helper()
	p, err := s.in.Exec(context.Background(), &sandbox.Command{Args: []string{"sh", "-c", script}, Stdin: true})
	if err != nil {
		s.r.tb.Fatal(err)
	}
	s.r.tb.Cleanup(func() { p.Close() })
	out := bufio.NewReader(p.Stdout())
	if line, err := out.ReadString('\n'); strings.TrimSpace(line) != "ready" {
		rest, _ := io.ReadAll(io.LimitReader(out, 2048))
		s.r.tb.Fatalf("%q %v %s", line, err, rest)
	}
	return p
}

// loopback returns settings that let rules reach servers of the test under the
// given names.
func loopback(names ...string) gateway.Settings {
	s := gateway.Settings{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Hosts: map[string][]netip.Addr{}}
	for _, n := range names {
		s.Hosts[n] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	}
	return s
}

// serve starts a web server of the test and returns its port.
func serve(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	tb.Cleanup(func() { s.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// allow is a policy that allows hosts and nothing else.
func allow(hosts ...string) gateway.Policy {
	p, _ := sandbox.Network{Egress: hosts}.Local()
	return gateway.Policy{Profile: p}
}

func TestPlainHTTP(t *testing.T) {
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s%s", r.Host, r.URL) })
	r := newRig(t, loopback("allowed.test", "other.test"))
	b := r.sandbox("plain", allow("allowed.test:"+port))
	began := time.Now()
	out, code := b.sh("cat /etc/resolv.conf; curl -sS --max-time 10 http://allowed.test:" + port + "/a/b?c=d")
	t.Log(time.Since(began), out)
	if code != 0 || !strings.Contains(out, "hello allowed.test:"+port+"/a/b?c=d") {
		t.Errorf("%d: %s", code, out)
	}
	out, code = b.sh("curl -sS --max-time 10 http://other.test:" + port + "/")
	if code != 6 { // could not resolve
		t.Errorf("%d: %s", code, out)
	}
	r.awaitEvent("plain", func(e gateway.Event) bool { return e.Verdict == "denied" && e.Kind == "dns" && e.Host == "other.test." })
	out, code = b.sh("curl -sS --max-time 10 http://127.0.0.2:" + port + "/; curl -sS --max-time 10 http://10.0.0.1/; curl -sS -6 --max-time 10 'http://[2001:db8::1]/'")
	if code != 7 { // could not connect
		t.Errorf("%d: %s", code, out)
	}
	t.Log(out)
}
