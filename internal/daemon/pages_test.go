package daemon_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// signedIn is a page of the console that is signed in.
type signedIn struct {
	base, half string
	cookie     *http.Cookie
}

func signIn(t *testing.T, base string, credentials map[string]string) *signedIn {
	t.Helper()
	p := &signedIn{base: base}
	text, _ := json.Marshal(credentials)
	r, err := http.Post(base+"/console/session", "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var out struct {
		Half string `json:"half"`
	}
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil || r.StatusCode != http.StatusOK || len(r.Cookies()) != 1 {
		t.Fatalf("signing in: %s, %v", r.Status, err)
	}
	p.half, p.cookie = out.Half, r.Cookies()[0]
	return p
}

// send sends a request, and decodes the answer into out if it is not nil.
func (p *signedIn) send(t *testing.T, method, path, body string, out any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(p.cookie)
	req.Header.Set("Atoll-Console", p.half)
	req.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if out != nil {
		if err := json.NewDecoder(r.Body).Decode(out); err != nil {
			t.Fatal(err)
		}
	}
	return r.StatusCode
}

// A page that a link of the owner signed in manages nodes and lists tenants, and
// nothing else that is only for the owner. No key does.
func TestAttackPagesAndNodes(t *testing.T) {
	s := newIsle(t)
	link, err := s.Admin().OpenConsole(t.Context(), operator.ConsoleSettings{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	base, code, _ := strings.Cut(link.URL, "/console/#code=")
	owners := signIn(t, base, map[string]string{"code": code})
	k, err := s.Admin().CreateKey(t.Context(), operator.NewKey{Name: "console", Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	keys := signIn(t, base, map[string]string{"key": k.Token})

	var who operator.Caller
	if status := owners.send(t, "GET", "/v1/caller", "", &who); status != http.StatusOK || !who.Nodes || !who.Tenants || who.Owner || strings.Join(who.Verbs, " ") != "admin" {
		t.Errorf("the page of a link is %+v, %d", who, status)
	}
	who = operator.Caller{}
	if status := keys.send(t, "GET", "/v1/caller", "", &who); status != http.StatusOK || who.Nodes || who.Tenants || who.Owner {
		t.Errorf("the page of a key is %+v, %d", who, status)
	}
	// The key of the page is listed with its permissions, and marked.
	all, err := s.Admin().Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Page == (one.ID == k.ID) || strings.Join(one.Verbs, " ") != "admin" {
			t.Errorf("the key is listed as %+v", one)
		}
	}
	var made struct {
		Token string `json:"token"`
		Verbs []string
	}
	if status := owners.send(t, "POST", "/v1/keys", `{"name":"console","verbs":["admin"]}`, &made); status != http.StatusCreated || strings.Join(made.Verbs, " ") != "admin" {
		t.Fatalf("a key that the page made: %d, %v", status, made.Verbs)
	}
	if status := owners.send(t, "POST", "/v1/keys", `{"name":"console","verbs":["admin","page"]}`, nil); status/100 != 4 {
		t.Errorf("the page made a key that is as strong as its own: %d", status)
	}
	heirs := signIn(t, base, map[string]string{"key": made.Token})

	for _, one := range []struct{ method, path, body string }{
		{"GET", "/v1/nodes", ""},
		{"GET", "/v1/nodes/a", ""},
		{"PATCH", "/v1/nodes/a", `{"cordoned":true}`},
		{"POST", "/v1/nodes/a/drain", `{}`},
		{"DELETE", "/v1/nodes/a", ""},
		{"PATCH", "/v1/nodes/a", `{"cordoned":false}`},
		{"GET", "/v1/tenants", ""},
	} {
		what := one.method + " " + one.path
		if status := keys.send(t, one.method, one.path, one.body, nil); status != http.StatusForbidden {
			t.Errorf("%s by the page of an admin key: %d", what, status)
		}
		if status := heirs.send(t, one.method, one.path, one.body, nil); status != http.StatusForbidden {
			t.Errorf("%s by the page of a key that a page made: %d", what, status)
		}
		if status := owners.send(t, one.method, one.path, one.body, nil); status/100 != 2 {
			t.Errorf("%s by the page of a link: %d", what, status)
		}
	}
	for _, one := range []struct{ method, path, body string }{
		{"GET", "/v1/tenants/default", ""},
		{"POST", "/v1/tenants", `{"id":"another"}`},
		{"PATCH", "/v1/tenants/default", `{"disabled":true}`},
		{"POST", "/v1/audit/prune", `{"before":"2020-01-01T00:00:00Z"}`},
		{"PUT", "/v1/console", `{}`},
		{"GET", "/v1/doctor", ""},
		{"POST", "/v1/policies/reload", ""},
		{"POST", "/v1/sandboxes", `{"mounts":[{"source":"/","target":"/mnt"}]}`},
	} {
		if status := owners.send(t, one.method, one.path, one.body, nil); status != http.StatusForbidden {
			t.Errorf("%s %s by the page of a link: %d", one.method, one.path, status)
		}
	}
	if n := s.state(t, "a", operator.NodeReady); n.Name != "a" {
		t.Errorf("the node: %+v", n)
	}
}
