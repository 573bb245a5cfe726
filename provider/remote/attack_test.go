package remote_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

func spec(labels ...string) *sandbox.Spec {
	s := &sandbox.Spec{ID: sandbox.ID("sb-" + strings.ToLower(rand.Text()[:10])), Image: "host", Labels: map[string]string{}}
	for i := 0; i+1 < len(labels); i += 2 {
		s.Labels[labels[i]] = labels[i+1]
	}
	return s
}

func create(t *testing.T, p driver.Provider, s *sandbox.Spec) driver.Instance {
	t.Helper()
	in, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Destroy(context.Background()) })
	return in
}

func wantCode(t *testing.T, what string, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Errorf("%s: code %q, want %q: %v", what, got, want, err)
	}
}

// between is a transport whose requests and answers a test can change.
type between struct {
	next http.RoundTripper
	hook atomic.Pointer[func(*http.Request, http.RoundTripper) (*http.Response, error)]
}

func (b *between) RoundTrip(r *http.Request) (*http.Response, error) {
	if hook := b.hook.Load(); hook != nil {
		return (*hook)(r, b.next)
	}
	return b.next.RoundTrip(r)
}

func (b *between) set(hook func(*http.Request, http.RoundTripper) (*http.Response, error)) {
	b.hook.Store(&hook)
}

// tampered returns a provider and the transport of its connections.
func tampered(t *testing.T, o *other) (*remote.Provider, *between) {
	t.Helper()
	opts := o.options(t.TempDir())
	b := &between{next: opts.Transport}
	opts.Transport = b
	p, err := remote.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, b
}

func answer(status int, kind, body string) func(*http.Request, http.RoundTripper) (*http.Response, error) {
	return func(*http.Request, http.RoundTripper) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = w.WriteString(body)
		return w.Result(), nil
	}
}

// Only the daemon's own answer about this sandbox shows that it is gone.
func TestAttackNothingElseIsEvidence(t *testing.T) {
	o := serve(t, daemontest.New(t))
	p, b := tampered(t, o)
	s := spec()
	in := create(t, p, s)
	for what, tt := range map[string]struct {
		hook func(*http.Request, http.RoundTripper) (*http.Response, error)
		want sandbox.Code
	}{
		"no connection": {func(*http.Request, http.RoundTripper) (*http.Response, error) {
			return nil, fmt.Errorf("dial: no such host")
		}, sandbox.CodeUnavailable},
		"a proxy's 404":        {answer(404, "text/html", "<h1>not found: the sandbox is gone</h1>"), sandbox.CodeUnavailable},
		"a proxy's 410":        {answer(410, "text/plain", "gone"), sandbox.CodeUnavailable},
		"a proxy's 502":        {answer(502, "text/html", "bad gateway"), sandbox.CodeUnavailable},
		"an empty answer":      {answer(200, "application/json", ""), sandbox.CodeUnavailable},
		"a key that has ended": {answer(401, "application/problem+json", `{"code":"unauthorized","status":401}`), sandbox.CodeUnauthorized},
	} {
		b.set(tt.hook)
		_, err := p.Attach(t.Context(), s.ID)
		wantCode(t, what+", Attach", err, tt.want)
		_, err = p.State(t.Context(), s.ID)
		wantCode(t, what+", State", err, tt.want)
		_, err = in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}})
		wantCode(t, what+", Exec", err, tt.want)
		if strings.Contains(fmt.Sprintf("%+v %v", err, err), o.key) {
			t.Errorf("%s: the error holds the key", what)
		}
		for _, err := range p.List(t.Context()) {
			wantCode(t, what+", List", err, tt.want)
		}
	}
	b.set(func(r *http.Request, next http.RoundTripper) (*http.Response, error) { return next.RoundTrip(r) })
	if _, err := p.Attach(t.Context(), s.ID); err != nil {
		t.Errorf("the sandbox still exists: %v", err)
	}
}

// If another daemon answers at the address, or the key belongs to another
// tenant, the sandboxes are missing. That does not show that they are gone.
func TestAttackAnotherDaemonIsNoEvidence(t *testing.T) {
	first, second := serve(t, daemontest.New(t)), serve(t, daemontest.New(t))
	p, b := tampered(t, first)
	s := spec()
	in := create(t, p, s)
	mine, err := p.Binding(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := second.open(t, t.TempDir()).Binding(t.Context())
	if err != nil || theirs == mine || strings.Contains(mine, first.key) {
		t.Errorf("bindings %q and %q, %v", mine, theirs, err)
	}
	b.set(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.URL.Host = second.daemon.TCP().String()
		r.Header.Set("Authorization", "Bearer "+second.key)
		return next.RoundTrip(r)
	})
	_, err = p.Attach(t.Context(), s.ID)
	wantCode(t, "Attach", err, sandbox.CodeUnauthorized)
	_, err = in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}})
	if code := sandbox.CodeOf(err); code == sandbox.CodeGone || code == "" {
		t.Errorf("Exec: %v", err)
	}
	ref := driver.SnapshotRef{Provider: remote.Name, Kind: driver.SnapshotFilesystem, Data: "sn-elsewhere"}
	wantCode(t, "RemoveSnapshot", p.RemoveSnapshot(t.Context(), ref), sandbox.CodeUnauthorized)
	b.set(func(r *http.Request, next http.RoundTripper) (*http.Response, error) { return next.RoundTrip(r) })
}

// A request whose answer is lost creates one sandbox.
func TestLostAnswers(t *testing.T) {
	o := serve(t, daemontest.New(t))
	p, b := tampered(t, o)
	if _, err := p.Binding(t.Context()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	keys := map[string]int{}
	lose := func(times int) {
		b.set(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if r.Method != http.MethodPost || r.URL.Path != "/v1/sandboxes" || err != nil {
				return res, err
			}
			mu.Lock()
			defer mu.Unlock()
			keys[r.Header.Get("Idempotency-Key")]++
			if times--; times < 0 {
				return res, nil
			}
			res.Body.Close()
			return nil, fmt.Errorf("connection reset by peer")
		})
	}
	count := func() (n int) {
		for _, err := range p.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	lose(2)
	in := create(t, p, spec())
	if n := count(); n != 1 || len(keys) != 1 {
		t.Errorf("%d sandboxes of requests %v", n, keys)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	lose(3)
	_, err := p.Create(t.Context(), spec())
	wantCode(t, "Create", err, sandbox.CodeUnavailable)
	if n := count(); n != 0 {
		t.Errorf("%d sandboxes are left after a failed Create", n)
	}
}

// Sandboxes of another directory are not touched, and labels return unchanged.
func TestScopes(t *testing.T) {
	o := serve(t, daemontest.New(t))
	one, two := o.open(t, t.TempDir()), o.open(t, t.TempDir())
	s := spec("team", "blue", "atoll.name", "box", "remote.scope", "mine", "remote.remote.x", "y")
	create(t, one, s)
	for f, err := range two.List(t.Context()) {
		t.Errorf("another directory lists %+v, %v", f, err)
	}
	for f, err := range one.List(t.Context()) {
		if err != nil || fmt.Sprint(f.Labels) != fmt.Sprint(s.Labels) {
			t.Errorf("labels %v, want %v, %v", f.Labels, s.Labels, err)
		}
	}
	c, err := atoll.New(atoll.Options{Host: "http://" + o.daemon.TCP().String(), Key: o.key})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	theirs, err := c.Create(t.Context(), sandbox.Spec{Name: "sb-theirs"}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = one.Attach(t.Context(), "sb-theirs")
	wantCode(t, "Attach to what somebody else made", err, sandbox.CodeGone)
	_, err = one.Create(t.Context(), &sandbox.Spec{ID: "sb-theirs", Image: "host"})
	wantCode(t, "Create with a name that is taken", err, sandbox.CodeAlreadyExists)
	if _, err := c.Get(t.Context(), string(theirs.ID())); err != nil {
		t.Error(err)
	}
}

// A daemon whose sandboxes this daemon creates is refused.
func TestLoop(t *testing.T) {
	o, dir := serve(t, daemontest.New(t)), t.TempDir()
	p := o.open(t, dir)
	create(t, p, spec())
	scope, err := os.ReadFile(filepath.Join(dir, "scope"))
	if err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"remote.scope", "remote.remote.scope"} {
		_, err := p.Create(t.Context(), spec(label, string(scope)))
		wantCode(t, label, err, sandbox.CodeInvalid)
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("  at_key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct {
		opts remote.Options
		want sandbox.Code
	}{
		"no directory":         {remote.Options{Address: "https://a.test"}, sandbox.CodeInvalid},
		"no address":           {remote.Options{Dir: dir}, ""},
		"nonsense":             {remote.Options{Dir: dir, Address: "nonsense"}, sandbox.CodeInvalid},
		"a socket":             {remote.Options{Dir: dir, Address: "unix:///atoll.sock"}, sandbox.CodeInvalid},
		"a key in the address": {remote.Options{Dir: dir, Address: "https://at_key@a.test"}, sandbox.CodeInvalid},
		"in the clear":         {remote.Options{Dir: dir, Address: "http://a.test"}, sandbox.CodeInvalid},
		"in the clear, wanted": {remote.Options{Dir: dir, Address: "http://a.test", AllowHTTP: true}, ""},
		"to itself":            {remote.Options{Dir: dir, Address: "http://127.0.0.1:1", KeyFile: key}, ""},
		"no key file":          {remote.Options{Dir: dir, Address: "https://a.test", KeyFile: key + "x"}, sandbox.CodeUnavailable},
		"no certificates":      {remote.Options{Dir: dir, Address: "https://a.test", CAFile: key}, sandbox.CodeInvalid},
	} {
		p, err := remote.New(tt.opts)
		wantCode(t, what, err, tt.want)
		if err != nil && strings.Contains(err.Error(), "at_key") {
			t.Errorf("%s: the error holds the key: %v", what, err)
		}
		if p == nil || err != nil {
			continue
		}
		if tt.opts.Address != "http://a.test" {
			facts, err := p.Probe(t.Context())
			if err != nil || facts.Available || facts.Findings[0].Severity != driver.Blocker || facts.Findings[0].Fix == "" {
				t.Errorf("%s: %+v, %v", what, facts, err)
			}
			_, err = p.Binding(t.Context())
			wantCode(t, what, err, sandbox.CodeUnavailable)
		}
		_ = p.Close()
	}
}

// The ability to restrict egress is that of the other daemon.
func TestEgressAbility(t *testing.T) {
	o := serve(t, daemontest.New(t))
	p := o.open(t, t.TempDir())
	if a := p.EgressAbility(); a.Kind != enforce.None {
		t.Errorf("it enforces %q before it knows what", a.Kind)
	}
	if _, err := p.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := spec()
	s.Network.Egress = []string{"a.test"}
	_, err := p.Create(t.Context(), s)
	wantCode(t, "rules that nobody translated", err, sandbox.CodeUnsupported)
	text, err := json.Marshal(p.EgressAbility())
	if err != nil {
		t.Errorf("%s, %v", text, err)
	}
}
