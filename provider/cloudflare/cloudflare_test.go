package cloudflare_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/provider/cloudflare"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is an Atoll daemon with a bridge, behind a proxy that breaks requests.
type world struct {
	servicetest.Faults
	*hostedtest.World[*cloudflare.Provider]
	bin, state, key, url string
	// eager makes the proxy answer as Cloudflare's bridge does: every request
	// makes the sandbox that it names, also the question whether it runs.
	eager atomic.Bool
	held  atomic.Pointer[held]
}

// held are commands that the proxy holds back. It passes them on even if the
// client gives up.
type held struct {
	text             string // in the command
	came, pass, done chan struct{}
}

func hold(text string) *held {
	return &held{text, make(chan struct{}, 100), make(chan struct{}), make(chan struct{}, 100)}
}

// matches reports whether a request is held back. It reads the body of a command.
func (h *held) matches(r *http.Request) bool {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/exec") {
		return false
	}
	body, _ := io.ReadAll(r.Body) // a body that was cut fails at the bridge
	r.Body = io.NopCloser(bytes.NewReader(body))
	return bytes.Contains(body, []byte(h.text))
}

var serving = regexp.MustCompile(`serving clients of Cloudflare's sandbox bridge on (\S+)`)

// serve starts a daemon that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	w := &world{bin: os.Getenv("ATOLL_BIN"), state: t.TempDir()}
	cmd := w.command("up", "--bridge=127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	log, rest := bufio.NewReader(stderr), make(chan []byte, 1)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		said := <-rest
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon: %v\n%s", err, said)
		}
	})
	var at []string
	for at == nil {
		line, err := log.ReadString('\n')
		if at = serving.FindStringSubmatch(line); err != nil {
			rest <- nil
			t.Fatalf("the daemon did not start: %v %s", err, line)
		}
	}
	go func() {
		said, _ := io.ReadAll(log)
		rest <- said
	}()
	w.key = strings.TrimSpace(w.run(t, "key", "create"))
	upstream, err := url.Parse("http://" + at[1])
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	proxy.FlushInterval, proxy.Transport = -1, hostedtest.Transport()
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	server := httptest.NewServer(w.Wrap(http.HandlerFunc(func(res http.ResponseWriter, r *http.Request) {
		if h := w.held.Load(); h != nil && h.matches(r) {
			h.came <- struct{}{}
			<-h.pass
			defer func() { h.done <- struct{}{} }()
			r = r.WithContext(context.WithoutCancel(r.Context())) // the bridge goes on although the client has gone
		}
		if path, ok := strings.CutSuffix(r.URL.Path, "/running"); ok && w.eager.Load() {
			w.touch(r.Context(), upstream.String()+path)
		}
		proxy.ServeHTTP(res, r)
	})))
	t.Cleanup(server.Close)
	w.url = server.URL
	// A sandbox that ends while another process asks about it is made again for a
	// moment.
	w.World = &hostedtest.World[*cloudflare.Provider]{
		Name: cloudflare.Name, New: func(dir string) (*cloudflare.Provider, error) { return cloudflare.New(w.options(dir)) },
		Busy: func() int { return len(w.sandboxes(t)) },
	}
	return w
}

// touch makes the sandbox at an address.
func (w *world) touch(ctx context.Context, address string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/exec", strings.NewReader(`{"argv":["true"]}`))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	if res, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}

func (w *world) command(args ...string) *exec.Cmd {
	cmd := exec.Command(w.bin, args...)
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+w.state)
	return cmd
}

// run runs a command of the daemon's owner.
func (w *world) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.command(args...).Output()
	if err != nil {
		t.Errorf("atoll %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// sandboxes returns the names of the bridge's sandboxes.
func (w *world) sandboxes(t *testing.T) []string {
	t.Helper()
	return strings.Fields(w.run(t, "ls", "-q"))
}

func (w *world) options(dir string) cloudflare.Options {
	return cloudflare.Options{Connection: hosted.Connection{
		Dir: dir, URL: w.url, Key: credential.New("CLOUDFLARE_SANDBOX_API_KEY", w.key, "", ""), Executable: w.bin, Transport: hostedtest.Transport(),
	}}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

func TestConformance(t *testing.T) { serve(t).Conformance(t) }

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize", "snapshot"}
	hostedtest.Check(t, cloudflare.Name, w.key, lacks, "CLOUDFLARE_SANDBOX_WORKER_URL="+w.url, "CLOUDFLARE_SANDBOX_API_KEY="+w.key)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*cloudflare.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	w := serve(t)
	other := strings.TrimSpace(w.run(t, "key", "create", "other"))
	h := hostedtest.Handover{
		Name: cloudflare.Name, Open: w.Opener, Count: func() int { return len(w.sandboxes(t)) }, // one may be made again for a moment
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = credential.New("CLOUDFLARE_SANDBOX_API_KEY", other, "", "")
			return cloudflare.New(opts)
		},
	}
	h.Run(t)
}

// A sandbox that the bridge has lost is gone, although each request with its
// name makes a new one: no command runs there, and it is removed.
func TestLost(t *testing.T) {
	for name, eager := range map[string]bool{"Atoll's bridge": false, "Cloudflare's": true} {
		t.Run(name, func(t *testing.T) {
			w := serve(t)
			w.eager.Store(eager)
			p := w.Open(t, t.TempDir())
			in, err := p.Create(t.Context(), spec("sb-lost"))
			if err != nil {
				t.Fatal(err)
			}
			if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
				t.Errorf("it says %q", got)
			}
			w.run(t, append([]string{"rm", "-f"}, w.sandboxes(t)...)...)
			if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeGone {
				t.Errorf("Exec: %v, want gone", err)
			}
			if exit, err := in.Wait(t.Context()); err != nil || exit.Reason != sandbox.ReasonKilled {
				t.Errorf("Wait: %+v, %v", exit, err)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
				t.Errorf("Attach: %v, want gone", err)
			}
			w.Empty(t)
			// Its ID is free again, and the old instance does not end the new sandbox.
			again, err := p.Create(t.Context(), spec("sb-lost"))
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Destroy(t.Context()); err != nil {
				t.Errorf("Destroy of the lost one: %v", err)
			}
			if got := hostedtest.Says(t, again, "echo again"); got != "again\n" {
				t.Errorf("it says %q", got)
			}
			if err := again.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			w.Empty(t)
		})
	}
}

// A command whose caller gives up does not leave the new sandbox that the bridge
// makes for it after that. Other requests pass, so that nothing but the command
// itself notices that sandbox.
func TestGivenUp(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	for what, tt := range map[string]struct {
		text string // in the request that is late
		use  func(ctx context.Context, in driver.Instance) error
	}{
		"command": {"ATOLL_LINE=", func(ctx context.Context, in driver.Instance) error {
			_, err := in.Exec(ctx, &sandbox.Command{Args: []string{"true"}})
			return err
		}},
		"search": {"no mark", func(ctx context.Context, in driver.Instance) error {
			_, err := p.Attach(ctx, in.ID())
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			in, err := p.Create(t.Context(), spec("sb-given-up"))
			if err != nil {
				t.Fatal(err)
			}
			hostedtest.Says(t, in, "true")
			h := hold(tt.text)
			w.held.Store(h)
			ctx, cancel := context.WithCancel(t.Context())
			used := make(chan error)
			go func() { used <- tt.use(ctx, in) }()
			<-h.came
			w.run(t, append([]string{"rm", "-f"}, w.sandboxes(t)...)...)
			cancel()
			if what == "command" { // a search waits a moment for its request
				if err := <-used; err == nil {
					t.Error("a command of a lost sandbox succeeds")
				}
			}
			w.held.Store(nil)
			close(h.pass)
			<-h.done
			if what == "search" {
				if err := <-used; err == nil {
					t.Error("a lost sandbox is found")
				}
			}
			w.Empty(t)
			if err := in.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			w.Empty(t)
		})
	}
}

// A request whose answer is lost, or that fails, leaves one sandbox or none, and
// the mark is written once.
func TestCreateFaults(t *testing.T) {
	const exec = "/v1/sandbox/*/exec"
	w, dir := serve(t), t.TempDir()
	p := w.Open(t, dir)
	post := func(f servicetest.Fault) servicetest.Fault { return hostedtest.At(http.MethodPost, exec, f) }
	always := func(f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path = http.MethodPost, exec
		return f
	}
	get := func(f servicetest.Fault) servicetest.Fault {
		return hostedtest.At(http.MethodGet, "/v1/sandbox/*/running", f)
	}
	refused := `{"error":"no","code":"invalid_request"}`
	for name, tt := range map[string]struct {
		servicetest.Fault
		want sandbox.Code // empty: it is created
	}{
		"lost answer":        {post(servicetest.Fault{Lose: true}), ""},
		"5xx after it acted": {post(servicetest.Fault{Status: 502, Act: true}), ""},
		"truncated answer":   {post(servicetest.Fault{Truncate: 5}), ""},
		"too many requests":  {servicetest.TooMany(http.MethodPost, exec, 1e9, 1), ""},
		"running 5xx":        {get(servicetest.Fault{Skip: 1, Status: 503}), ""},
		"false answer":       {get(servicetest.Fault{Skip: 1, Status: 200, Body: `{"running":false}`}), ""},
		"no answer":          {get(servicetest.Fault{Status: 200, Body: `{}`}), sandbox.CodeUnavailable},
		"refused":            {post(servicetest.Fault{Status: 400, Body: refused}), sandbox.CodeInvalid},
		"no capacity":        {always(servicetest.Fault{Status: 503, Body: `{"error":"full","code":"capacity_exceeded"}`}), sandbox.CodeUnavailable},
		"guest not taken":    {servicetest.Fault{Method: http.MethodPut, Path: "/v1/sandbox/*/file/workspace/*", Status: 400, Body: refused}, sandbox.CodeInvalid},
		"error event": {always(servicetest.Fault{Rewrite: func([]byte) []byte {
			return []byte("event: error\ndata: {\"error\":\"no\",\"code\":\"exec_error\"}\n\n")
		}}), sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w.Clear()
			w.Add(tt.Fault)
			in, err := p.Create(t.Context(), spec("sb-create"))
			if got := p.ErrorCode(err); got != tt.want {
				t.Errorf("code %q, want %q: %v", got, tt.want, err)
			}
			w.Clear()
			if in == nil {
				for found, err := range p.List(t.Context()) {
					t.Errorf("List: %+v, %v", found, err)
				}
				w.Empty(t)
				return
			}
			if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
				t.Errorf("it says %q", got)
			}
			if all := w.sandboxes(t); len(all) != 1 {
				t.Errorf("there are %v, want one", all)
			}
			if err := in.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			w.Empty(t)
		})
	}
}

// Errors and answers of other servers say nothing about the sandbox, and no
// error has the key.
func TestUnavailable(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	in, err := p.Create(t.Context(), spec("sb-there"))
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"<html>not found</html>", `{"error":"the key ` + w.key + ` is wrong","code":"unauthorized"}`} {
		for _, status := range []int{302, 401, 404, 500} {
			w.Clear()
			w.Add(servicetest.Fault{Path: "/v1/sandbox/*/running", Status: status, Body: body}, servicetest.Fault{Path: "/v1/openapi.json", Status: status, Body: body})
			_, err := p.Attach(t.Context(), in.ID())
			if code := p.ErrorCode(err); code == "" || code == sandbox.CodeGone || strings.Contains(err.Error(), w.key) {
				t.Errorf("status %d: Attach: %v", status, err)
			}
			facts, err := p.Probe(t.Context())
			if err != nil || facts.Available {
				t.Errorf("status %d: Probe: %+v, %v", status, facts, err)
			}
			for _, f := range facts.Findings {
				if strings.Contains(f.Message, w.key) {
					t.Errorf("status %d: %s", status, f.Message)
				}
			}
		}
	}
	w.Clear()
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	w.Empty(t)
	if facts, err := p.Probe(t.Context()); err != nil || !facts.Available {
		t.Errorf("Probe: %+v, %v", facts, err)
	}
}

// What the bridge cannot do is refused before any request.
func TestRefused(t *testing.T) {
	p, err := cloudflare.New(cloudflare.Options{Connection: hosted.Connection{Dir: t.TempDir(), URL: "http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":  func(s *sandbox.Spec) { s.Image = "docker.io/library/python" },
		"mounts": func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"rules": func(s *sandbox.Spec) {
			s.Network = sandbox.Network{Egress: []string{"a.test"}, Plain: &sandbox.EgressRules{}}
		},
	} {
		s := spec("sb-refused")
		change(s)
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := cloudflare.New(cloudflare.Options{Connection: hosted.Connection{Dir: t.TempDir(), URL: "https://u:secret@x"}}); err == nil || bytes.Contains([]byte(err.Error()), []byte("secret")) {
		t.Errorf("an address with a password: %v", err)
	}
}
