package kube

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/sandbox"
)

// api plays the API server. It answers with body and status.
type api struct {
	body   string
	status int
	asked  *http.Request
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked = r
	w.WriteHeader(a.status)
	_, _ = w.Write([]byte(a.body))
}

// pod writes what Kubernetes gives to a pod.
func pod(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func serve(t *testing.T, a *api) (host, port, ca string) {
	t.Helper()
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if host, port, err = net.SplitHostPort(u.Host); err != nil {
		t.Fatal(err)
	}
	return host, port, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

const slicesOfTwo = `{"kind": "EndpointSliceList", "items": [
 {"addressType": "IPv4", "ports": [{"name": "https", "port": 7070}], "endpoints": [
  {"addresses": ["10.1.0.5"], "nodeName": "b.zone", "conditions": {"ready": false, "terminating": true}},
  {"addresses": ["10.1.0.4"], "nodeName": "a", "conditions": {"ready": false}},
  {"addresses": ["10.1.0.9"], "conditions": {"ready": true}},
  {"addresses": ["10.1.0.6"], "nodeName": "b.zone", "conditions": {"ready": false}}]},
 {"addressType": "IPv6", "ports": [{"port": 7070}], "endpoints": [{"addresses": ["fd00::4"], "nodeName": "a"}]},
 {"addressType": "IPv4", "ports": [], "endpoints": [{"addresses": ["10.1.0.7"], "nodeName": "c"}]},
 {"addressType": "FQDN", "ports": [{"port": 7070}], "endpoints": [{"addresses": ["x.example"], "nodeName": "d"}]}]}`

func TestNodes(t *testing.T) {
	a := &api{status: http.StatusOK, body: slicesOfTwo}
	host, port, ca := serve(t, a)
	dir := pod(t, map[string]string{"token": "first\n", "namespace": "agents\n", "ca.crt": ca})
	p, err := open("atoll-node", dir, host, port)
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []fleet.Found{
		{Name: "a", URL: "https://a.atoll-node.agents.svc:7070", Dial: "[fd00::4]:7070"},
		{Name: "b-zone", URL: "https://b-zone.atoll-node.agents.svc:7070", Dial: "10.1.0.6:7070"},
	}
	if len(all) != 2 || all[0] != want[0] || all[1] != want[1] {
		t.Errorf("%+v; want %+v", all, want)
	}
	if got := a.asked.URL.Path; got != "/apis/discovery.k8s.io/v1/namespaces/agents/endpointslices" {
		t.Error(got)
	}
	if got := a.asked.URL.Query().Get("labelSelector"); got != "kubernetes.io/service-name=atoll-node" {
		t.Error(got)
	}
	for _, token := range []string{"first", "second"} { // it is replaced while the pod runs
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Nodes(t.Context()); err != nil || a.asked.Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("%q, %v", a.asked.Header.Get("Authorization"), err)
		}
	}
	// An answer without nodes is not an error; every other answer is one.
	a.body = `{"items": []}`
	if all, err := p.Nodes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	for status, body := range map[int]string{200: "{", 401: "", 403: "{}", 404: "", 500: slicesOfTwo} {
		a.status, a.body = status, body
		all, err := p.Nodes(t.Context())
		if len(all) != 0 || sandbox.CodeOf(err) != sandbox.CodeUnavailable || strings.Contains(err.Error(), "second") {
			t.Errorf("%d: %v, %v", status, all, err)
		}
	}
}

func TestOpen(t *testing.T) {
	a := &api{status: http.StatusOK, body: `{}`}
	host, port, ca := serve(t, a)
	whole := map[string]string{"token": "t", "namespace": "agents", "ca.crt": ca}
	for _, service := range []string{"", "/", "a/", "/b", "a/b/c", "../x", "A", "a b", "a?b"} {
		if _, err := open(service, pod(t, whole), host, port); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", service, err)
		}
	}
	if _, err := open("x", pod(t, whole), "", ""); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("not in a pod: %v", err)
	}
	for _, missing := range []string{"namespace", "ca.crt"} {
		files := map[string]string{}
		for name, text := range whole {
			if name != missing {
				files[name] = text
			}
		}
		if _, err := open("x", pod(t, files), host, port); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

// The token is sent to no server but the one that the pod's certificate names.
func TestAnotherServerGetsNoToken(t *testing.T) {
	a := &api{status: http.StatusOK, body: `{}`}
	host, port, _ := serve(t, a)
	foreign, err := os.ReadFile(filepath.Join("testdata", "other.pem"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := open("x/y", pod(t, map[string]string{"token": "secret", "ca.crt": string(foreign)}), host, port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Nodes(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable || a.asked != nil {
		t.Errorf("%v, asked: %v", err, a.asked != nil)
	}
}
