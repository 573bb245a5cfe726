package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// withAgents is a cluster with agent-sandbox.
func withAgents(t *testing.T) *server {
	t.Helper()
	s := serve(t)
	s.objects = map[string]*object{}
	return s
}

// object answers a request about objects, as the API server and the controller of
// agent-sandbox do together.
func (s *server) object(w http.ResponseWriter, r *http.Request, name string) {
	switch {
	case s.objects == nil:
		http.NotFound(w, r) // as the API server for a group that it does not have
	case r.Method == http.MethodPost:
		o := &object{}
		_ = json.NewDecoder(r.Body).Decode(o)
		if s.objects[o.Meta.Name] != nil {
			refuse(w, 409, "AlreadyExists", fmt.Sprintf("sandboxes.agents.x-k8s.io %q already exists", o.Meta.Name))
			return
		}
		s.uid++
		o.Meta.UID = fmt.Sprintf("object-%d", s.uid)
		s.objects[o.Meta.Name] = o
		s.reconcile()
		reply(w, o)
	case name == "":
		list := []*object{}
		for _, o := range s.objects {
			if matches(o.Meta.Labels, r.URL.Query().Get("labelSelector")) {
				list = append(list, o)
			}
		}
		reply(w, map[string]any{"kind": "SandboxList", "items": list})
	case s.objects[name] == nil:
		refuse(w, 404, "NotFound", fmt.Sprintf("sandboxes.agents.x-k8s.io %q not found", name))
	case r.Method == http.MethodDelete:
		var asked struct {
			Preconditions struct{ UID string }
		}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		if asked.Preconditions.UID != s.objects[name].Meta.UID {
			refuse(w, 409, "Conflict", "the UID in the precondition is another")
			return
		}
		if p := s.pods[name]; p != nil && !s.lazy && p.Meta.controller() == s.objects[name].Meta.UID {
			delete(s.pods, name)
		}
		delete(s.objects, name)
		reply(w, map[string]string{"kind": "Status", "status": "Success"})
	case r.Method == http.MethodPatch:
		var change object
		_ = json.NewDecoder(r.Body).Decode(&change)
		o := s.objects[name]
		maps.Copy(o.Meta.Labels, change.Meta.Labels)
		maps.Copy(o.Spec.Template.Meta.Labels, change.Spec.Template.Meta.Labels)
		s.reconcile()
		reply(w, o)
	default:
		reply(w, s.objects[name])
	}
}

// reconcile does what the controller of agent-sandbox does.
func (s *server) reconcile() {
	for name, o := range s.objects {
		if o.Spec.Mode == suspendedMode {
			if p := s.pods[name]; p != nil && p.Meta.controller() == o.Meta.UID {
				delete(s.pods, name)
			}
			continue
		}
		if s.stuck != "" {
			o.Status.Conditions = []condition{{Type: "Ready", Status: "False", Reason: "ReconcilerError", Message: s.stuck}}
			continue
		}
		if p := s.pods[name]; p != nil {
			if p.Meta.controller() == o.Meta.UID {
				maps.Copy(p.Meta.Labels, o.Spec.Template.Meta.Labels)
			}
			continue
		}
		p := &pod{Meta: meta{Name: name, Labels: maps.Clone(o.Spec.Template.Meta.Labels), Annotations: o.Spec.Template.Meta.Annotations}, Spec: o.Spec.Template.Spec}
		p.Meta.Owners = []owner{{API: agents, Kind: objectKind, Name: name, UID: o.Meta.UID, Controller: true}}
		s.put(p)
	}
}

func TestKind(t *testing.T) {
	forbidden := func(s *server) {
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/sandboxes") {
				refuse(w, 403, "Forbidden", "sandboxes.agents.x-k8s.io is forbidden")
				return true
			}
			return false
		}
	}
	for name, tt := range map[string]struct {
		kind       string
		installed  bool
		change     func(*server)
		controlled bool
		code       sandbox.Code
	}{
		"not installed":                 {},
		"installed":                     {installed: true, controlled: true},
		"installed, for others":         {installed: true, change: forbidden},
		"pods":                          {kind: "Pod", installed: true},
		"objects":                       {kind: "Sandbox", installed: true, controlled: true},
		"objects, but not installed":    {kind: "Sandbox", code: sandbox.CodeNotFound},
		"objects, but only for others":  {kind: "Sandbox", installed: true, change: forbidden, code: sandbox.CodeDenied},
		"a server that does not answer": {installed: true, change: func(s *server) { s.before = broken }, code: sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			if tt.installed {
				s.objects = map[string]*object{}
			}
			if tt.change != nil {
				tt.change(s)
			}
			p := s.open(t, t.TempDir(), func(o *Options) { o.Kind = tt.kind })
			if got, err := p.controlled(t.Context()); got != tt.controlled || p.ErrorCode(err) != tt.code {
				t.Errorf("controlled: %v, %v; want %v, %q", got, err, tt.controlled, tt.code)
			}
		})
	}
	if _, err := New(Options{Dir: t.TempDir(), Kubeconfig: "none", Kind: "pod"}); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), kindEnv) {
		t.Errorf("the kind pod: %v", err)
	}
}

func broken(w http.ResponseWriter, _ *http.Request) bool {
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

// An object has the pod as its template, and ends with it.
func TestObject(t *testing.T) {
	p := newPod("s", "try", "image", "gvisor", &sandbox.Spec{ID: "sb", Lifetime: sandbox.Lifetime{Timeout: time.Hour}})
	o := newObject(p)
	if o.Meta.Name != p.Meta.Name || o.Spec.Template.Spec.Runtime != "gvisor" || !maps.Equal(o.Spec.Template.Meta.Labels, p.Meta.Labels) || *o.Spec.Service {
		t.Errorf("%+v", o)
	}
	if o.Spec.Ends == nil || time.Until(*o.Spec.Ends) < 59*time.Minute || time.Until(*o.Spec.Ends) > 62*time.Minute || o.Spec.Policy != "Delete" {
		t.Errorf("it ends at %v, %q", o.Spec.Ends, o.Spec.Policy)
	}
	if o := newObject(newPod("s", "try", "image", "", &sandbox.Spec{ID: "sb"})); o.Spec.Ends != nil || o.Spec.Policy != "" {
		t.Errorf("without a lifetime it ends at %v", o.Spec.Ends)
	}
}

// Only a controller of agent-sandbox with the pod's name counts.
func TestController(t *testing.T) {
	right := owner{API: "agents.x-k8s.io/v1", Kind: "Sandbox", Name: "n", UID: "u", Controller: true}
	other := func(change func(*owner)) owner { o := right; change(&o); return o }
	for name, tt := range map[string]struct {
		owner owner
		uid   string
	}{
		"it":             {right, "u"},
		"another group":  {other(func(o *owner) { o.API = "agents.example.com/v1" }), ""},
		"another kind":   {other(func(o *owner) { o.Kind = "Job" }), ""},
		"another name":   {other(func(o *owner) { o.Name = "m" }), ""},
		"only an owner":  {other(func(o *owner) { o.Controller = false }), ""},
		"the core group": {other(func(o *owner) { o.API = "v1" }), ""},
	} {
		if got := (meta{Name: "n", Owners: []owner{tt.owner}}).controller(); got != tt.uid {
			t.Errorf("%s: %q, want %q", name, got, tt.uid)
		}
	}
}

// ordered makes an object and its pod, and records them as Create does.
func (s *server) ordered(t *testing.T, p *Provider, id sandbox.ID) *pod {
	t.Helper()
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	made, err := p.request(t.Context(), newPod(scope, "try", "image", "", &sandbox.Spec{ID: id}), ordered)
	if err != nil {
		t.Fatal(err)
	}
	s.record(t, p, id, hosted.Record{ServiceID: made.Meta.sandboxID(), More: true})
	return &made
}

func (s *server) left() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names = slices.Collect(maps.Keys(s.pods))
	for name := range s.objects {
		names = append(names, "object "+name)
	}
	return names
}

func TestOrder(t *testing.T) {
	s := withAgents(t)
	p := s.open(t, t.TempDir(), nil)
	made := s.ordered(t, p, "sb-1")
	if b := split(made.Meta.sandboxID()); b != (sandboxRef{name: made.Meta.Name, uid: made.Meta.UID, object: s.objects[made.Meta.Name].Meta.UID}) {
		t.Errorf("its sandbox ID is %q", made.Meta.sandboxID())
	}
	in, err := p.Attach(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if left := s.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The answer to the only request is lost: the object is found by its name.
func TestOrderLostAnswer(t *testing.T) {
	s := withAgents(t)
	p := s.open(t, t.TempDir(), nil)
	posts := 0
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || posts > 0 {
			return false
		}
		posts++
		s.object(&nowhere{}, r, "")
		w.WriteHeader(http.StatusGatewayTimeout)
		return true
	}
	if made := s.ordered(t, p, "sb-1"); made.Meta.controller() == "" || len(s.objects) != 1 {
		t.Errorf("%+v", made.Meta)
	}
}

type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header {
	if n.header == nil {
		n.header = http.Header{}
	}
	return n.header
}
func (*nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (*nowhere) WriteHeader(int)             {}

// A pod that somebody removed is made again by the controller. It is not the
// sandbox, and goes with it.
func TestOrderReplaced(t *testing.T) {
	s := withAgents(t)
	p := s.open(t, t.TempDir(), nil)
	made := s.ordered(t, p, "sb-1")
	in, err := p.Attach(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	delete(s.pods, made.Meta.Name)
	s.reconcile()
	s.mu.Unlock()
	if _, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Exec: %v, want gone", err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if left := s.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
}

// setMode suspends all objects, or resumes them with "".
func (s *server) setMode(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects {
		o.Spec.Mode = mode
	}
	s.reconcile()
}

// wantSuspended fails unless a sandbox is lost, with a reason, and neither gone nor
// failed.
func wantSuspended(t *testing.T, p *Provider, id sandbox.ID, labels map[string]string) {
	t.Helper()
	if state, err := p.State(t.Context(), id); state != sandbox.Lost || err != nil {
		t.Errorf("State: %s, %v, want lost", state, err)
	}
	var all []driver.Found
	for found, err := range p.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found)
	}
	if len(all) != 1 || all[0].ID != id || all[0].State != sandbox.Lost || all[0].Exit != nil || !maps.Equal(all[0].Labels, labels) {
		t.Errorf("List: %+v, want one that is lost", all)
	}
	in, err := p.Attach(t.Context(), id)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	if _, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "suspended") {
		t.Errorf("Exec: %v, want unavailable, because it is suspended", err)
	}
}

// An object that somebody suspended has no pod. Its sandbox is lost until somebody
// resumes the object: the new pod is not the sandbox. It can be removed.
func TestOrderSuspended(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		s := withAgents(t)
		p := s.open(t, t.TempDir(), nil)
		s.ordered(t, p, "sb-1")
		s.setMode(suspendedMode)
		wantSuspended(t, p, "sb-1", map[string]string{})
		other := s.open(t, t.TempDir(), nil)
		if _, err := other.Attach(t.Context(), "sb-1"); !errors.Is(err, driver.ErrElsewhere) {
			t.Errorf("Attach of another installation: %v", err)
		}
		if resumed {
			s.setMode("")
			if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
				t.Errorf("Attach after it was resumed: %v, want gone", err)
			}
		} else if in, err := p.Attach(t.Context(), "sb-1"); err != nil || in.Destroy(t.Context()) != nil {
			t.Errorf("a suspended sandbox cannot be removed: %v", err)
		}
		if left := s.left(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// The pod that the controller makes in place of a sandbox's is not the sandbox,
// as long as it exists.
func TestOrderReplacement(t *testing.T) {
	s := withAgents(t)
	p := s.open(t, t.TempDir(), nil)
	made := s.ordered(t, p, "sb-1")
	s.mu.Lock()
	s.lazy = true
	delete(s.pods, made.Meta.Name)
	s.reconcile()
	s.mu.Unlock()
	for range 2 {
		if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
			t.Errorf("Attach: %v, want gone", err)
		}
		for found, err := range p.List(t.Context()) {
			t.Errorf("List: %+v, %v", found, err)
		}
	}
	s.mu.Lock()
	left := len(s.objects)
	clear(s.pods)
	s.mu.Unlock()
	for found, err := range p.List(t.Context()) {
		t.Errorf("List: %+v, %v", found, err)
	}
	if r, ok := p.Get("sb-1"); left != 0 || ok && r.More {
		t.Errorf("%d objects are left, and the record %+v", left, r)
	}
}

// An object that the namespace's quota keeps from getting a pod is refused as a
// pod is, and removed.
func TestOrderRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		message string
		code    sandbox.Code
	}{
		"quota":    {`pod create failed: pods "x" is forbidden: exceeded quota: none, requested: pods=1`, sandbox.CodeExhausted},
		"limits":   {`pod create failed: pods "x" is forbidden: failed quota: mem: must specify limits.memory for: sandbox`, sandbox.CodeInvalid},
		"webhook":  {`pod create failed: admission webhook "w" denied the request: no`, sandbox.CodeDenied},
		"security": {`pod create failed: pods "x" is forbidden: violates PodSecurity "restricted:latest"`, sandbox.CodeDenied},
	} {
		t.Run(name, func(t *testing.T) {
			s := withAgents(t)
			s.stuck = tt.message
			p := s.open(t, t.TempDir(), nil)
			if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-1"}); p.ErrorCode(err) != tt.code {
				t.Errorf("Create: %v, want %s", err, tt.code)
			}
			if left := s.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// inMemory answers requests without a network, so that a test can wait in no time.
type inMemory struct{ s *server }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.s.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// A controller that makes no pod for two minutes is named with what it says, and
// what was made is removed although the time is over.
func TestOrderStalls(t *testing.T) {
	for name, open := range map[string]func() *server{
		"object": func() *server {
			s := withAgents(t)
			s.stuck = "it cannot reach w"
			return s
		},
		"claim": func() *server {
			s := withPool(t)
			s.pool.refusal = condition{Type: "Ready", Status: "False", Reason: "ReconcilerError", Message: "it cannot reach w"}
			return s
		},
		"pod": func() *server {
			s := serve(t)
			s.before = func(http.ResponseWriter, *http.Request) bool {
				for _, p := range s.pods {
					p.Status = waitingStatus("Pending", "ContainerCreating", "it cannot reach w")
				}
				return false
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open()
			synctest.Test(t, func(t *testing.T) {
				p := s.open(t, t.TempDir(), func(o *Options) {
					o.Transport = inMemory{s}
					if s.pool != nil {
						o.Pool = "warm"
					}
				})
				_, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-1", Image: "image"})
				if p.ErrorCode(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "it cannot reach w") || !strings.Contains(hintOf(err), "kubectl describe") {
					t.Errorf("Create: %v, want unavailable, and why", err)
				}
				if left := s.left(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// waitingStatus is the status of a pod that does not run yet.
func waitingStatus(phase, reason, message string) (s podStatus) {
	text := fmt.Sprintf(`{"phase":%q,"containerStatuses":[{"name":"sandbox","state":{"waiting":{"reason":%q,"message":%q}}}]}`, phase, reason, message)
	_ = json.Unmarshal([]byte(text), &s)
	return s
}

// The process died after it had made the object and before there was a pod: the
// next list removes the object, and the record with it.
func TestOrderDied(t *testing.T) {
	s := withAgents(t)
	p := s.open(t, t.TempDir(), nil)
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	o := newObject(newPod(scope, "try", "image", "", &sandbox.Spec{ID: "sb-1"}))
	o.Meta.UID = "object-1"
	s.objects[o.Meta.Name] = o
	s.record(t, p, "sb-1", hosted.Record{Asked: time.Now(), More: true})
	for found, err := range p.List(t.Context()) {
		t.Errorf("List: %+v, %v", found, err)
	}
	if r, _ := p.Get("sb-1"); len(s.left()) > 0 || r.More {
		t.Errorf("left: %v, and the record %+v", s.left(), r)
	}
}

// Objects and pods of others with the name are neither used nor removed.
func TestOrderForeign(t *testing.T) {
	for _, what := range []string{"pod", "object"} {
		t.Run(what, func(t *testing.T) {
			s := withAgents(t)
			p := s.open(t, t.TempDir(), nil)
			scope, err := p.Scope()
			if err != nil {
				t.Fatal(err)
			}
			theirs := meta{Name: podName(scope, "sb-new"), UID: "theirs", Labels: map[string]string{"owner": "them"}}
			if what == "pod" {
				s.pods[theirs.Name] = &pod{Meta: theirs, Status: podStatus{Phase: "Running"}}
			} else {
				s.objects[theirs.Name] = &object{Meta: theirs}
			}
			if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-new"}); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
				t.Errorf("Create: %v, want already exists", err)
			}
			if s.pods[theirs.Name] == nil && s.objects[theirs.Name] == nil {
				t.Error("theirs is gone")
			}
			if len(s.left()) != 1 {
				t.Errorf("left: %v", s.left())
			}
		})
	}
}

// An installation that takes a sandbox over changes the label of the object, too:
// the controller copies it to the pod.
func TestOrderAdopt(t *testing.T) {
	s := withAgents(t)
	p := s.open(t, t.TempDir(), nil)
	made := s.ordered(t, p, "sb-1")
	other := s.open(t, t.TempDir(), nil)
	if err := other.Adopt(t.Context(), &sandbox.Spec{ID: "sb-1"}); err != nil {
		t.Fatal(err)
	}
	scope, err := other.Scope()
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconcile()
	if got := s.pods[made.Meta.Name].Meta.Labels[labelScope]; got != scope {
		t.Errorf("the pod is of %q, want %q", got, scope)
	}
}
