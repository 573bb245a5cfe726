package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/sandbox"
)

// gatewayProcess finds the gateway process that this one started.
func gatewayProcess(t testing.TB) int { return gatewayProcessWith(t) }

func gatewayProcessWith(t testing.TB, args ...string) int {
	t.Helper()
	want := strings.Join(append([]string{messages.Argv0}, args...), "\x00")
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, d := range dirs {
			line, _ := os.ReadFile(d + "/cmdline")
			stat, _ := os.ReadFile(d + "/stat")
			_, after, _ := strings.Cut(string(stat), ") ")
			f := strings.Fields(after)
			if string(bytes.TrimRight(line, "\x00")) == want && len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
				pid, _ := strconv.Atoi(filepath.Base(d))
				return pid
			}
		}
	}
	t.Fatal("there is no gateway process")
	return 0
}

// TestKilled checks that no traffic flows without a gateway, and that the next
// one continues with the same links, names and certificates.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test", "api.test")
	r := w.rig()
	b := r.sandbox("killed", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"good.test"}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/v1/**"}},
	))
	before, _ := b.sh("getent hosts good.test; curl -sS https://api.test/v1/x -o /dev/null -w '%{http_code}'")
	if !strings.Contains(before, "200") {
		t.Fatal(before)
	}
	// Stopped, it cannot be replaced either: that is what no gateway is like.
	pid := gatewayProcess(t)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.taken()
	out, code := b.sh("curl -sS --max-time 2 http://good.test/; curl -sS --max-time 2 http://" + w.good.String() + "/")
	if hits, violations, _ := w.taken(); code == 0 || len(hits)+len(violations) > 0 {
		t.Errorf("%d: %s; %v %v", code, out, hits, violations)
	}
	w.outside.do(func() { // whichever thread starts the next one
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	for gatewayProcess(t) == pid {
	}
	out, _ = b.sh("for i in 1 2 3 4 5 6 7 8 9; do getent hosts good.test && break; done; true")
	if want, _, _ := strings.Cut(before, "\n"); !strings.Contains(out, want) {
		t.Errorf("the name had %q and has %q now", want, out)
	}
}

// TestPolicyChanges checks that a change reaches what flows already.
func TestPolicyChanges(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "slow.test", "other.test")
	w.handle("slow.test", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begun\n")
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	r := w.rig()
	b := r.sandbox("changes", allow("slow.test"))
	done := make(chan string, 1)
	go func() {
		out, code := b.sh("curl -sSN http://slow.test/")
		done <- fmt.Sprint(code, out)
	}()
	r.awaitHit(w, "slow.test")
	if err := r.gateway.SetPolicy(t.Context(), "changes", allow("other.test")); err != nil {
		t.Fatal(err)
	}
	if out := <-done; strings.HasPrefix(out, "0") {
		t.Errorf("went on: %s", out)
	}
	if out, code := b.sh("curl -sS http://other.test/; curl -sS http://slow.test/"); code != 6 || !strings.Contains(out, `"Host":"other.test"`) {
		t.Errorf("%d: %s", code, out)
	}
	if err := r.gateway.SetPolicy(t.Context(), "nobody", allow()); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Error(err)
	}
}

// awaitHit waits until a request for a host has arrived.
func (r *rig) awaitHit(w *world, host string) {
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(2 * time.Millisecond) {
		w.mu.Lock()
		for _, h := range w.hits {
			if h.Host == host {
				w.mu.Unlock()
				return
			}
		}
		w.mu.Unlock()
	}
	r.tb.Fatalf("no request for %s", host)
}

const canary = "canary-value-of-a-secret-0451"

func secrets() []messages.Secret {
	return []messages.Secret{
		{Name: "token", Version: 3, Value: []byte(canary)},
		{Name: "second", Version: 2, Value: []byte("second-" + canary)},
		{Name: "swapped", Version: 1, Value: []byte("other-" + canary), Placeholder: "sk-placeholder-0123456789abcdef", Hosts: []string{"api.test"}, SwapHosts: []string{"api.test"}},
	}
}

// TestSecrets checks that a secret reaches its host, and nothing inside.
func TestSecrets(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test", "echo.test", "plain.test")
	w.handle("echo.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		_, _ = io.WriteString(rw, "you sent "+r.Header.Get("Authorization")+"\n")
	})
	r := w.rig()
	p := profile(
		sandbox.Rule{Name: "echo", Action: sandbox.Allow, Hosts: []string{"echo.test"}, Inject: []sandbox.Injection{
			{Secret: "token", Mode: sandbox.InjectBearer},
			{Name: "X-Parts", Mode: sandbox.InjectParts, Parts: []sandbox.InjectPart{{Text: "a:"}, {Secret: "token"}, {Text: ":"}, {Secret: "second"}}},
			{Name: "X-Text", Mode: sandbox.InjectParts, Parts: []sandbox.InjectPart{{Text: "no secret"}}},
		}},
		sandbox.Rule{Name: "api", Action: sandbox.Allow, Hosts: []string{"api.test", "plain.test"}},
	)
	p.Secrets = secrets()
	b := r.sandbox("secrets", p)
	last := func() hit {
		hits, _, _ := w.taken()
		if len(hits) == 0 {
			return hit{}
		}
		return hits[len(hits)-1]
	}
	out, _ := b.sh("curl -sSi -H 'Authorization: Bearer mine' https://echo.test/")
	if got := last().Header; got.Get("Authorization") != "Bearer "+canary || got.Get("X-Parts") != "a:"+canary+":second-"+canary || got.Get("X-Text") != "no secret" {
		t.Errorf("the host got %v", got)
	}
	if strings.Contains(out, canary) || !strings.Contains(out, "you sent Bearer ****") {
		t.Errorf("the sandbox got %s", out)
	}
	e := r.awaitEvent("secrets", func(e gateway.Event) bool { return len(e.Secrets) > 0 })
	if e.Rule != "echo" || !slices.Contains(e.Secrets, "token@3") || !slices.Contains(e.Secrets, "second@2") || strings.Contains(fmt.Sprintf("%+v", e), canary) {
		t.Errorf("%+v", e)
	}
	out, _ = b.sh("curl -sS -H 'X-Key: sk-placeholder-0123456789abcdef' https://api.test/x")
	if got := last(); got.Header.Get("X-Key") != "other-"+canary || strings.Contains(out, canary) {
		t.Errorf("the host got %v, the sandbox %s", got.Header, out)
	}
	for name, script := range map[string]string{
		"to another host":    "curl -sS -H 'X-Key: sk-placeholder-0123456789abcdef' http://plain.test/",
		"in the query":       "curl -sS 'https://api.test/?k=sk-placeholder-0123456789abcdef'",
		"in the body":        "curl -sS -d 'k=sk-placeholder-0123456789abcdef' https://api.test/",
		"encoded, elsewhere": "curl -sS -H \"X-Key: $(printf sk-placeholder-0123456789abcdef | base64)\" http://plain.test/",
	} {
		out, _ := b.sh(script)
		if !strings.Contains(out, `"reason":"placeholder"`) {
			t.Errorf("%s: %s", name, out)
		}
	}
	// A body is watched while it is sent: its harmless beginning may arrive, and late.
	hits, _, _ := w.taken()
	for _, got := range hits {
		if got.Method != http.MethodPost || strings.Contains(got.Body, "sk-") {
			t.Errorf("a host got %+v", got)
		}
	}
	// It is nowhere inside, and on no command line outside.
	out, _ = b.sh("cat /proc/self/environ /proc/[2-9]*/cmdline /etc/atoll/* 2>/dev/null | grep -ac 'canary[-]value'") // a process may end meanwhile
	if strings.TrimSpace(out) != "0" {
		t.Errorf("found inside: %s", out)
	}
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", gatewayProcess(t)))
	if bytes.Contains(line, []byte("canary")) {
		t.Error("found on a command line")
	}
}

// TestLimits checks the limits of a rule.
func TestLimits(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "rate.test", "size.test", "filter.test", "types.test")
	w.handle("size.test", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(bytes.Repeat([]byte("x"), 100_000))
	})
	w.handle("types.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", r.URL.Query().Get("t"))
		_, _ = io.WriteString(rw, "{}")
	})
	r := w.rig()
	b := r.sandbox("limits", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"rate.test"}, Limits: &sandbox.RuleLimits{PerMinute: 1, Burst: 2}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"size.test"}, Limits: &sandbox.RuleLimits{RequestBytes: 1000, ResponseBytes: 5000}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"filter.test"}, Filters: []sandbox.Filter{{Type: sandbox.FilterRegex, Direction: sandbox.DirRequest, Pattern: "BEGIN [A-Z ]*PRIVATE KEY"}}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"types.test"}, Filters: []sandbox.Filter{{Type: sandbox.FilterContentType, Direction: sandbox.DirResponse, Types: []string{"application/json"}}}},
	))
	for _, tt := range []struct{ name, script, want string }{
		{"rate", "for i in 1 2 3; do curl -sS -o /dev/null -w '%{http_code} ' http://rate.test/; done; curl -sSi http://rate.test/ | grep -i retry-after", "200 200 429 Retry-After: "},
		{"too much sent", "head -c 5000 /dev/zero | curl -sS -o /dev/null -w '%{http_code}' --data-binary @- http://size.test/", "413"},
		{"too much received", "curl -sS http://size.test/ | wc -c; true", "curl: ("},
		{"regex", "curl -sS -d '-----BEGIN RSA PRIVATE KEY-----' http://filter.test/", `"reason":"filter"`},
		{"regex, harmless", "curl -sS -d 'hello' http://filter.test/", `"Body":"hello"`},
		{"compressed, so that it cannot be searched", "curl -sS -H 'Content-Encoding: gzip' -d 'hello' http://filter.test/", `"reason":"filter"`},
		{"type", "curl -sS 'http://types.test/?t=text/html'", `"reason":"filter"`},
		{"type, right", "curl -sS 'http://types.test/?t=application/json'", `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if out, _ := b.sh(tt.script); !strings.Contains(strings.ReplaceAll(out, "\r", ""), tt.want) {
				t.Errorf("got %q, want %q", out, tt.want)
			}
		})
	}
}

// TestLingers checks that traffic continues without a daemon, and that the next
// daemon takes over the links.
func TestLingers(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test", "other.test")
	dir := t.TempDir()
	open := func() *gateway.Gateway {
		g, err := gateway.New(gateway.Options{Dir: dir, Executable: program, Linger: true, Settings: w.settings})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	r := w.rig()
	own := r.gateway
	r.gateway = open()
	w.outside.do(func() {
		l, err := r.gateway.Connect(t.Context(), "first", gateway.Policy{}, gateway.Known{})
		if err != nil {
			t.Fatal(err)
		}
		l.File.Close()
	})
	b := r.sandbox("lingers", allow("good.test"))
	pid := gatewayProcessWith(t, messages.Linger)
	address, _ := b.sh("getent hosts good.test")
	if err := r.gateway.Close(); err != nil {
		t.Fatal(err)
	}
	if out, code := b.sh("curl -sS http://good.test/alone"); code != 0 || !strings.Contains(out, "/alone") {
		t.Errorf("without a control plane: %d: %s", code, out)
	}
	next := open()
	defer next.Close()
	w.outside.do(func() {
		if err := next.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if err := syscall.Kill(pid, 0); err == nil {
		t.Log("the last one is still ending") // it may be a zombie of this process
	}
	if known, err := next.Known(t.Context(), "lingers"); err != nil || known.Names["good.test"] == 0 {
		t.Errorf("%+v, %v", known, err)
	}
	if out, code := b.sh("getent hosts good.test; curl -sS http://good.test/again"); code != 0 || !strings.Contains(out, "/again") || !strings.HasPrefix(out, address) {
		t.Errorf("after the change: %d: %s, before %s", code, out, address)
	}
	if err := next.SetPolicy(t.Context(), "lingers", allow("other.test")); err != nil {
		t.Error(err)
	}
	if out, code := b.sh("curl -sS http://good.test/"); code == 0 {
		t.Errorf("still allowed: %s", out)
	}
	r.gateway = own
}

// TestStopped: a gateway process that does not respond blocks no caller, and is
// replaced, even without a request.
func TestStopped(t *testing.T) {
	g, err := gateway.New(gateway.Patient(gateway.Options{Dir: t.TempDir(), Executable: program}, 2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	l, err := g.Connect(t.Context(), "first", gateway.Policy{}, gateway.Known{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.File.Close()
	for name, ask := range map[string]func() error{
		"a policy": func() error { return g.SetPolicy(t.Context(), "first", gateway.Policy{}) },
		"a name": func() error {
			_, err := g.Known(t.Context(), "first")
			return err
		},
		"nothing": func() error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			pid := gatewayProcess(t)
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if err := ask(); err != nil {
				t.Error(err)
			}
			for deadline := time.Now().Add(time.Minute); gatewayProcess(t) == pid; {
				if time.Now().After(deadline) {
					t.Fatal("no other process took over")
				}
			}
			for deadline := time.Now().Add(time.Minute); ; {
				if runs, answers, links := g.State(t.Context()); runs && answers && links == 1 {
					return
				} else if time.Now().After(deadline) {
					t.Fatal(runs, answers, links)
				}
			}
		})
	}
}
