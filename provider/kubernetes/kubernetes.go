// Package kubernetes makes sandboxes that are pods of a Kubernetes cluster.
//
// The API server makes, lists and ends pods over REST. Inside, Atoll's own guest
// does the work: the provider uploads it with a command, starts it with another
// one, and talks to it over the WebSocket protocol for commands. It uses no
// library of Kubernetes: see docs/design/decisions/0056.
//
// The UID identifies a pod. A pod is gone only when the API server itself says
// that it has none with its name, or that the one with its name has another UID.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "kubernetes"

// Options configure the connection to the cluster.
type Options struct {
	// Dir is a directory for this provider alone. It is created when it is first
	// needed. Sandboxes belong to it: another directory must adopt them first.
	Dir string
	// Kubeconfig is a list of configuration files, separated by colons. Empty: the
	// service account of the pod that Atoll runs in, or the user's own file.
	Kubeconfig string
	// Context is a context of the file. Empty: the current one.
	Context string
	// Namespace is that of the pods. Empty: that of the context, or "default".
	Namespace string
	// Image is the image of sandboxes that name none. Empty: DefaultImage.
	Image string
	// RuntimeClass is that of the pods; "none" is that of the nodes. Empty: gvisor,
	// if the cluster has it.
	RuntimeClass string
	// NetworkPolicy is Enforced if the cluster's network plugin enforces policies.
	// Most do, some do not, and the API server cannot tell.
	NetworkPolicy string
	// Kind is the kind of the objects that sandboxes are: "Pod", or "Sandbox" of
	// agent-sandbox. Empty: Sandbox, if the cluster has it and the credential may
	// use it.
	Kind string
	// Pool is a SandboxWarmPool of agent-sandbox in the namespace. Sandboxes that
	// its template suits are claimed from it. Empty: all are made anew.
	Pool string
	// Gateway is the address with a port at which pods reach this process. Sandboxes
	// whose rules no NetworkPolicy can express then use Atoll's gateway. Empty: such
	// sandboxes are refused.
	Gateway string
	// GatewayPods are the pods behind Gateway, if that is the address of a service:
	// NAMESPACE/LABEL=VALUE,... Empty: it is not.
	GatewayPods string
	// OpenGateway opens Atoll's gateway. Nil: this process has no gateway.
	OpenGateway OpenGateway
	// Insecure accepts clusters that do not prove who they are.
	Insecure bool
	// Host and Port are the API server's address for pods, and Account is the
	// directory of a pod's service account.
	Host, Port, Account string
	// Executable is a static program that imports internal/guest/early. It is the
	// guest if none is embedded. Empty: the running program.
	Executable string
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper
}

const (
	configEnv    = "KUBECONFIG"
	contextEnv   = "ATOLL_KUBERNETES_CONTEXT"
	namespaceEnv = "ATOLL_KUBERNETES_NAMESPACE"
	imageEnv     = "ATOLL_KUBERNETES_IMAGE"
	classEnv     = "ATOLL_KUBERNETES_RUNTIME_CLASS"
	policyEnv    = "ATOLL_KUBERNETES_NETWORK_POLICY"
	kindEnv      = "ATOLL_KUBERNETES_KIND"
	poolEnv      = "ATOLL_KUBERNETES_POOL"
	insecureEnv  = "ATOLL_KUBERNETES_INSECURE"

	gatewayEnv     = "ATOLL_KUBERNETES_GATEWAY"
	gatewayPodsEnv = "ATOLL_KUBERNETES_GATEWAY_PODS"

	// DefaultImage is the image of sandboxes if nothing names another.
	DefaultImage = "debian:12"
	// Enforced is the value of Options.NetworkPolicy.
	Enforced = "enforced"

	gvisorClass = "gvisor"
	noClass     = "none"
	podKind     = "Pod"
)

// FromEnvironment returns the options from environment variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, Kubeconfig: lookup(configEnv), Context: lookup(contextEnv), Namespace: lookup(namespaceEnv), Image: lookup(imageEnv),
		RuntimeClass: lookup(classEnv), NetworkPolicy: lookup(policyEnv), Kind: lookup(kindEnv), Pool: lookup(poolEnv), Insecure: lookup(insecureEnv) == "1",
		Gateway: lookup(gatewayEnv), GatewayPods: lookup(gatewayPodsEnv),
		Host: lookup("KUBERNETES_SERVICE_HOST"), Port: lookup("KUBERNETES_SERVICE_PORT"),
	}
}

// Provider makes pods in a namespace. Its methods may be called concurrently.
type Provider struct {
	*hosted.Core
	opts Options
	api  *api
	// gateway enforces the rules that no NetworkPolicy expresses. It may be nil.
	gateway *gateway
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.GatewayUser    = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.Meter          = (*Instance)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	switch {
	case opts.Dir == "":
		return nil, invalid("", "no directory given", nil)
	case opts.NetworkPolicy != "" && opts.NetworkPolicy != Enforced:
		return nil, invalid(policyEnv, fmt.Sprintf("%q is not %q", opts.NetworkPolicy, Enforced), nil)
	case opts.Kind != "" && opts.Kind != podKind && opts.Kind != objectKind:
		return nil, invalid(kindEnv, fmt.Sprintf("%q is not %q or %q", opts.Kind, podKind, objectKind), nil)
	case opts.Pool != "" && (opts.Kind == podKind || !usablePool.MatchString(opts.Pool)):
		return nil, invalid(poolEnv, fmt.Sprintf("%q is not the name of a SandboxWarmPool, or %s is %q", opts.Pool, kindEnv, podKind), nil)
	}
	at, err := opts.find()
	if err != nil {
		return nil, err
	}
	if !usableName.MatchString(at.namespace) {
		return nil, invalid("namespace", fmt.Sprintf("%q is not the name of a namespace", at.namespace), nil)
	}
	sandboxes := hosted.Open(opts.Dir)
	a := newAPI(at, opts.Transport, sandboxes, opts.NetworkPolicy == Enforced, opts.Pool)
	p := &Provider{opts: opts, api: a, Core: &hosted.Core{
		Records: sandboxes, Name: Name, Service: a, API: &a.Client, Expires: true, Resting: []string{"Running"}, Hint: "use its original cluster and namespace",
	}}
	p.OpenInside = func(b hosted.Sandbox) hosted.Inside { return &inside{p: p, id: b.Sandbox, sandbox: b.ID} }
	p.Extend = func(in *hosted.Instance) hosted.Made { return &Instance{in, p} }
	if p.gateway, err = p.newGateway(); err != nil {
		return nil, err
	}
	if p.gateway != nil {
		a.forget = p.gateway.forget
	}
	if err := p.Start(opts.Executable); err != nil {
		return nil, err
	}
	if p.gateway != nil {
		p.gateway.sweep()
	}
	return p, nil
}

// right is something that the provider does.
type right struct {
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Verb        string `json:"verb"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name,omitempty"`
}

func (r right) String() string {
	return r.Verb + " " + strings.TrimSuffix(r.Resource+"/"+r.Subresource, "/")
}

// rights returns what the provider does in its namespace. The manifest
// build/deploy/kubernetes/provider-rbac.yaml grants the same.
func (p *Provider) rights(controlled bool) (all []right) {
	for _, verb := range []string{"create", "get", "list", "delete", "patch"} {
		all = append(all, right{Resource: "pods", Verb: verb})
	}
	// A command over a WebSocket is a GET request. Newer API servers ask for both.
	all = append(all, right{Resource: "pods", Subresource: "exec", Verb: "get"}, right{Resource: "pods", Subresource: "exec", Verb: "create"})
	all = append(all, right{Resource: "namespaces", Verb: "get", Name: p.api.namespace})
	if p.enforced() {
		for _, verb := range []string{"create", "get", "delete"} {
			all = append(all, right{Group: "networking.k8s.io", Resource: policies, Verb: verb})
		}
	}
	if controlled {
		for _, verb := range []string{"create", "get", "list", "delete", "patch"} {
			all = append(all, right{Group: agentsGroup, Resource: objects, Verb: verb})
		}
	}
	if p.opts.Pool != "" {
		for _, verb := range []string{"create", "get", "delete", "patch"} {
			all = append(all, right{Group: extensionsGroup, Resource: claims, Verb: verb})
		}
		all = append(all, right{Group: extensionsGroup, Resource: pools, Verb: "get"}, right{Group: extensionsGroup, Resource: templates, Verb: "get"})
	}
	for i := range all {
		all[i].Namespace = p.api.namespace
	}
	return all
}

// review asks the API server which of the rights the credential lacks.
func (p *Provider) review(ctx context.Context, controlled bool) (lacks []string, err error) {
	all := p.rights(controlled)
	allowed, errs := make([]bool, len(all)), make([]error, len(all))
	var asking sync.WaitGroup
	for i, r := range all {
		asking.Go(func() {
			var said struct {
				Status struct {
					Allowed bool `json:"allowed"`
				} `json:"status"`
			}
			body := map[string]any{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": map[string]any{"resourceAttributes": r},
			}
			errs[i] = p.api.Call(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, &said)
			allowed[i] = said.Status.Allowed
		})
	}
	asking.Wait()
	for i, r := range all {
		if errs[i] != nil {
			return nil, errs[i]
		}
		if !allowed[i] {
			lacks = append(lacks, r.String())
		}
	}
	return lacks, nil
}

// Probe implements driver.Provider. It checks the credential, and its rights.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	var lacks []string
	var controlled bool
	var account error // why the namespace cannot be used
	set := p.api.Base.Host != ""
	facts, err := p.Facts(ctx, &hosted.Description{
		Version: "v1", Needs: configEnv, What: "cluster", Credential: configEnv, Address: configEnv,
		Limits: map[string]driver.Limit{
			"cpus": {Holds: true, By: "the pod's cgroup"}, "memory": {Holds: true, By: "the pod's cgroup"},
			"disk":     {Why: "the node ends a pod that uses more, instead of refusing to write"},
			"pids":     {Why: "the node's configuration decides", Fixed: true},
			"lifetime": {Holds: true, By: "Atoll and the node"},
		},
		Tested: "tested with a real node of Kubernetes 1.34",
	}, set, func(ctx context.Context) (err error) {
		if controlled, err = p.controlled(ctx); err == nil {
			lacks, err = p.review(ctx, controlled)
		}
		if err == nil {
			_, account = p.api.Account(ctx)
		}
		return err
	}, p.api.Base)
	if err != nil || !facts.Available {
		return facts, err
	}
	add := func(severity driver.Severity, subject, message, fix string) {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: severity, Subject: subject, Message: message, Fix: fix})
	}
	// Who may not read the namespace lacks the right to, which is a blocker, too.
	if e := (*sandbox.Error)(nil); errors.As(account, &e) && e.Code != sandbox.CodeDenied {
		facts.Available = false
		add(driver.Blocker, "namespace", "namespace "+p.api.namespace+": "+e.Message, e.Hint)
	}
	if len(lacks) > 0 {
		facts.Available = false
		add(driver.Blocker, "rights", "the credential may not "+strings.Join(lacks, ", ")+" in namespace "+p.api.namespace, "grant "+manifest)
	}
	class, isolation, err := p.runtime(ctx)
	switch {
	case err != nil:
		facts.Available = false
		add(driver.Blocker, "runtime", err.Error(), "set "+classEnv+" to a RuntimeClass of the cluster, or to "+noClass)
	case isolation == sandbox.IsolationNone:
		add(driver.Warning, "isolation", "pods have the kernel of their node: do not run code in them that you do not trust", "install gVisor on the nodes, with a RuntimeClass "+gvisorClass)
	default:
		add(driver.OK, "isolation", "pods have the RuntimeClass "+class, "")
	}
	facts.Isolation = isolation
	if controlled {
		add(driver.OK, "objects", "each sandbox is a Sandbox of agent-sandbox, which makes its pod", "")
	}
	if p.opts.Pool != "" {
		w, t, err := p.api.stock(ctx, p.opts.Pool)
		switch has := t.Spec.Template.Spec.Runtime; {
		case err != nil:
			facts.Available = false
			add(driver.Blocker, "pool", err.Error(), "set "+poolEnv+" to a SandboxWarmPool of namespace "+p.api.namespace+", or unset it")
		case has != class:
			add(driver.Warning, "pool", fmt.Sprintf("no sandbox is claimed from the warm pool %s: its template has the RuntimeClass %s, and sandboxes have %s", p.opts.Pool, cmp.Or(has, noClass), cmp.Or(class, noClass)),
				"set runtimeClassName in the SandboxTemplate, or "+classEnv)
		default:
			add(driver.OK, "pool", fmt.Sprintf("the warm pool %s has %d pods ready; sandboxes that its template suits are claimed from it", p.opts.Pool, w.Status.Ready), "")
		}
	}
	if p.gateway != nil {
		add(driver.OK, "gateway", "rules that no NetworkPolicy expresses are enforced by Atoll's gateway, which pods reach at "+p.gateway.at.String(), "")
	}
	if !p.enforced() {
		add(driver.Warning, "network", "whether the cluster enforces NetworkPolicy is not known, so only sandboxes that may reach everything are made",
			"if its network plugin enforces it, set "+policyEnv+"="+Enforced)
	}
	slices.SortStableFunc(facts.Findings, func(a, b driver.Finding) int { return rank(a) - rank(b) })
	return facts, ctx.Err()
}

// rank puts blockers first.
func rank(f driver.Finding) int {
	return slices.Index([]driver.Severity{driver.Blocker, driver.Warning, driver.OK, driver.Note}, f.Severity)
}

// runtime returns the RuntimeClass of new pods, or "" for that of the nodes, and
// their isolation.
func (p *Provider) runtime(ctx context.Context) (class string, isolation sandbox.Isolation, err error) {
	if p.opts.RuntimeClass == noClass {
		return "", sandbox.IsolationNone, nil
	}
	class = cmp.Or(p.opts.RuntimeClass, gvisorClass)
	isolation, found, err := p.api.class(ctx, class)
	denied := sandbox.CodeOf(err) == sandbox.CodeDenied // reading it is not a right that is needed
	switch {
	case err != nil && !denied:
		return "", "", err
	case denied && p.opts.RuntimeClass != "":
		return class, sandbox.IsolationNone, nil
	case denied || !found && p.opts.RuntimeClass == "":
		return "", sandbox.IsolationNone, nil
	case !found:
		return "", "", &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "kubernetes.create", Subject: class, Message: "the cluster has no such RuntimeClass", Hint: "see kubectl get runtimeclass, and set " + classEnv,
		}
	}
	return class, isolation, nil
}

// CheckImage implements driver.ImageChecker. Nodes fetch images.
func (p *Provider) CheckImage(image string) error {
	for _, scheme := range []string{"dir:", "tar:", "oci:", hosted.TemplateScheme} {
		if strings.HasPrefix(image, scheme) {
			return p.Unsupported(image, "the cluster's nodes cannot read images of this machine", "use an image from a registry")
		}
	}
	return nil
}

func (p *Provider) enforced() bool { return p.opts.NetworkPolicy == Enforced }

// EgressAbility implements driver.EgressEnforcer. Policies know addresses and
// ports, and no names.
func (p *Provider) EgressAbility() enforce.Ability {
	ability := enforce.Ability{Kind: enforce.None}
	if p.gateway == nil {
		ability.GatewaySetting = gatewayEnv
	}
	if !p.enforced() {
		return ability
	}
	ability.Kind = enforce.CIDRPort
	return ability
}

// supported refuses what a pod cannot have.
func (p *Provider) supported(spec *sandbox.Spec) error {
	if err := p.CheckImage(spec.Image); err != nil {
		return err
	}
	translated := *spec
	if p.byGateway(spec) {
		translated.Network = sandbox.Network{}
	}
	if err := p.Check(&translated); err != nil {
		return err
	}
	rules := spec.Network.Plain
	if !p.enforced() && (rules == nil || !rules.Open) {
		return p.Unsupported("network", "whether the cluster enforces NetworkPolicy is not known, so the sandbox could reach everything",
			"if its network plugin enforces it, set "+policyEnv+"="+Enforced+"; else use a policy with onUnenforceable")
	}
	if rules != nil && slices.ContainsFunc(rules.Allow, func(t sandbox.EgressTarget) bool { return t.Host != "" || !t.Prefix.IsValid() }) {
		return p.Unsupported("network", "a NetworkPolicy knows no names", "")
	}
	return nil
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.api.found(); err != nil {
		return nil, err
	}
	if err := p.supported(spec); err != nil {
		return nil, err
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	class, isolation, err := p.runtime(ctx)
	if err != nil {
		return nil, err
	}
	if !isolation.Meets(spec.Isolation) {
		return nil, p.Unsupported("isolation", "pods have the isolation "+string(isolation), "set "+classEnv+" to a RuntimeClass that gives more")
	}
	image := spec.Image
	if image == "" || image == "host" {
		image = cmp.Or(p.opts.Image, DefaultImage)
	}
	controlled, err := p.controlled(ctx)
	if err != nil {
		return nil, err
	}
	want := newPod(scope, hosted.NewKey(), image, class, spec)
	how, err := p.way(ctx, want, controlled)
	if err != nil {
		return nil, err
	}
	var made pod
	m := &hosted.Creation{
		Spec: spec, Life: spec.Lifetime.HardTimeout(), More: controlled || p.enforced(),
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			made, err = p.request(ctx, want, how)
			return made.describe(), err
		},
		Confirm: func() error { return made.confirm(want, how) },
	}
	limits := newPolicy(want, spec.Network.Plain)
	if p.byGateway(spec) {
		limits.Spec.Egress = []egressRule{p.gateway.rule()}
		m.Begin = func(ctx context.Context, _ hosted.Inside) error { return p.gateway.connect(ctx, spec.ID) }
	}
	if p.enforced() {
		m.Prepare = func(ctx context.Context) error {
			if err := p.api.forget(spec.ID); err != nil { // what an earlier attempt left
				return err
			}
			return p.api.limit(ctx, limits)
		}
	}
	return p.Make(ctx, m)
}

// byGateway reports whether Atoll's gateway enforces the rules of a new sandbox.
func (p *Provider) byGateway(spec *sandbox.Spec) bool {
	return p.CanUseGateway() && spec.Network.Asked() && spec.Network.Plain == nil
}

// way is how a pod is made.
type way int

const (
	direct  way = iota // by a request
	ordered            // by an object
	claimed            // taken from a warm pool
)

// way chooses how a pod is made. A pool whose template does not suit it is left
// alone.
func (p *Provider) way(ctx context.Context, want *pod, controlled bool) (way, error) {
	switch {
	case !controlled && p.opts.Pool != "":
		return direct, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "kubernetes.create", Subject: agents, Message: "the cluster has no agent-sandbox, or the credential may not use it", Hint: "install it, or unset " + poolEnv,
		}
	case !controlled:
		return direct, nil
	case p.opts.Pool == "":
		return ordered, nil
	}
	_, t, err := p.api.stock(ctx, p.opts.Pool)
	if err == nil && t.lacks(want, p.enforced()) == "" {
		return claimed, nil
	}
	return ordered, err
}

// place makes a pod. Its name is the same in each attempt, so none makes a second
// one.
func (a *api) place(ctx context.Context, want *pod) (made pod, err error) {
	name := want.Meta.Name
	err = a.Call(ctx, http.MethodPost, a.pods(""), want, &made)
	if conflict := sandbox.CodeOf(err) == sandbox.CodeConflict; hosted.Refused(err) && !conflict {
		return pod{}, explain(err, name)
	}
	made, err = hosted.Search(ctx, &a.Client, err, func() (pod, error) { return a.pod(ctx, name) })
	if err == nil && made.Meta.Labels[labelTry] != want.Meta.Labels[labelTry] {
		err = taken(name)
	}
	if err != nil {
		return pod{}, err
	}
	return made, nil
}

// request makes a pod, or has a controller make or give one, and waits until the
// pod runs.
func (p *Provider) request(ctx context.Context, want *pod, how way) (made pod, err error) {
	asked := time.Now()
	switch how {
	case claimed:
		made, err = p.api.take(ctx, want, p.opts.Pool)
	case ordered:
		made, err = p.api.order(ctx, want)
	default:
		made, err = p.api.place(ctx, want)
	}
	if err != nil {
		return pod{}, err
	}
	at := made.Meta.sandboxID()
	err = hosted.Poll(ctx, func() (bool, error) {
		now, err := p.api.get(ctx, at)
		if err == hosted.ErrNone {
			return false, p.ProtocolError("somebody removed the new pod")
		}
		if err != nil {
			return false, err
		}
		made = now
		return made.started(asked)
	}, func() error {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "kubernetes.create", Subject: made.Meta.Name, Message: "the new pod is still " + made.waits(),
			Hint: "see kubectl describe pod --namespace " + p.api.namespace + "; an image that takes longer can be pulled to the nodes before",
		}
	})
	return made, err
}
