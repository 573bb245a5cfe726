package e2b_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

const canary = "e2b_0123456789abcdefca9a7e"

// at returns the options for a service at an address.
func at(dir, key, url string) e2b.Options {
	return e2b.Options{Connection: hosted.Connection{Dir: dir, Key: credential.New("E2B_API_KEY", key, "", ""), URL: url}, SandboxURL: url}
}

// hostile opens a provider for a service with invalid answers.
func hostile(t *testing.T, answer http.HandlerFunc) *e2b.Provider {
	t.Helper()
	server := httptest.NewServer(answer)
	p, err := e2b.New(at(t.TempDir(), canary, server.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return p
}

// refuse answers in the service's format.
func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": status, "message": message})
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

// A service or a proxy may repeat the request. No error contains the key, and
// none of these answers proves that a sandbox does not exist.
func TestRefusals(t *testing.T) {
	html := "<html><body>not found " + canary + "</body></html>"
	tests := []struct {
		status int
		body   string // empty: in the service's format
		want   sandbox.Code
	}{
		{400, "", sandbox.CodeInvalid},
		{401, "", sandbox.CodeUnauthorized},
		{403, "", sandbox.CodeDenied},
		{404, html, sandbox.CodeUnavailable},
		{404, `{"code": 200}`, sandbox.CodeUnavailable},
		{409, "", sandbox.CodeConflict},
		{429, "", sandbox.CodeExhausted},
		{500, html, sandbox.CodeUnavailable},
		{502, html, sandbox.CodeUnavailable},
		{200, html, sandbox.CodeUnavailable},
		{200, "", sandbox.CodeUnavailable}, // {"code": …} is no listing
		{302, html, sandbox.CodeUnavailable},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.status, test.want), func(t *testing.T) {
			p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.String(), canary) {
					t.Error("the key is in an address")
				}
				if test.body == "" {
					refuse(w, test.status, "the key "+r.Header.Get("X-API-Key")+" is wrong")
					return
				}
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			})
			_, err := p.Attach(t.Context(), "sb-attack")
			if got := p.ErrorCode(err); got != test.want {
				t.Errorf("Attach: code %q, want %q: %v", got, test.want, err)
			}
			_, err2 := p.Create(t.Context(), spec("sb-attack"))
			for err := range errorsOf(err, err2) {
				if strings.Contains(err.Error(), canary) {
					t.Errorf("an error contains the key: %v", err)
				}
			}
			facts, err := p.Probe(t.Context())
			if err != nil || facts.Available {
				t.Errorf("Probe: available %v, %v", facts.Available, err)
			}
			if text, _ := json.Marshal(facts); strings.Contains(string(text), canary) {
				t.Errorf("Probe's result contains the key: %s", text)
			}
		})
	}
}

// errorsOf yields errors and all their causes.
func errorsOf(errs ...error) func(func(error) bool) {
	return func(yield func(error) bool) {
		for _, err := range errs {
			for ; err != nil; err = errors.Unwrap(err) {
				if !yield(err) {
					return
				}
			}
		}
	}
}

// Rate-limited requests are repeated. Requests that may have succeeded are not.
func TestRepetition(t *testing.T) {
	var lists, creates atomic.Int32
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && lists.Add(1) == 1:
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, "too many")
		case r.Method == http.MethodGet:
			_, _ = w.Write([]byte("[]"))
		default:
			creates.Add(1)
			refuse(w, http.StatusServiceUnavailable, "busy")
		}
	})
	_, err := p.Create(t.Context(), spec("sb-repeat"))
	if got := p.ErrorCode(err); got != sandbox.CodeUnavailable {
		t.Errorf("code %q, want unavailable: %v", got, err)
	}
	if creates.Load() != 1 {
		t.Errorf("%d create requests, want 1", creates.Load())
	}
	if lists.Load() < 2 {
		t.Error("a rate-limited listing was not repeated")
	}
}

// If a service lists sandboxes of others, or with invalid names, they are
// ignored.
func TestForeignSandboxes(t *testing.T) {
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`[{"sandboxID":"x","metadata":{"atoll-id":"../../etc","atoll-scope":"y"}},{"sandboxID":"z","metadata":{}}]`))
	})
	for f, err := range p.List(t.Context()) {
		t.Errorf("listed %+v, %v", f, err)
	}
	if _, err := p.Attach(t.Context(), "sb-foreign"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v", err)
	}
}

// A sandbox id that looks like a path does not change the address of requests.
func TestEvilID(t *testing.T) {
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			_, _ = w.Write([]byte("[]"))
		case r.URL.Path == "/v2/sandboxes":
			_, _ = w.Write([]byte(`{"sandboxID":"../templates/mine?x="}`))
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	})
	if _, err := p.Create(t.Context(), spec("sb-evil")); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Create: %v", err)
	}
}

func TestBadAddresses(t *testing.T) {
	for _, address := range []string{"ftp://x", "http://", "http://user:" + canary + "@x", "http://x?key=" + canary, "\x7f"} {
		_, err := e2b.New(at(t.TempDir(), "", address))
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), canary) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestWithoutKey(t *testing.T) {
	p, err := e2b.New(at(t.TempDir(), "", ""))
	if err != nil {
		t.Fatal(err)
	}
	facts, err := p.Probe(context.Background())
	if err != nil || facts.Available || len(facts.Findings) == 0 || facts.Findings[0].Severity != driver.Blocker || facts.Findings[0].Fix == "" {
		t.Errorf("%+v, %v", facts, err)
	}
}

// The conformance suite does not cover how sandboxes of this provider are lost
// and found.
func TestLinks(t *testing.T) {
	s := serve(t)
	p, err := e2b.New(s.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in, err := p.Create(t.Context(), spec("sb-links"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}()

	t.Run("again after a loss", func(t *testing.T) {
		// Root inside may kill the process that carries the link. The start of a
		// command with input is reported immediately.
		out := runCommand(t, in, sandbox.Command{
			Shell: `echo kept >/tmp/kept; for d in /proc/[0-9]*; do tr '\0' ' ' <$d/cmdline | grep -q ' join $' && kill -9 ${d#/proc/}; done; sleep 1000`,
			Stdin: true,
		})
		if out != "" {
			t.Errorf("the command says %q", out)
		}
		if got := run(t, in, "cat /tmp/kept"); got != "kept\n" {
			t.Errorf("after the link was lost: %q", got)
		}
	})
	t.Run("no network", func(t *testing.T) {
		if got := run(t, in, "cat /proc/net/route 2>/dev/null | tail -n +2"); got != "" {
			t.Errorf("there is a route: %q", got)
		}
	})
	t.Run("other directories", func(t *testing.T) {
		other, err := e2b.New(s.options(t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		for f, err := range other.List(t.Context()) {
			t.Errorf("another directory lists %+v, %v", f, err)
		}
		if _, err := other.Attach(t.Context(), in.ID()); other.ErrorCode(err) != sandbox.CodeUnavailable || !errors.Is(err, driver.ErrElsewhere) {
			t.Errorf("another directory finds it: %v", err)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		opts := s.options(t.TempDir())
		opts.Key = credential.New("E2B_API_KEY", canary, "", "")
		wrong, err := e2b.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer wrong.Close()
		_, err = wrong.Attach(t.Context(), in.ID())
		if wrong.ErrorCode(err) != sandbox.CodeUnauthorized || strings.Contains(err.Error(), canary) {
			t.Errorf("with a key that is not one: %v", err)
		}
	})
}

// TestCommandLine uses the provider from the command line.
func TestCommandLine(t *testing.T) {
	s := serve(t)
	state := t.TempDir()
	cli := func(args ...string) string {
		t.Helper()
		cmd := s.command(args...)
		cmd.Env = append(cmd.Env, "ATOLL_STATE_DIR="+state)
		for k, v := range s.env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("atoll %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out := cli("run", "--provider", "e2b", "--", "sh", "-c", "echo $((6*7))"); out != "42\n" {
		t.Errorf("run says %q", out)
	}
	if out := cli("provider", "ls"); !strings.Contains(out, "e2b") || strings.Contains(out, s.env["E2B_API_KEY"]) {
		t.Errorf("provider ls says %q", out)
	}
	left, err := s.command("ls", "-q").Output()
	if err != nil || len(left) > 0 {
		t.Errorf("sandboxes are left: %s, %v", left, err)
	}
}

// run runs a script as root and returns its output, or nothing if the
// connection is lost.
func run(t *testing.T, in driver.Instance, script string) string {
	t.Helper()
	return runCommand(t, in, sandbox.Command{Shell: script})
}

func runCommand(t *testing.T, in driver.Instance, c sandbox.Command) string {
	t.Helper()
	p, err := in.Exec(t.Context(), &c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := p.Stdout().Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

// Only the service's own answers about snapshots count, and snapshots of others
// are not touched.
func TestSnapshotRefusals(t *testing.T) {
	for what, answer := range map[string]http.HandlerFunc{
		"a proxy":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not found", http.StatusNotFound) },
		"nonsense":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"a failure": func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusBadGateway, canary) },
	} {
		p := hostile(t, answer)
		_, err := p.FindSnapshot(t.Context(), "sn-x")
		if code := p.ErrorCode(err); code != sandbox.CodeUnavailable || errors.Is(err, driver.ErrSnapshotLost) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: FindSnapshot: %q, %v", what, code, err)
		}
		ref := driver.SnapshotRef{Provider: e2b.Name, Kind: driver.SnapshotFilesystem, Data: "sn-x:files-1"}
		if code := p.ErrorCode(p.RemoveSnapshot(t.Context(), ref)); what != "nonsense" && code != sandbox.CodeUnavailable {
			t.Errorf("%s: RemoveSnapshot: %q", what, code)
		}
	}
	asked := atomic.Int64{}
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_ = json.NewEncoder(w).Encode([]map[string]any{
			{"snapshotID": "theirs:default", "names": []string{"atoll-0000000000000000-sn-x:files-1"}},
			{"snapshotID": "nameless:default", "names": []string{}},
			{"snapshotID": "odd:default", "names": []string{"atoll-", "atoll--:", "a/b/atoll-x-y:files-z"}},
		})
	})
	for f, err := range p.Snapshots(t.Context()) {
		t.Errorf("it lists %+v, %v", f, err)
	}
	if _, err := p.FindSnapshot(t.Context(), "sn-x"); p.ErrorCode(err) != sandbox.CodeNotFound || !errors.Is(err, driver.ErrSnapshotLost) {
		t.Errorf("FindSnapshot: %v", err)
	}
	before := asked.Load()
	for _, data := range []string{"", "..", "../../etc", "/", "a/../b", "a?b", "a#b", "a%2fb", "x:../y?", strings.Repeat("x", 5000)} {
		ref := driver.SnapshotRef{Provider: e2b.Name, Kind: driver.SnapshotFilesystem, Data: data}
		if err := p.RemoveSnapshot(t.Context(), ref); p.ErrorCode(err) != sandbox.CodeInvalid {
			t.Errorf("%q: RemoveSnapshot: %v", data, err)
		}
		if _, _, err := p.Restore(t.Context(), spec("sb-x"), ref); p.ErrorCode(err) != sandbox.CodeInvalid {
			t.Errorf("%q: Restore: %v", data, err)
		}
	}
	if asked.Load() != before {
		t.Error("the service got requests about invalid references")
	}
}
