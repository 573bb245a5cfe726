package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of one namespace of an API server. It implements
// hosted.Service.
type api struct {
	rest.Client
	token     *credential.Source
	namespace string
	sandboxes hosted.Records
	policed   bool   // each sandbox has a NetworkPolicy
	pool      string // from which sandboxes are claimed; empty: none
	// forget removes a sandbox from the gateway.
	forget func(sandbox.ID) error
}

func newAPI(c cluster, transport http.RoundTripper, sandboxes hosted.Records, policed bool, pool string) *api {
	a := &api{token: c.token, namespace: c.namespace, sandboxes: sandboxes, policed: policed, pool: pool, forget: func(sandbox.ID) error { return nil }}
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.IdleConnTimeout, t.MaxIdleConnsPerHost, t.TLSClientConfig = idle, 16, c.tls
		transport = t
	}
	a.Client = rest.Client{
		HTTP: rest.NewHTTP(transport), Base: c.server, ParseError: parseError, Fresh: a.fresh,
		Sign: func(h http.Header) {
			if t := a.token.Current(); t != "" {
				h.Set("Authorization", "Bearer "+t)
			}
		},
		Hidden: func() []string { return []string{a.token.Current()} }, Hint: "check the user of the kubeconfig",
		Advise: func(r *rest.Refusal) string {
			if r.Status == http.StatusForbidden && strings.Contains(r.Text, "cannot ") && strings.Contains(r.Text, " resource ") {
				return "the credential lacks a right in namespace " + a.namespace + ": grant " + manifest + "; all that are missing: atoll doctor"
			}
			return ""
		},
	}
	return a
}

// manifest grants what the provider does in its namespace.
const manifest = "build/deploy/kubernetes/provider-rbac.yaml"

// idle is how long an unused connection is kept.
const idle = 10 * time.Second

// fresh ensures that there is a server, and a token if there is a source.
func (a *api) fresh(ctx context.Context, refused bool) error {
	if err := a.found(); err != nil {
		return err
	}
	return a.token.Fresh(ctx, refused)
}

// found returns an error if nothing says where the cluster is.
func (a *api) found() error {
	if a.Base.Host != "" {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "no cluster is set", Hint: "set " + configEnv + " to a configuration file of kubectl"}
}

// status is an error of the API server, or how a command ended.
type status struct {
	Kind    string `json:"kind"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Details struct {
		Causes []struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"causes"`
	} `json:"details"`
}

// parseError reads an error of the API server.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var s status
	err := json.Unmarshal(body, &s)
	return s.Reason, s.Message, err == nil && s.Kind == "Status" && s.Reason != ""
}

// missing reports that the API server itself says that there is no such thing.
// The message names it: a wrong path has the same status and reason.
func missing(err error, kind, name string) bool {
	r := rest.RefusalOf(err)
	return r.Ours && r.Status == http.StatusNotFound && r.Code == "NotFound" && strings.HasSuffix(r.Text, fmt.Sprintf("%s %q not found", kind, name))
}

// explain gives errors of admission their own codes.
func explain(err error, what string) error {
	r := rest.RefusalOf(err)
	if !r.Ours || r.Status != http.StatusForbidden {
		return err
	}
	return cmp.Or(admission(r.Text, what), err)
}

// admission returns the error for a text with which a namespace refuses a pod, or
// nil if it is about something else.
func admission(text, what string) error {
	e := &sandbox.Error{Op: "kubernetes.create", Subject: what}
	switch {
	case strings.Contains(text, "exceeded quota"):
		e.Code, e.Message, e.Hint = sandbox.CodeExhausted, "the namespace's quota is used up: "+text, "remove sandboxes, or ask for less"
	case strings.Contains(text, "must specify"):
		e.Code, e.Message = sandbox.CodeInvalid, "the namespace's quota wants a limit or a request that the sandbox does not have: "+text
		e.Hint = "set what it names, with --memory, --cpus or --disk, or add a LimitRange with defaults to the namespace"
	case strings.Contains(text, "violates PodSecurity"):
		e.Code, e.Message, e.Hint = sandbox.CodeDenied, "the namespace refuses the pod: "+text, "sandboxes need the level baseline of Pod Security"
	case strings.Contains(text, "maximum") || strings.Contains(text, "minimum"):
		e.Code, e.Message, e.Hint = sandbox.CodeInvalid, "the namespace's limits refuse the pod: "+text, "ask for what the LimitRange of the namespace permits"
	case strings.Contains(text, "denied the request") || strings.Contains(text, "denied request"):
		e.Code, e.Message, e.Hint = sandbox.CodeDenied, "the cluster's admission refuses the pod: "+text, "see its admission webhooks and policies"
	case strings.Contains(text, "being terminated"):
		e.Code, e.Message, e.Hint = sandbox.CodeUnavailable, "the namespace is being removed: "+text, "use another, with "+namespaceEnv+", or make it again"
	default:
		return nil
	}
	return e
}

type meta struct {
	Name            string            `json:"name"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Created         time.Time         `json:"creationTimestamp,omitzero"`
	Deleted         *time.Time        `json:"deletionTimestamp,omitempty"`
	Owners          []owner           `json:"ownerReferences,omitempty"`
}

type owner struct {
	API        string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// The labels and annotations of a pod.
const (
	labelScope  = "atoll.run/scope"  // the state directory that owns it
	labelID     = "atoll.run/id"     // of the sandbox
	labelTry    = "atoll.run/try"    // of the request that made it; selects its NetworkPolicy
	labelUser   = "user.atoll.run/"  // prefix of the sandbox's labels that Kubernetes accepts, for kubectl
	noteLabels  = "atoll.run/labels" // all labels of the sandbox, as JSON
	noteClaim   = "atoll.run/claim"  // NAME/UID of the claim with which a pod of a warm pool was taken
	managedBy   = "app.kubernetes.io/managed-by"
	managerName = "atoll"
)

// podName returns the name of the pod of a sandbox that this directory creates.
// It is the same for each attempt.
func podName(scope string, id sandbox.ID) string { return "atoll-" + scope + "-" + string(id) }

// sandboxID identifies a pod, and the object that controls it, if any, and the claim
// that controls that. Another pod with the same name has another UID.
func (m meta) sandboxID() string {
	id := m.Name + "/" + m.UID
	if object := m.controller(); object != "" {
		id += "/" + object
		if claim := m.Annotations[noteClaim]; claim != "" {
			id += "/" + claim
		}
	}
	return id
}

// sandboxRef names the objects of a sandbox in the cluster. It is the parsed form
// of hosted.Sandbox.ID.
type sandboxRef struct{ name, uid, object, claim, claimUID string }

func split(id string) (b sandboxRef) {
	for _, part := range []*string{&b.name, &b.uid, &b.object, &b.claim, &b.claimUID} {
		*part, id, _ = strings.Cut(id, "/")
	}
	return b
}

// own is the name of what Atoll itself makes for a sandbox: a policy, and a pod,
// an object or a claim.
func (r sandboxRef) own() string { return cmp.Or(r.claim, r.name) }

// path returns the path of a resource of the namespace. An empty group is the
// core group.
func (a *api) path(group, kind, name string) string {
	root := "/api/v1"
	if group != "" {
		root = "/apis/" + group
	}
	if root += "/namespaces/" + url.PathEscape(a.namespace) + "/" + kind; name != "" {
		root += "/" + url.PathEscape(name)
	}
	return root
}

func (a *api) pods(name string) string { return a.path("", "pods", name) }

// pod returns the pod with a name.
func (a *api) pod(ctx context.Context, name string) (p pod, err error) {
	err = a.Call(ctx, http.MethodGet, a.pods(name), nil, &p)
	switch {
	case missing(err, "pods", name):
		err = hosted.ErrNone
	case err == nil && (p.Meta.Name != name || p.Meta.UID == ""):
		err = a.ProtocolError("the API server answers for another pod")
	}
	return p, err
}

// get returns the pod with a name and a UID.
func (a *api) get(ctx context.Context, id string) (pod, error) {
	b := split(id)
	p, err := a.pod(ctx, b.name)
	if err == nil && p.Meta.UID != b.uid {
		err = hosted.ErrNone
	}
	return p, err
}

// Get implements hosted.Service. If the pod is gone, it removes the object that
// controlled it, because that makes another pod, unless the object is suspended.
func (a *api) Get(ctx context.Context, id sandbox.ID, at string) (hosted.Sandbox, error) {
	p, err := a.get(ctx, at)
	if err == hosted.ErrNone {
		b, restErr := a.resting(ctx, split(at))
		if restErr != hosted.ErrNone {
			b.ID, b.Sandbox = at, id
			return b, restErr
		}
		err = cmp.Or(a.discard(ctx, split(at)), err)
	}
	b := p.describe()
	b.Sandbox = id
	return b, err
}

// Find implements hosted.Finder. It finds a pod that lost its labels, too.
func (a *api) Find(ctx context.Context, scope string, id sandbox.ID) (hosted.Sandbox, error) {
	r, _ := a.sandboxes.Get(string(id))
	if r.ServiceID == "" {
		return hosted.Sandbox{}, hosted.ErrNone
	}
	b, err := a.Get(ctx, id, r.ServiceID)
	if err == nil && b.Scope != "" && b.Scope != scope {
		err = hosted.ErrNone // another directory has adopted it
	}
	b.Scope = scope
	return b, err
}

// replaces reports whether a controller made a pod in place of that of a sandbox,
// which is gone.
func (a *api) replaces(b hosted.Sandbox) bool {
	r, _ := a.sandboxes.Get(string(b.Sandbox))
	ours, other := split(r.ServiceID), split(b.ID)
	return ours.object != "" && ours.name == other.name && ours.object == other.object && ours.uid != other.uid
}

// maxPages limits a list.
const maxPages = 10_000

// List implements hosted.Service.
func (a *api) List(ctx context.Context, scope string, id sandbox.ID) (ours []hosted.Sandbox, err error) {
	selector := labelScope
	if scope != "" {
		selector += "=" + scope
	}
	if id != "" {
		selector += "," + labelID + "=" + string(id)
	}
	all, err := listed[pod](ctx, a, a.pods(""), "PodList", selector)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{} // the objects that have a pod, by UID
	for i := range all {
		there[all[i].Meta.controller()] = true
		if b := all[i].describe(); !a.replaces(b) {
			ours = append(ours, b)
		}
	}
	suspended, err := a.suspended(ctx, selector, id, there)
	return append(ours, suspended...), err
}

// listed returns the resources with labels.
func listed[T any](ctx context.Context, a *api, path, kind, selector string) (all []T, err error) {
	query := url.Values{"labelSelector": {selector}, "limit": {"250"}}
	for range maxPages {
		var page struct {
			Kind string `json:"kind"`
			Meta struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := a.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		if page.Kind != kind {
			return nil, a.ProtocolError("the API server's list is invalid")
		}
		all = append(all, page.Items...)
		if page.Meta.Continue == "" {
			return all, nil
		}
		query.Set("continue", page.Meta.Continue)
	}
	return nil, a.ProtocolError("the API server's list has no end")
}

// End implements hosted.Service. It waits until the API server has no such pod,
// which is when the node has ended it. The object that controls the pod goes
// first: it would make another pod, or has done so.
func (a *api) End(ctx context.Context, _ sandbox.ID, id string) error {
	b := split(id)
	_, known := a.get(ctx, id)
	if known != nil && (known != hosted.ErrNone || b.object == "") {
		return known
	}
	if err := a.discard(ctx, b); err != nil {
		return err
	}
	var last pod
	err := hosted.Poll(ctx, func() (done bool, err error) {
		last, err = a.pod(ctx, b.name)
		if err == hosted.ErrNone || err == nil && last.Meta.UID != b.uid && (b.object == "" || last.Meta.controller() != b.object) {
			return true, nil
		}
		if err == nil && last.Meta.Deleted == nil {
			err = a.Call(ctx, http.MethodDelete, a.pods(b.name), map[string]any{"preconditions": map[string]string{"uid": last.Meta.UID}}, nil)
		}
		if missing(err, "pods", b.name) || sandbox.CodeOf(err) == sandbox.CodeConflict { // the next look says what is there
			err = nil
		}
		return false, err
	}, func() error {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: b.name, Message: "the node " + last.Spec.Node + " does not end the pod",
			Hint: "if the node is lost for good: kubectl delete pod --force --namespace " + a.namespace + " " + b.name,
		}
	})
	return cmp.Or(err, known)
}

// Claim implements hosted.Claimer. The UID is a precondition.
func (a *api) Claim(ctx context.Context, b hosted.Sandbox, metadata map[string]string) error {
	at, scope := split(b.ID), metadata[hosted.MetaScope]
	if at.object != "" {
		if err := a.rescope(ctx, at, scope); err != nil {
			return err
		}
	}
	return a.merge(ctx, a.pods(at.name), map[string]any{"metadata": map[string]any{"uid": at.uid, "labels": map[string]string{labelScope: scope}}}, new(pod))
}

// Account implements hosted.Accounter. The UID of the namespace distinguishes it
// from one that was made again, and from those of other clusters.
func (a *api) Account(ctx context.Context) (string, error) {
	var said struct {
		Meta meta `json:"metadata"`
	}
	err := a.Call(ctx, http.MethodGet, "/api/v1/namespaces/"+url.PathEscape(a.namespace), nil, &said)
	switch {
	case missing(err, "namespaces", a.namespace):
		err = &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: a.namespace, Message: "the cluster has no such namespace", Hint: "kubectl create namespace " + a.namespace + ", or set " + namespaceEnv,
		}
	case err == nil && (said.Meta.Name != a.namespace || said.Meta.UID == ""):
		err = a.ProtocolError("the API server answers for another namespace")
	}
	return said.Meta.UID, err
}

// Credential implements hosted.Service. Whoever may use the namespace has its
// sandboxes, whatever the credential.
func (a *api) Credential() hosted.Credential {
	return hosted.Credential{Name: "namespace " + a.namespace, Key: "namespace " + a.namespace}
}

// sandboxOf returns the objects of a sandbox: those in its record, or else the name
// of the pod that it would get.
func (a *api) sandboxOf(id sandbox.ID) (sandboxRef, error) {
	if r, _ := a.sandboxes.Get(string(id)); r.ServiceID != "" {
		return split(r.ServiceID), nil
	}
	scope, err := a.sandboxes.Scope()
	return sandboxRef{name: podName(scope, id)}, err
}

// class returns the isolation of a RuntimeClass.
func (a *api) class(ctx context.Context, name string) (isolation sandbox.Isolation, found bool, err error) {
	var said struct {
		Handler string `json:"handler"`
	}
	err = a.Call(ctx, http.MethodGet, "/apis/node.k8s.io/v1/runtimeclasses/"+url.PathEscape(name), nil, &said)
	if missing(err, "runtimeclasses.node.k8s.io", name) {
		return sandbox.IsolationNone, false, nil
	}
	return handlerIsolation(said.Handler), err == nil, err
}

// handlerIsolation returns the isolation of the usual names of runtimes.
func handlerIsolation(handler string) sandbox.Isolation {
	switch {
	case handler == "runsc" || strings.HasPrefix(handler, "runsc-") || strings.HasPrefix(handler, "gvisor"):
		return sandbox.IsolationKernel
	case handler == "kata" || strings.HasPrefix(handler, "kata-"):
		return sandbox.IsolationHardware
	}
	return sandbox.IsolationNone
}
