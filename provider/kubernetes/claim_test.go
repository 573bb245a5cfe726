package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// stock is a warm pool with its claims.
type stock struct {
	template template
	claims   map[string]*claim
	refusal  condition // what its controller says instead of giving a pod
}

// withPool is a cluster with a warm pool whose template suits a sandbox with the
// image.
func withPool(t *testing.T) *server {
	t.Helper()
	s := withAgents(t)
	s.pool = &stock{claims: map[string]*claim{}}
	s.pool.template.Spec.Template.Spec = newPod("", "", "image", "", &sandbox.Spec{}).Spec
	s.pool.template.Spec.Managed = "Unmanaged"
	return s
}

// extension answers a request about claims and pools, as the API server and the
// controller of agent-sandbox do together.
func (s *server) extension(w http.ResponseWriter, r *http.Request, path string) {
	kind, name, _ := strings.Cut(path, "/")
	absent := func() { refuse(w, 404, "NotFound", fmt.Sprintf("%s.%s %q not found", kind, extensionsGroup, name)) }
	switch {
	case s.pool == nil:
		absent()
	case kind == pools:
		reply(w, map[string]any{"metadata": meta{Name: name}, "spec": map[string]any{"sandboxTemplateRef": map[string]string{"name": "t"}}, "status": map[string]int{"readyReplicas": 1}})
	case kind == templates:
		reply(w, s.pool.template)
	case r.Method == http.MethodPost:
		c := &claim{}
		_ = json.NewDecoder(r.Body).Decode(c)
		s.uid++
		c.Meta.UID = fmt.Sprintf("claim-%d", s.uid)
		s.pool.claims[c.Meta.Name] = c
		s.give(c)
		reply(w, c)
	case s.pool.claims[name] == nil:
		absent()
	case r.Method == http.MethodDelete:
		given := s.pool.claims[name].Status.Sandbox.Name
		delete(s.pool.claims, name)
		delete(s.objects, given)
		delete(s.pods, given)
		reply(w, map[string]string{"kind": "Status", "status": "Success"})
	case r.Method == http.MethodPatch:
		var change claim
		_ = json.NewDecoder(r.Body).Decode(&change)
		maps.Copy(s.pool.claims[name].Meta.Labels, change.Meta.Labels)
		reply(w, s.pool.claims[name])
	default:
		reply(w, s.pool.claims[name])
	}
}

// give gives a claim an object of the pool, with its pod.
func (s *server) give(c *claim) {
	if s.pool.refusal.Reason != "" {
		c.Status.Conditions = []condition{s.pool.refusal}
		return
	}
	s.uid++
	o := &object{Meta: meta{Name: fmt.Sprintf("pool-%d", s.uid), UID: fmt.Sprintf("object-%d", s.uid)}}
	o.Meta.Owners = []owner{{API: extensions, Kind: claimKind, Name: c.Meta.Name, UID: c.Meta.UID, Controller: true}}
	o.Spec.Template.Spec = s.pool.template.Spec.Template.Spec
	s.objects[o.Meta.Name] = o
	c.Status.Sandbox.Name = o.Meta.Name
	s.reconcile()
}

func (s *server) openPool(t *testing.T) *Provider {
	t.Helper()
	return s.open(t, t.TempDir(), func(o *Options) { o.Pool = "warm" })
}

// claimed claims a pod, and records it as Create does.
func (s *server) claimed(t *testing.T, p *Provider, id sandbox.ID) *pod {
	t.Helper()
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	want := newPod(scope, "try", "image", "", &sandbox.Spec{ID: id, Labels: map[string]string{"k": "v"}})
	made, err := p.request(t.Context(), want, claimed)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.confirm(want, claimed); err != nil {
		t.Error(err)
	}
	s.record(t, p, id, hosted.Record{ServiceID: made.Meta.sandboxID(), More: true})
	return &made
}

// nothingLeft fails if a pod, an object or a claim is left.
func (s *server) nothingLeft(t *testing.T) {
	t.Helper()
	if left := s.left(); len(left)+len(s.pool.claims) > 0 {
		t.Errorf("left: %v, and %d claims", left, len(s.pool.claims))
	}
}

// A sandbox that is claimed has a pod with another name, is found by its labels,
// and ends with its claim.
func TestClaim(t *testing.T) {
	s := withPool(t)
	p := s.openPool(t)
	made := s.claimed(t, p, "sb-1")
	at := split(made.Meta.sandboxID())
	if at.name != made.Meta.Name || at.object != s.objects[at.name].Meta.UID || at.claim == at.name || s.pool.claims[at.claim] == nil || at.claimUID != s.pool.claims[at.claim].Meta.UID {
		t.Errorf("its objects are %+v", at)
	}
	found := 0
	for one, err := range p.List(t.Context()) {
		if found++; err != nil || one.ID != "sb-1" || one.Labels["k"] != "v" {
			t.Errorf("List: %+v, %v", one, err)
		}
	}
	if found != 1 {
		t.Errorf("List: %d sandboxes", found)
	}
	in, err := p.Attach(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	s.nothingLeft(t)
}

// The answer to the only request is lost: the claim is found by its name.
func TestClaimLostAnswer(t *testing.T) {
	s := withPool(t)
	p := s.openPool(t)
	posts := 0
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || posts > 0 {
			return false
		}
		posts++
		s.extension(&nowhere{}, r, claims)
		w.WriteHeader(http.StatusGatewayTimeout)
		return true
	}
	if s.claimed(t, p, "sb-1"); len(s.pool.claims) != 1 || len(s.objects) != 1 {
		t.Errorf("%d claims and %d objects", len(s.pool.claims), len(s.objects))
	}
}

// A pod that somebody removed is gone, and so is its claim.
func TestClaimReplaced(t *testing.T) {
	s := withPool(t)
	p := s.openPool(t)
	made := s.claimed(t, p, "sb-1")
	s.mu.Lock()
	delete(s.pods, made.Meta.Name)
	s.reconcile()
	s.mu.Unlock()
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
	s.nothingLeft(t)
}

// The object of a claim that somebody suspended keeps the sandbox from being gone.
func TestClaimSuspended(t *testing.T) {
	s := withPool(t)
	p := s.openPool(t)
	s.claimed(t, p, "sb-1")
	s.setMode(suspendedMode)
	wantSuspended(t, p, "sb-1", map[string]string{"k": "v"})
	if in, err := p.Attach(t.Context(), "sb-1"); err != nil || in.Destroy(t.Context()) != nil {
		t.Errorf("a suspended sandbox cannot be removed: %v", err)
	}
	s.nothingLeft(t)
}

// The process died after it had made the claim: the next list removes it.
func TestClaimDied(t *testing.T) {
	s := withPool(t)
	p := s.openPool(t)
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	c := newClaim(newPod(scope, "try", "image", "", &sandbox.Spec{ID: "sb-1"}), "warm")
	c.Meta.UID = "claim-1"
	s.pool.claims[c.Meta.Name] = c
	s.give(c)
	s.record(t, p, "sb-1", hosted.Record{Asked: time.Now(), More: true})
	for found, err := range p.List(t.Context()) {
		t.Errorf("List: %+v, %v", found, err)
	}
	s.nothingLeft(t)
}

// Of two installations, the claim has the label of the one that took it over.
func TestClaimAdopt(t *testing.T) {
	s := withPool(t)
	p := s.openPool(t)
	made := s.claimed(t, p, "sb-1")
	other := s.openPool(t)
	if err := other.Adopt(t.Context(), &sandbox.Spec{ID: "sb-1"}); err != nil {
		t.Fatal(err)
	}
	scope, err := other.Scope()
	if err != nil {
		t.Fatal(err)
	}
	c := s.pool.claims[split(made.Meta.sandboxID()).claim]
	if got := s.pods[made.Meta.Name].Meta.Labels[labelScope]; got != scope || c.Meta.Labels[labelScope] != scope {
		t.Errorf("the pod is of %q and the claim of %q, want %q", got, c.Meta.Labels[labelScope], scope)
	}
}

// What the controller says about a claim is the error, and nothing is left of it.
func TestClaimRefused(t *testing.T) {
	for reason, tt := range map[string]struct {
		message string
		code    sandbox.Code
	}{
		"WarmPoolNotFound": {`SandboxWarmPool "warm" not found`, sandbox.CodeNotFound},
		"TemplateNotFound": {"no template", sandbox.CodeNotFound},
		"SandboxSuspended": {"it is suspended", sandbox.CodeUnavailable},
		"SandboxExpired":   {"it is over", sandbox.CodeUnavailable},
		"ReconcilerError":  {`pods "x" is forbidden: exceeded quota: none, requested: pods=1`, sandbox.CodeExhausted},
	} {
		t.Run(reason, func(t *testing.T) {
			s := withPool(t)
			s.pool.refusal = condition{Type: "Ready", Status: "False", Reason: reason, Message: tt.message}
			p := s.openPool(t)
			_, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-1", Image: "image"})
			if p.ErrorCode(err) != tt.code || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("Create: %v, want %s", err, tt.code)
			}
			s.nothingLeft(t)
		})
	}
}

// Only a template whose pods are as wanted suits a sandbox.
func TestWay(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*template)
		spec   sandbox.Spec
		want   way
	}{
		"it suits":          {want: claimed},
		"with a lifetime":   {spec: sandbox.Spec{Lifetime: sandbox.Lifetime{Timeout: time.Hour}}, want: claimed},
		"another image":     {change: func(t *template) { t.Spec.Template.Spec.Containers[0].Image = "other" }, want: ordered},
		"another container": {change: func(t *template) { t.Spec.Template.Spec.Containers[0].Name = "main" }, want: ordered},
		"more containers": {change: func(t *template) {
			t.Spec.Template.Spec.Containers = append(t.Spec.Template.Spec.Containers, container{Name: "more"})
		}, want: ordered},
		"another runtime": {change: func(t *template) { t.Spec.Template.Spec.Runtime = "kata" }, want: ordered},
		"privileged":      {change: func(t *template) { t.Spec.Template.Spec.Containers[0].Security.Privileged = true }, want: ordered},
		"a token":         {change: func(t *template) { t.Spec.Template.Spec.Token = new(bool); *t.Spec.Template.Spec.Token = true }, want: ordered},
		"it ends":         {change: func(t *template) { t.Spec.Template.Spec.Deadline = 10 }, want: ordered},
		"less memory":     {spec: sandbox.Spec{Resources: sandbox.Resources{Memory: 1 << 30}}, want: ordered},
		"a limit": {change: func(t *template) {
			t.Spec.Template.Spec.Containers[0].Resources = limits(sandbox.Resources{Memory: 1 << 30})
		}, want: ordered},
		"the same limit": {change: func(t *template) {
			t.Spec.Template.Spec.Containers[0].Resources = limits(sandbox.Resources{Memory: 1 << 30})
		}, spec: sandbox.Spec{Resources: sandbox.Resources{Memory: 1 << 30}}, want: claimed},
		"a host name":           {spec: sandbox.Spec{Hostname: "h"}, want: ordered},
		"the default policy":    {change: func(t *template) { t.Spec.Managed = "Managed" }, want: ordered},
		"a policy that refuses": {change: func(t *template) { refuseAll(t) }, want: claimed},
		"a policy that permits": {change: func(t *template) { refuseAll(t); t.Spec.Policy.Egress = []any{map[string]any{}} }, want: ordered},
	} {
		t.Run(name, func(t *testing.T) {
			s := withPool(t)
			if tt.change != nil {
				tt.change(&s.pool.template)
			}
			p := s.openPool(t)
			if got, err := p.way(t.Context(), newPod("s", "try", "image", "", &tt.spec), true); got != tt.want || err != nil {
				t.Errorf("way: %d, %v; want %d", got, err, tt.want)
			}
		})
	}
	s := withAgents(t)
	p := s.openPool(t)
	if _, err := p.way(t.Context(), newPod("s", "try", "image", "", &sandbox.Spec{}), true); p.ErrorCode(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), "SandboxWarmPool") {
		t.Errorf("without the pool: %v", err)
	}
	if _, err := p.way(t.Context(), newPod("s", "try", "image", "", &sandbox.Spec{}), false); p.ErrorCode(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), "agent-sandbox") {
		t.Errorf("without agent-sandbox: %v", err)
	}
	if _, err := New(Options{Dir: t.TempDir(), Kubeconfig: "none", Kind: "Pod", Pool: "warm"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a pool of pods: %v", err)
	}
	if _, err := New(Options{Dir: t.TempDir(), Kubeconfig: "none", Pool: "../x"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a pool that is a path: %v", err)
	}
}

// Probe says if no sandbox is ever claimed, because the pool's pods have another
// RuntimeClass than sandboxes get.
func TestPoolOfAnotherClass(t *testing.T) {
	s := withPool(t)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
			reply(w, map[string]any{"status": map[string]bool{"allowed": true}})
			return true
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/apis/node.k8s.io/v1/runtimeclasses/")
		if ok {
			reply(w, map[string]any{"metadata": meta{Name: name}, "handler": "runsc"})
		}
		return ok
	}
	p := s.openPool(t)
	for class, want := range map[string]driver.Severity{"": driver.Warning, "kata": driver.Warning, gvisorClass: driver.OK} {
		s.pool.template.Spec.Template.Spec.Runtime = class
		facts, err := p.Probe(t.Context())
		i := slices.IndexFunc(facts.Findings, func(f driver.Finding) bool { return f.Subject == "pool" })
		if err != nil || i < 0 || facts.Findings[i].Severity != want || !facts.Available {
			t.Errorf("the class %q: %+v, %v; want %s", class, facts.Findings, err, want)
		}
	}
}

func refuseAll(t *template) {
	t.Spec.Managed = ""
	t.Spec.Policy = &struct {
		Ingress []any `json:"ingress"`
		Egress  []any `json:"egress"`
	}{}
}
