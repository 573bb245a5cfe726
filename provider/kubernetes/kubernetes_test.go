package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// secretToken is the token of the tests.
const secretToken = "token-0123456789"

// server answers as an API server does, from a table. The conformance suite needs
// a real one: see live_test.go.
type server struct {
	mu      sync.Mutex
	pods    map[string]*pod    // by name
	objects map[string]*object // by name; nil: the cluster has no agent-sandbox
	stuck   string             // why the controller makes no pods
	pool    *stock             // nil: the cluster has no warm pool
	lazy    bool               // pods do not end with their objects yet
	// before, if set, answers a request in place of the server.
	before func(w http.ResponseWriter, r *http.Request) bool
	asked  []string // method and path of the requests
	uid    int
	url    string
}

func serve(t *testing.T) *server {
	t.Helper()
	s := &server{pods: map[string]*pod{}}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

const root = "/api/v1/namespaces/agents"

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	if s.before != nil && s.before(w, r) {
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/apis/agents.x-k8s.io/v1beta1/namespaces/agents/sandboxes"); ok {
		s.object(w, r, strings.TrimPrefix(rest, "/"))
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/agents/"); ok {
		s.extension(w, r, rest)
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, root+"/pods"), "/")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+secretToken:
		refuse(w, 401, "Unauthorized", "Unauthorized")
	case r.URL.Path == "/apis":
		groups := []map[string]string{{"name": "apps"}}
		if s.objects != nil {
			groups = append(groups, map[string]string{"name": agentsGroup})
		}
		reply(w, map[string]any{"kind": "APIGroupList", "groups": groups})
	case r.URL.Path == root:
		reply(w, map[string]any{"kind": "Namespace", "metadata": map[string]string{"name": "agents", "uid": "ns-1"}})
	case strings.Contains(r.URL.Path, "/runtimeclasses/"):
		refuse(w, 404, "NotFound", `runtimeclasses.node.k8s.io "gvisor" not found`)
	case strings.HasPrefix(r.URL.Path, "/apis/networking.k8s.io/v1/namespaces/agents/networkpolicies"):
		if r.Method == http.MethodPost {
			text, _ := io.ReadAll(r.Body)
			_, _ = w.Write(text)
			return
		}
		refuse(w, 404, "NotFound", fmt.Sprintf("networkpolicies.networking.k8s.io %q not found", filepath.Base(r.URL.Path)))
	case r.URL.Path == root+"/pods" && r.Method == http.MethodPost:
		p := &pod{}
		_ = json.NewDecoder(r.Body).Decode(p)
		if s.pods[p.Meta.Name] != nil {
			refuse(w, 409, "AlreadyExists", fmt.Sprintf("pods %q already exists", p.Meta.Name))
			return
		}
		s.put(p)
		reply(w, p)
	case r.URL.Path == root+"/pods":
		list := []*pod{}
		for _, p := range s.pods {
			if matches(p.Meta.Labels, r.URL.Query().Get("labelSelector")) {
				list = append(list, p)
			}
		}
		reply(w, map[string]any{"kind": "PodList", "items": list})
	case s.pods[name] == nil:
		refuse(w, 404, "NotFound", fmt.Sprintf("pods %q not found", name))
	case r.Method == http.MethodDelete:
		delete(s.pods, name)
		reply(w, map[string]string{"kind": "Status", "status": "Success"})
	case r.Method == http.MethodPatch:
		var change pod
		_ = json.NewDecoder(r.Body).Decode(&change)
		for _, m := range []struct {
			have *map[string]string
			more map[string]string
		}{{&s.pods[name].Meta.Labels, change.Meta.Labels}, {&s.pods[name].Meta.Annotations, change.Meta.Annotations}} {
			if *m.have == nil {
				*m.have = map[string]string{}
			}
			maps.Copy(*m.have, m.more)
		}
		reply(w, s.pods[name])
	default:
		reply(w, s.pods[name])
	}
}

func matches(labels map[string]string, selector string) bool {
	for part := range strings.SplitSeq(selector, ",") {
		name, value, exact := strings.Cut(part, "=")
		if got, ok := labels[name]; !ok || exact && got != value {
			return false
		}
	}
	return true
}

// put adds a pod, with a new UID.
func (s *server) put(p *pod) {
	s.uid++
	p.Meta.UID, p.Meta.Created = fmt.Sprintf("uid-%d", s.uid), time.Now()
	if p.Status.Phase == "" {
		p.Status.Phase = "Running"
	}
	s.pods[p.Meta.Name] = p
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// refuse answers as an API server refuses.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure", "message": message, "reason": reason, "code": code})
}

func (s *server) open(t *testing.T, dir string, change func(*Options)) *Provider {
	t.Helper()
	o := Options{Dir: dir, Kubeconfig: write(t, t.TempDir(), "config", []byte(config("server: "+s.url, "token: "+secretToken))), NetworkPolicy: Enforced}
	if change != nil {
		change(&o)
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// made adds a running sandbox of the provider, as if Create had made it.
func (s *server) made(t *testing.T, p *Provider, id sandbox.ID) *pod {
	t.Helper()
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	made := newPod(scope, "try", "image", "", &sandbox.Spec{ID: id, Labels: map[string]string{"k": "v"}})
	s.put(made)
	s.record(t, p, id, hosted.Record{ServiceID: made.Meta.sandboxID()})
	return made
}

// record stores what Create stores of a sandbox.
func (s *server) record(t *testing.T, p *Provider, id sandbox.ID, r hosted.Record) {
	t.Helper()
	l, err := p.Lock(t.Context(), string(id))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if r.Binding, err = p.Binding(t.Context()); err == nil {
		r.Account = "ns-1"
		err = l.Write(r)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestLabels(t *testing.T) {
	spec := &sandbox.Spec{ID: "sb-1", Labels: map[string]string{
		"plain": "v", "empty": "", "with/slash": "v", "ümlaut": "v", "spaces": "a b", "long": strings.Repeat("x", 64), "-edge": "v", "quote": `"}`,
	}}
	p := newPod("0123456789abcdef", "try", "image", "", spec)
	p.Meta.UID = "u"
	for _, k := range []string{"with/slash", "ümlaut", "spaces", "long", "-edge", "quote"} {
		if v, ok := p.Meta.Labels[labelUser+k]; ok {
			t.Errorf("the label %q=%q is invalid in Kubernetes", k, v)
		}
	}
	if v, ok := p.Meta.Labels[labelUser+"plain"]; v != "v" || !ok {
		t.Errorf("the labels are %v", p.Meta.Labels)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var read pod
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	b := read.describe()
	if !maps.Equal(b.Labels, spec.Labels) || b.Sandbox != "sb-1" || b.Scope != "0123456789abcdef" || b.ID != "atoll-0123456789abcdef-sb-1/u" {
		t.Errorf("%+v, want the labels %v", b, spec.Labels)
	}
	if b := (&pod{Meta: meta{Name: "x", UID: "y"}}).describe(); b.Scope != "" {
		t.Errorf("a pod of somebody else: %+v", b)
	}
}

func TestPodSpec(t *testing.T) {
	for name, tt := range map[string]struct {
		spec sandbox.Spec
		has  []string
	}{
		"hardened": {sandbox.Spec{}, []string{
			`"restartPolicy":"Never"`, `"automountServiceAccountToken":false`, `"enableServiceLinks":false`, `"allowPrivilegeEscalation":false`, `"privileged":false`,
			`"runAsUser":0`, `"seccompProfile":{"type":"RuntimeDefault"}`, `"drop":["ALL"]`, `"runtimeClassName":"gvisor"`,
		}},
		"limits": {sandbox.Spec{Resources: sandbox.Resources{CPUs: 1.5, Memory: 64 << 20, Disk: 1 << 30, PIDs: 8}}, []string{
			`"limits":{"cpu":"1500m","ephemeral-storage":"1073741824","memory":"67108864"}`, `"requests":{"cpu":"100m"}`,
		}},
		"little":    {sandbox.Spec{Resources: sandbox.Resources{CPUs: 0.0001}}, []string{`"limits":{"cpu":"1m"}`, `"requests":{"cpu":"1m"}`}},
		"unlimited": {sandbox.Spec{Resources: sandbox.Resources{CPUs: -1, Memory: -1, Disk: -1}}, []string{`"workingDir":"/","securityContext"`}},
		"lifetime":  {sandbox.Spec{Lifetime: sandbox.Lifetime{Timeout: 1500 * time.Millisecond}}, []string{`"activeDeadlineSeconds":32`}},
		"hostname":  {sandbox.Spec{Hostname: "agent-7"}, []string{`"hostname":"agent-7"`}},
	} {
		tt.spec.ID, tt.spec.Env = "sb", map[string]string{"KEY": "secret"}
		text, err := json.Marshal(newPod("s", "t", "i", "gvisor", &tt.spec))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tt.has {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: no %s in %s", name, want, text)
			}
		}
		if strings.Contains(string(text), "secret") {
			t.Errorf("%s: the environment is part of the pod: %s", name, text)
		}
	}
}

// What an admission changes is noticed; how the API server writes it is not.
func TestConfirm(t *testing.T) {
	want := newPod("s", "t", "i", "gvisor", &sandbox.Spec{ID: "sb", Resources: sandbox.Resources{CPUs: 2, Memory: 64 << 20}})
	for name, tt := range map[string]struct {
		change func(*pod)
		ok     bool
	}{
		"as asked": {func(*pod) {}, true},
		"written differently": {func(p *pod) {
			p.Spec.Containers[0].Resources = map[string]map[string]string{"limits": {"cpu": "2", "memory": "64Mi"}}
		}, true},
		"a sidecar":       {func(p *pod) { p.Spec.Containers = append([]container{{Name: "proxy"}}, p.Spec.Containers...) }, true},
		"another runtime": {func(p *pod) { p.Spec.Runtime = "" }, false},
		"host network":    {func(p *pod) { p.Spec.HostNetwork = true }, false},
		"privileged":      {func(p *pod) { p.Spec.Containers[0].Security.Privileged = true }, false},
		"escalation":      {func(p *pod) { p.Spec.Containers[0].Security.Escalation = true }, false},
		"a token":         {func(p *pod) { p.Spec.Token = nil }, false},
		"more memory":     {func(p *pod) { p.Spec.Containers[0].Resources["limits"]["memory"] = "1Gi" }, false},
		"no limits":       {func(p *pod) { p.Spec.Containers[0].Resources = nil }, false},
		"another image":   {func(p *pod) { p.Spec.Containers[0].Image = "j" }, false},
		"no label":        {func(p *pod) { p.Meta.Labels = nil }, false},
		"no deadline":     {func(p *pod) { p.Spec.Deadline = 7 }, false},
		"no container":    {func(p *pod) { p.Spec.Containers = nil }, false},
	} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got pod
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		tt.change(&got)
		if err := got.confirm(want, direct); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPolicy(t *testing.T) {
	target := func(prefix string, ports ...sandbox.PortRange) sandbox.EgressTarget {
		return sandbox.EgressTarget{Prefix: netip.MustParsePrefix(prefix), Ports: ports}
	}
	const all = `"ports":[{"protocol":"TCP","port":1,"endPort":65535}]`
	for name, tt := range map[string]struct {
		rules *sandbox.EgressRules
		want  string
	}{
		"no network": {nil, ``},
		"nothing":    {&sandbox.EgressRules{}, ``},
		"everything": {&sandbox.EgressRules{Open: true}, `"egress":[{}],`},
		"a prefix":   {&sandbox.EgressRules{Allow: []sandbox.EgressTarget{target("8.8.8.8/8")}}, `"egress":[{` + all + `,"to":[{"ipBlock":{"cidr":"8.0.0.0/8"}}]}],`},
		"a port": {
			&sandbox.EgressRules{Allow: []sandbox.EgressTarget{target("2001:db8::/32", sandbox.PortRange{Low: 443, High: 443})}},
			`"egress":[{"ports":[{"protocol":"TCP","port":443}],"to":[{"ipBlock":{"cidr":"2001:db8::/32"}}]}],`,
		},
		"DNS": {
			&sandbox.EgressRules{Allow: []sandbox.EgressTarget{target("10.96.0.10/32", sandbox.PortRange{Low: 53, High: 53})}},
			`"egress":[{"ports":[{"protocol":"TCP","port":53},{"protocol":"UDP","port":53}],"to":[{"ipBlock":{"cidr":"10.96.0.10/32"}}]}],`,
		},
	} {
		text, err := json.Marshal(newPolicy(newPod("s", "t", "i", "", &sandbox.Spec{ID: "sb"}), tt.rules).Spec)
		want := `{"podSelector":{"matchLabels":{"atoll.run/try":"t"}},` + tt.want + `"policyTypes":["Ingress","Egress"]}`
		if err != nil || string(text) != want {
			t.Errorf("%s: %s, %v\nwant %s", name, text, err, want)
		}
	}
}

// States of pods, with statuses as a node and the controllers write them.
func TestStates(t *testing.T) {
	for name, tt := range map[string]struct {
		text  string
		state sandbox.State
		why   string
	}{
		"running":     {`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"ContainersReady","status":"True"}]}}`, sandbox.Running, ""},
		"starting":    {`{"status":{"phase":"Pending"}}`, sandbox.Running, ""},
		"not ready":   {`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"},{"type":"ContainersReady","status":"False"}]}}`, sandbox.Running, ""},
		"node lost":   {`{"spec":{"nodeName":"n1"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"},{"type":"ContainersReady","status":"True"}]}}`, sandbox.Lost, "node n1 does not answer"},
		"gated":       {`{"spec":{"readinessGates":[{"conditionType":"x"}]},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"},{"type":"ContainersReady","status":"True"}]}}`, sandbox.Running, ""},
		"being ended": {`{"metadata":{"deletionTimestamp":"2026-11-28T20:00:00Z"},"status":{"phase":"Running"}}`, sandbox.Lost, "being ended"},
		"evicted":     {`{"status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: ephemeral-storage."}}`, sandbox.Failed, "Evicted: The node was low on resource"},
		"deadline":    {`{"status":{"phase":"Failed","reason":"DeadlineExceeded","message":"Pod was active on the node longer than the specified deadline"}}`, sandbox.Failed, "DeadlineExceeded"},
		"memory":      {`{"status":{"phase":"Failed","containerStatuses":[{"name":"sandbox","state":{"terminated":{"exitCode":137,"reason":"OOMKilled"}}}]}}`, sandbox.Failed, "OOMKilled"},
		"done":        {`{"status":{"phase":"Succeeded"}}`, sandbox.Failed, "has ended"},
		"unknown":     {`{"status":{"phase":"Unknown"}}`, sandbox.Lost, ""},
		"of later":    {`{"status":{"phase":"Sleeping"}}`, sandbox.Lost, ""},
	} {
		var p pod
		if err := json.Unmarshal([]byte(tt.text), &p); err != nil {
			t.Fatal(err)
		}
		if _, state, why := p.state(); state != tt.state || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %s %q, want %s %q", name, state, why, tt.state, tt.why)
		}
	}
}

// Creation fails at once with the error of its cause, and leaves nothing.
func TestCreateErrors(t *testing.T) {
	unplaced = 0
	t.Cleanup(func() { unplaced = time.Minute })
	waiting := func(reason, message string) string {
		return `{"phase":"Pending","containerStatuses":[{"name":"sandbox","state":{"waiting":{"reason":"` + reason + `","message":"` + message + `"}}}]}`
	}
	for name, tt := range map[string]struct {
		refused func(w http.ResponseWriter)
		status  string // of the new pod
		code    sandbox.Code
		says    string
	}{
		"quota": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1`)
		}, code: sandbox.CodeExhausted, says: "exceeded quota: q"},
		"Pod Security": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true`)
		}, code: sandbox.CodeDenied, says: "baseline"},
		"LimitRange": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi`)
		}, code: sandbox.CodeInvalid, says: "maximum memory"},
		"no right": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "agents"`)
		}, code: sandbox.CodeDenied, says: "cannot create"},
		"no right, with a hint": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "agents"`)
		}, code: sandbox.CodeDenied, says: "in namespace agents: grant build/deploy/kubernetes/provider-rbac.yaml"},
		"quota of limits": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods "x" is forbidden: failed quota: mem: must specify limits.memory for: sandbox`)
		}, code: sandbox.CodeInvalid, says: "with --memory"},
		"admission": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `admission webhook "w" denied the request: no`)
		}, code: sandbox.CodeDenied, says: "see its admission webhooks"},
		"namespace ends": {refused: func(w http.ResponseWriter) {
			refuse(w, 403, "Forbidden", `pods "x" is forbidden: unable to create new content in namespace agents because it is being terminated`)
		}, code: sandbox.CodeUnavailable, says: namespaceEnv},
		"invalid": {refused: func(w http.ResponseWriter) {
			refuse(w, 422, "Invalid", `Pod "x" is invalid: spec.containers[0].image: Invalid value`)
		}, code: sandbox.CodeInvalid, says: "Invalid value"},
		"webhook": {refused: func(w http.ResponseWriter) {
			refuse(w, 500, "InternalError", `Internal error occurred: failed calling webhook "x"`)
		}, code: sandbox.CodeUnavailable, says: "webhook"},
		"image":      {status: waiting("ImagePullBackOff", `Back-off pulling image`), code: sandbox.CodeNotFound, says: "Back-off pulling"},
		"image name": {status: waiting("InvalidImageName", `couldn't parse image name`), code: sandbox.CodeNotFound, says: "parse image name"},
		"config":     {status: waiting("CreateContainerConfigError", `no such user`), code: sandbox.CodeUnavailable, says: "no such user"},
		"no room": {
			status: `{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/1 nodes are available: 1 Insufficient memory."}]}`,
			code:   sandbox.CodeExhausted, says: "1 Insufficient memory",
		},
		"no shell": {
			status: `{"phase":"Failed","containerStatuses":[{"name":"sandbox","state":{"terminated":{"exitCode":128,"reason":"StartError","message":"exec: \"/bin/sh\": stat /bin/sh: no such file or directory"}}}]}`,
			code:   sandbox.CodeUnsupported, says: "no /bin/sh",
		},
		"evicted": {status: `{"phase":"Failed","reason":"Evicted","message":"low on memory"}`, code: sandbox.CodeUnavailable, says: "Evicted: low on memory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			p := s.open(t, t.TempDir(), nil)
			s.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPost || r.URL.Path != root+"/pods" {
					return false
				}
				if tt.refused != nil {
					tt.refused(w)
					return true
				}
				made := &pod{}
				_ = json.NewDecoder(r.Body).Decode(made)
				_ = json.Unmarshal([]byte(tt.status), &made.Status)
				s.put(made)
				reply(w, made)
				return true
			}
			_, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-new"})
			if sandbox.CodeOf(err) != tt.code || !strings.Contains(err.Error()+hintOf(err), tt.says) || strings.Contains(err.Error(), secretToken) {
				t.Errorf("%v (%s), want %s with %q", err, sandbox.CodeOf(err), tt.code, tt.says)
			}
			if len(s.pods) > 0 {
				t.Errorf("left: %v", slices.Sorted(maps.Keys(s.pods)))
			}
		})
	}
}

func hintOf(err error) string {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// A lost answer makes no second pod: what the first request made is found.
func TestLostAnswer(t *testing.T) {
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	posts := 0
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || r.URL.Path != root+"/pods" {
			return false
		}
		posts++
		made := &pod{}
		_ = json.NewDecoder(r.Body).Decode(made)
		s.put(made)
		w.WriteHeader(http.StatusGatewayTimeout)
		return true
	}
	want := newPod("s", "mine", "i", "", &sandbox.Spec{ID: "sb"})
	made, err := p.request(t.Context(), want, direct)
	if err != nil || made.Meta.UID != "uid-1" || posts != 1 {
		t.Errorf("%+v, %v after %d requests", made.Meta, err, posts)
	}
	s.before = nil
	if made, err = p.request(t.Context(), want, direct); err != nil || made.Meta.UID != "uid-1" {
		t.Errorf("asked again: %+v, %v; want the same pod", made.Meta, err)
	}
}

// A pod of somebody else with the name of a new sandbox is neither used nor
// removed.
func TestForeignPod(t *testing.T) {
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	theirs := &pod{Meta: meta{Name: podName(scope, "sb-new"), Labels: map[string]string{"owner": "them"}}}
	s.put(theirs)
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-new"}); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
		t.Errorf("Create: %v, want already exists", err)
	}
	if s.pods[theirs.Meta.Name] != theirs {
		t.Error("their pod is gone")
	}
}

// A pod that has the name of a sandbox and another UID is not the sandbox: it gets
// no commands and is not ended.
func TestReplacedPod(t *testing.T) {
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	mine := s.made(t, p, "sb-1")
	in, err := p.Attach(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	theirs := &pod{Meta: meta{Name: mine.Meta.Name, Labels: map[string]string{}}}
	s.put(theirs)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/exec") {
			return false
		}
		s.mu.Unlock()
		defer s.mu.Lock()
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: protocols})
		if err != nil {
			t.Error(err)
			return true
		}
		defer func() { _ = ws.CloseNow() }()
		if _, data, err := ws.Read(r.Context()); err == nil {
			t.Errorf("their pod got %q", data)
		}
		return true
	}
	if _, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Exec: %v, want gone", err)
	}
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if s.pods[theirs.Meta.Name] != theirs {
		t.Error("their pod is gone")
	}
}

// Only the API server's word that there is no such pod, by its name and in the
// list, proves that a sandbox is gone.
func TestEvidence(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter)
		code   sandbox.Code
	}{
		"403": {func(w http.ResponseWriter) { refuse(w, 403, "Forbidden", "pods is forbidden") }, sandbox.CodeDenied},
		"404 of something else": {func(w http.ResponseWriter) {
			refuse(w, 404, "NotFound", "the server could not find the requested resource")
		}, sandbox.CodeNotFound},
		"404 of a proxy":      {func(w http.ResponseWriter) { w.WriteHeader(404) }, sandbox.CodeUnavailable},
		"504":                 {func(w http.ResponseWriter) { refuse(w, 504, "Timeout", "request did not complete") }, sandbox.CodeUnavailable},
		"nothing":             {func(w http.ResponseWriter) { reply(w, map[string]any{}) }, sandbox.CodeUnavailable},
		"a broken connection": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, sandbox.CodeUnavailable},
	} {
		for _, about := range []string{"/pods/", "/pods"} { // the pod, and the list
			t.Run(name+about, func(t *testing.T) {
				s := serve(t)
				p := s.open(t, t.TempDir(), nil)
				delete(s.pods, s.made(t, p, "sb-1").Meta.Name)
				s.before = func(w http.ResponseWriter, r *http.Request) bool {
					asked := strings.HasPrefix(r.URL.Path, root+"/pods/") && about == "/pods/" || r.URL.Path == root+about
					if asked {
						tt.answer(w)
					}
					return asked
				}
				if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != tt.code {
					t.Errorf("Attach: %v (%s), want %s", err, p.ErrorCode(err), tt.code)
				}
				s.before = nil
				if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
					t.Errorf("Attach, with answers: %v, want gone", err)
				}
			})
		}
	}
	t.Run("another namespace of the name", func(t *testing.T) {
		s := serve(t)
		p := s.open(t, t.TempDir(), nil)
		delete(s.pods, s.made(t, p, "sb-1").Meta.Name)
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == root {
				reply(w, map[string]any{"metadata": map[string]string{"name": "agents", "uid": "ns-2"}})
			}
			return r.URL.Path == root
		}
		if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeUnauthorized {
			t.Errorf("Attach: %v, want that another namespace made it", err)
		}
	})
	t.Run("without its labels", func(t *testing.T) {
		s := serve(t)
		p := s.open(t, t.TempDir(), nil)
		s.made(t, p, "sb-1").Meta.Labels = nil
		if _, err := p.Attach(t.Context(), "sb-1"); err != nil {
			t.Errorf("Attach: %v, want the pod with the UID", err)
		}
	})
}

// An installation that takes a sandbox over is its owner from then on.
func TestAdopt(t *testing.T) {
	s := serve(t)
	one, two := s.open(t, t.TempDir(), nil), s.open(t, t.TempDir(), nil)
	s.made(t, one, "sb-1")
	in, err := one.Attach(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := two.Adopt(t.Context(), &sandbox.Spec{ID: "sb-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Attach(t.Context(), "sb-1"); !errors.Is(err, driver.ErrElsewhere) {
		t.Errorf("Attach by the first: %v", err)
	}
	if err := in.Destroy(t.Context()); !errors.Is(err, driver.ErrElsewhere) || len(s.pods) != 1 {
		t.Errorf("Destroy by the first: %v, %d pods", err, len(s.pods))
	}
	again, err := two.Attach(t.Context(), "sb-1")
	if err == nil {
		err = again.Destroy(t.Context())
	}
	if err != nil || len(s.pods) != 0 {
		t.Errorf("Destroy by the second: %v, %d pods", err, len(s.pods))
	}
}

// A server cannot get the token sent elsewhere, nor fill the memory.
func TestHostileServer(t *testing.T) {
	stolen := make(chan string, 100)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen <- r.Header.Get("Authorization") }))
	t.Cleanup(thief.Close)
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	s.made(t, p, "sb-1")
	in, err := p.Attach(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, thief.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Attach, redirected: %v", err)
	}
	if _, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Exec, redirected: %v", err)
	}
	select {
	case token := <-stolen:
		t.Errorf("another server got a request with %q", token)
	default:
	}
	frame := make([]byte, 16<<20)
	frame[0] = stdout
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/exec") {
			return false
		}
		s.mu.Unlock()
		defer s.mu.Lock()
		if ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: protocols}); err == nil {
			_ = ws.Write(r.Context(), websocket.MessageBinary, frame)
			_ = ws.CloseNow()
		}
		return true
	}
	sb, _ := p.Records.Get("sb-1")
	run := &inside{p: p, id: "sb-1", sandbox: sb.ServiceID}
	if out, err := run.Run(t.Context(), "true"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a giant frame: %d bytes, %v", len(out), err)
	}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = fmt.Fprintf(w, `{"kind":"Status","message":%q`, strings.Repeat(secretToken, 2<<20))
		return true
	}
	if _, err := p.Attach(t.Context(), "sb-1"); err == nil || strings.Contains(err.Error(), secretToken) || len(err.Error()) > 1000 {
		t.Errorf("a giant answer: an error of %d bytes", len(fmt.Sprint(err)))
	}
}

// How commands end, with the messages of API servers.
func TestExits(t *testing.T) {
	p := serve(t).open(t, t.TempDir(), nil)
	in := &inside{p: p, id: "sb", sandbox: "none/uid"}
	for text, want := range map[string]string{
		`{"metadata":{},"status":"Success"}`: "the program has ended: exited",
		`{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: error executing command [sh -c exit 77], exit code 77","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"77"}]}}`:                                                                                             "the program has ended: exited",
		`{"metadata":{},"status":"Failure","message":"Internal error occurred: error executing command in container: failed to exec in container: failed to start exec \"x\": OCI runtime exec failed: exec failed: unable to start container process: exec: \"/bin/sh\": stat /bin/sh: no such file or directory","reason":"InternalError"}`: "does not run the command",
		`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}`:                                                                                                                                                                                                                          "does not run the command",
		`garbage`: "invalid",
	} {
		if err := in.ended([]byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Without enforced policies, only sandboxes that may reach everything are made.
func TestUnenforced(t *testing.T) {
	p := serve(t).open(t, t.TempDir(), func(o *Options) { o.NetworkPolicy = "" })
	for name, network := range map[string]sandbox.Network{
		"none":      {},
		"a prefix":  {Egress: []string{"8.0.0.0/8"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Prefix: netip.MustParsePrefix("8.0.0.0/8")}}}},
		"untouched": {Egress: []string{"*"}},
	} {
		if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-x", Network: network}); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", name, err)
		}
	}
	if kind := p.EgressAbility().Kind; kind != enforce.None {
		t.Errorf("it claims to enforce %s", kind)
	}
	facts, err := p.Probe(t.Context())
	if err != nil || !slices.ContainsFunc(facts.Findings, func(f driver.Finding) bool { return f.Subject == "rights" || f.Subject == "service" }) {
		t.Errorf("%+v, %v", facts, err)
	}
	if _, err := New(Options{Dir: t.TempDir(), NetworkPolicy: "yes"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an unknown value: %v", err)
	}
}

// Probe names the rights that the credential lacks.
func TestRights(t *testing.T) {
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
			return false
		}
		text, _ := io.ReadAll(r.Body)
		reply(w, map[string]any{"status": map[string]bool{"allowed": !strings.Contains(string(text), `"verb":"patch"`)}})
		return true
	}
	facts, err := p.Probe(t.Context())
	if err != nil || facts.Available || !strings.Contains(facts.Findings[0].Message, "may not patch pods in namespace agents") {
		t.Errorf("%+v, %v", facts, err)
	}
	if facts.Isolation != sandbox.IsolationNone {
		t.Errorf("the isolation is %s", facts.Isolation)
	}
}

// Probe says that there is no such namespace, with the rights of an administrator,
// too, who may do everything in a namespace that does not exist.
func TestProbeNamespace(t *testing.T) {
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			reply(w, map[string]any{"status": map[string]bool{"allowed": true}})
		case r.URL.Path == root:
			refuse(w, 404, "NotFound", `namespaces "agents" not found`)
		default:
			return false
		}
		return true
	}
	facts, err := p.Probe(t.Context())
	if err != nil || facts.Available || facts.Findings[0].Subject != "namespace" || !strings.Contains(facts.Findings[0].Fix, "kubectl create namespace agents") {
		t.Errorf("%+v, %v; want that the namespace is missing", facts, err)
	}
}

// A refusal that is cut off because its caller gave up is no refusal.
func TestCanceled(t *testing.T) {
	s := serve(t)
	p := s.open(t, t.TempDir(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":`)
		_ = http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
		return true
	}
	if _, err := p.api.pod(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
}
