package daemon_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// A secret value never comes out: not in a response, not in the error for an
// invalid request, not in a file, and not in the log.
func TestAttackStoredSecretsStayIn(t *testing.T) {
	m := daemontest.New(t)
	var logged bytes.Buffer
	d := m.Start(t, func(o *daemon.Options) { o.Logger = logTo(&logged) })
	c := daemontest.Client(t, d)
	const canary = "canary-9e1b77-canary"
	var answers bytes.Buffer
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	send := func(method, path, body string, want int) {
		t.Helper()
		r, err := http.NewRequestWithContext(context.Background(), method, "http://atoll"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != want {
			t.Errorf("%s %s: %d %.300s", method, path, resp.StatusCode, bytes.ReplaceAll(text, []byte(canary), []byte("CANARY")))
		}
		answers.Write(text)
	}
	for _, body := range []string{
		`{"name":"a b","value":"` + canary + `"}`, `{"name":7,"value":"` + canary + `"}`, `{"name":"a","value":["` + canary + `"]}`,
		`{"name":"a","valueBase64":"!` + canary + `"}`, `{"name":"a","value":"` + canary + `"`,
		`{"name":"a","value":"` + canary + `","source":"env:X"}`, `{"name":"a","value":"` + canary + `","hosts":["*"]}`,
		`{"name":"a","secret":"` + canary + `"}`, `{"name":"a","value":"` + strings.Repeat(canary, 4000) + `"}`,
		`{"name":"a","value":"v","` + canary + `":"x"}`, `{"name":"a","value":"v","a.` + canary + `":{}}`, `{"` + canary + `":1}`,
		`"` + canary + `"`, canary, `{"name":"a","value":"` + canary + "\x00" + `"}`,
	} {
		send(http.MethodPost, "/v1/secrets", body, 400)
		send(http.MethodPut, "/v1/secrets/missing/value", body, 400)
	}
	send(http.MethodPost, "/v1/secrets", `{"name":"token","hosts":["api.example.com"],"value":"`+canary+`"}`, 201)
	send(http.MethodPost, "/v1/secrets", `{"name":"token","value":"`+canary+`"}`, 409)
	send(http.MethodPut, "/v1/secrets/missing/value", `{"value":"`+canary+`"}`, 404)
	send(http.MethodPut, "/v1/secrets/token/value", `{"value":"`+canary+`"}`, 200)
	send(http.MethodGet, "/v1/secrets", "", 200)
	send(http.MethodGet, "/v1/secrets/token", "", 405)
	send(http.MethodGet, "/v1/secrets/token/value", "", 405)
	send(http.MethodGet, "/v1/events?limit=1000", "", 200)
	send(http.MethodDelete, "/v1/secrets/token", "", 204)
	_, err := c.CreateSecret(t.Context(), durable.NewSecret{Name: "raw", Value: []byte(canary + "\xff")})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// It survives the daemon, under the same key.
	d = m.Start(t, func(o *daemon.Options) { o.Logger = logTo(&logged) })
	all, err := daemontest.Client(t, d).Secrets(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "raw" {
		t.Errorf("%+v %v", all, err)
	}
	answers.Write(logged.Bytes())
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if text, err := os.ReadFile(m.Dir + "/" + e.Name()); err == nil {
			answers.Write(text)
		}
	}
	for _, form := range secret.Forms(secret.NewValue([]byte(canary))) {
		if at := bytes.Index(answers.Bytes(), form); at >= 0 {
			t.Errorf("%q is shown: …%.60q", form, answers.Bytes()[max(0, at-60):])
		}
	}
	if answers.Len() < 20_000 {
		t.Errorf("only %d bytes were looked at", answers.Len())
	}
}

// Profiles over the API: they are returned unchanged, an empty list of hosts
// differs from a missing one, and a provider without a network refuses rules.
func TestProfilesOverTheWire(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c, other := daemontest.Client(t, d), bearer(t, d, "other", "admin")
	off := false
	want := sandbox.Profile{
		Name: "all", Description: "every field", Default: sandbox.Deny, Internet: &off,
		Rules: []sandbox.Rule{{
			Name: "one", Action: sandbox.Allow, Hosts: []string{"*.example.com:8443"}, Paths: []string{"/a/**"}, Methods: []string{"GET"}, WebSocket: true,
			TLS: sandbox.Terminate, Limits: &sandbox.RuleLimits{PerMinute: 6, Burst: 2, RequestBytes: 3, ResponseBytes: 4, Connections: 5},
			Filters: []sandbox.Filter{{Type: sandbox.FilterRegex, Direction: sandbox.DirResponse, Pattern: "x+", Bytes: 10}},
		}},
	}
	made, err := c.CreateProfile(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Profile(t.Context(), "all", 1)
	if err != nil || got.Version != 1 || made.Version != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	r, w := got.Profile.Rules[0], want.Rules[0]
	if *got.Profile.Internet || got.Profile.Description != want.Description || *r.Limits != *w.Limits || r.TLS != w.TLS || !r.WebSocket || r.Filters[0].Pattern != "x+" {
		t.Errorf("%+v became %+v", want, got.Profile)
	}
	e, err := c.TestProfile(t.Context(), "all", "GET", "https://a.example.com:8443/a/b")
	if err != nil || e.Allow || e.Reason != "offline" {
		t.Errorf("%+v %v", e, err)
	}
	want.Internet = nil
	if _, err := c.ApplyProfile(t.Context(), want, 1); err != nil {
		t.Fatal(err)
	}
	if e, err = c.TestProfile(t.Context(), "all", "GET", "https://a.example.com:8443/a/b"); err != nil || !e.Allow || e.Rule != "one" || len(e.Steps) != 1 {
		t.Errorf("%+v %v", e, err)
	}
	_, err = c.ApplyProfile(t.Context(), want, 1)
	wantCode(t, err, sandbox.CodeConflict)
	_, err = other.Profile(t.Context(), "all", 0)
	wantCode(t, err, sandbox.CodeNotFound)
	for _, bad := range []string{"", "..", "a/b", "Bad", strings.Repeat("a", 64)} {
		_, err := c.ApplyProfile(t.Context(), sandbox.Profile{Name: bad}, 0)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	for _, n := range []sandbox.Network{{Profile: "all"}, {Egress: []string{"example.com"}}, {Inline: &sandbox.Profile{}}} {
		_, err := c.Create(t.Context(), sandbox.Spec{Network: n}, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeUnsupported)
	}
	_, err = c.Create(t.Context(), sandbox.Spec{Secrets: []sandbox.SecretRef{{Name: "x"}}}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeUnsupported)
	wantCode(t, other.RemoveProfile(t.Context(), "all"), sandbox.CodeNotFound)
	if err := c.RemoveProfile(t.Context(), "all"); err != nil {
		t.Error(err)
	}
}
