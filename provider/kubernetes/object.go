package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// The resource of agent-sandbox, as paths and as errors name it. See its
// api/v1beta1/sandbox_types.go.
const (
	agents      = "agents.x-k8s.io/v1beta1"
	agentsGroup = "agents.x-k8s.io"
	objects     = "sandboxes"
	objectKinds = "sandboxes.agents.x-k8s.io"
	objectKind  = "Sandbox"
)

// object is a Sandbox of agent-sandbox, whose controller makes a pod with its
// name.
type object struct {
	API    string       `json:"apiVersion,omitempty"`
	Kind   string       `json:"kind,omitempty"`
	Meta   meta         `json:"metadata"`
	Spec   objectSpec   `json:"spec"`
	Status objectStatus `json:"status,omitzero"`
}

type objectSpec struct {
	Template struct {
		Meta templateMeta `json:"metadata"`
		Spec podSpec      `json:"spec"`
	} `json:"podTemplate"`
	Ends    *time.Time `json:"shutdownTime,omitempty"`
	Service *bool      `json:"service,omitempty"`
	Policy  string     `json:"shutdownPolicy,omitempty"`
	Mode    string     `json:"operatingMode,omitempty"`
}

type templateMeta struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type objectStatus struct {
	Conditions []condition `json:"conditions"`
}

// newObject returns the object of a pod. The controller ends both when the pod's
// time is over.
func newObject(p *pod) *object {
	o := &object{API: agents, Kind: objectKind, Meta: p.Meta}
	o.Spec.Template.Meta = templateMeta{p.Meta.Labels, p.Meta.Annotations}
	o.Spec.Template.Spec, o.Spec.Service = p.Spec, new(bool)
	if o.Spec.Ends = p.ends(); o.Spec.Ends != nil {
		o.Spec.Policy = "Delete"
	}
	return o
}

// ends returns when the time of a new pod is over, or nil.
func (p *pod) ends() *time.Time {
	if p.Spec.Deadline == 0 {
		return nil
	}
	ends := time.Now().Add(time.Duration(p.Spec.Deadline) * time.Second).UTC().Truncate(time.Second)
	return &ends
}

// controller returns the UID of the object to which a pod belongs, or "".
func (m meta) controller() string {
	for _, o := range m.Owners {
		if o.Controller && o.Kind == objectKind && groupOf(o.API) == agentsGroup && o.Name == m.Name {
			return o.UID
		}
	}
	return ""
}

func groupOf(version string) string {
	group, _, _ := strings.Cut(version, "/")
	return group
}

func (a *api) objects(name string) string { return a.path(agents, objects, name) }

// controlled reports whether new pods are made by objects: if the options say so,
// or if the cluster has agent-sandbox and the credential may list its objects.
func (p *Provider) controlled(ctx context.Context) (bool, error) {
	if p.opts.Kind == podKind {
		return false, nil
	}
	err := p.api.Call(ctx, http.MethodGet, p.api.objects("")+"?limit=1", nil, new(any))
	absent, err := p.api.absent(ctx, agentsGroup, err)
	r := rest.RefusalOf(err)
	absent = absent || r.Ours && r.Status == http.StatusNotFound
	switch {
	case err == nil:
		return true, nil
	case absent && p.opts.Kind == objectKind:
		return false, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "kubernetes.create", Subject: agents, Message: "the cluster has no agent-sandbox", Hint: "install it, or unset " + kindEnv,
		}
	case r.Ours && r.Status == http.StatusForbidden && p.opts.Kind == objectKind:
		return false, &sandbox.Error{
			Code: sandbox.CodeDenied, Op: "kubernetes.create", Subject: agents, Message: "the credential may not list objects of agent-sandbox in namespace " + p.api.namespace,
			Hint: "grant " + manifest + ", or unset " + kindEnv, Cause: err,
		}
	case (absent || r.Ours && r.Status == http.StatusForbidden) && p.opts.Kind == "":
		return false, nil
	}
	return false, err
}

// absent reports whether an error says that the API server has no resources of a
// group. The answer to a path of an unknown group is not a status of the API server,
// and others could have sent it: then its list of groups decides. It also returns
// err, or why that is not known.
func (a *api) absent(ctx context.Context, group string, err error) (bool, error) {
	r := rest.RefusalOf(err)
	if r.Ours || r.Status != http.StatusNotFound {
		return false, err
	}
	var said struct {
		Kind   string `json:"kind"`
		Groups []struct {
			Name string `json:"name"`
		} `json:"groups"`
	}
	if asked := a.Call(ctx, http.MethodGet, "/apis", nil, &said); asked != nil {
		return false, asked
	}
	for _, g := range said.Groups {
		if g.Name == group {
			return false, err
		}
	}
	return said.Kind == "APIGroupList", err
}

// object returns the object with a name. ErrNone: there is none, or no agent-sandbox.
func (a *api) object(ctx context.Context, name string) (o object, err error) {
	err = a.Call(ctx, http.MethodGet, a.objects(name), nil, &o)
	absent, err := a.absent(ctx, agentsGroup, err)
	switch {
	case absent || missing(err, objectKinds, name):
		err = hosted.ErrNone
	case err == nil && (o.Meta.Name != name || o.Meta.UID == ""):
		err = a.ProtocolError("the API server answers for another object")
	}
	return o, err
}

// suspendedMode is the operatingMode with which the controller ends the pod of an
// object and makes none. Only volumes of the object would outlive that, and those of
// Atoll have none.
const suspendedMode = "Suspended"

// resting returns the sandbox of an object that is suspended, or ErrNone if the
// object is not. Such a sandbox has no pod and is not gone, because its object is
// there on purpose: somebody suspended it, and decides whether it goes on or ends.
func (a *api) resting(ctx context.Context, at sandboxRef) (hosted.Sandbox, error) {
	if at.object == "" {
		return hosted.Sandbox{}, hosted.ErrNone
	}
	o, err := a.object(ctx, at.name)
	if err == nil && at.claim != "" { // it has the labels
		var c claim
		if c, err = a.claimed(ctx, at.claim); c.Meta.UID != at.claimUID {
			err = cmp.Or(err, hosted.ErrNone)
		}
		o.Meta.Labels, o.Meta.Annotations = c.Meta.Labels, c.Meta.Annotations
	}
	switch {
	case err == nil && o.Meta.UID == at.object && o.Spec.Mode == suspendedMode:
		return o.describe(), nil
	case err == nil || unmade(err):
		err = hosted.ErrNone
	}
	return hosted.Sandbox{}, err
}

// describe converts a suspended object. Its ID has no pod.
func (o *object) describe() hosted.Sandbox {
	p := pod{Meta: o.Meta}
	b := p.describe()
	b.ID = o.Meta.Name + "//" + o.Meta.UID
	b.Status, b.State, b.Removable = suspendedMode, sandbox.Lost, true
	b.Why = "somebody has suspended its Sandbox " + o.Meta.Name + ", which ended its pod, and its files with it"
	return b
}

// suspended lists the sandboxes whose objects are suspended. there are the objects
// with a pod. Objects that were claimed do not have our labels: records name them.
func (a *api) suspended(ctx context.Context, selector string, id sandbox.ID, there map[string]bool) (all []hosted.Sandbox, err error) {
	objects, err := listed[object](ctx, a, a.objects(""), "SandboxList", selector)
	if err != nil {
		absent, err := a.absent(ctx, agentsGroup, err)
		if absent || unmade(err) {
			err = nil
		}
		return nil, err
	}
	for i := range objects {
		if o := &objects[i]; o.Spec.Mode == suspendedMode && !there[o.Meta.UID] {
			b := o.describe()
			if r, _ := a.sandboxes.Get(string(b.Sandbox)); split(r.ServiceID).object == o.Meta.UID {
				b.ID = r.ServiceID
			}
			all = append(all, b)
		}
	}
	for _, name := range a.sandboxes.IDs() {
		r, _ := a.sandboxes.Get(name)
		at := split(r.ServiceID)
		if at.claim == "" || there[at.object] || id != "" && name != string(id) {
			continue
		}
		b, err := a.resting(ctx, at)
		switch {
		case err == nil:
			b.ID, b.Sandbox = r.ServiceID, sandbox.ID(name)
			all = append(all, b)
		case err != hosted.ErrNone:
			return nil, err
		}
	}
	return all, nil
}

// order makes an object and waits until its controller has made the pod. Its name
// is the same in each attempt, so none makes a second one.
func (a *api) order(ctx context.Context, want *pod) (made pod, err error) {
	name, try := want.Meta.Name, want.Meta.Labels[labelTry]
	err = a.Call(ctx, http.MethodPost, a.objects(""), newObject(want), new(object))
	if conflict := sandbox.CodeOf(err) == sandbox.CodeConflict; hosted.Refused(err) && !conflict {
		return pod{}, explain(err, name)
	}
	o, err := hosted.Search(ctx, &a.Client, err, func() (object, error) { return a.object(ctx, name) })
	if err == nil && o.Meta.Labels[labelTry] != try {
		err = taken(name)
	}
	if err != nil {
		return pod{}, err
	}
	uid := o.Meta.UID
	err = hosted.Poll(ctx, func() (bool, error) {
		if made, err = a.pod(ctx, name); err != hosted.ErrNone {
			if err == nil && made.Meta.controller() != uid {
				err = taken(name)
			}
			return err == nil, err
		}
		if o, err = a.object(ctx, name); err == nil && o.Meta.UID == uid {
			return false, o.Status.refused(name)
		}
		if err == nil || err == hosted.ErrNone {
			err = a.ProtocolError("somebody removed the new object")
		}
		return false, err
	}, func() error {
		return a.stalls("has not made the pod", "sandbox", name, o.Status)
	})
	return made, err
}

// stalls returns the error of a controller that does nothing about a resource, with
// what the resource says of itself.
func (a *api) stalls(what, kind, name string, s objectStatus) error {
	for _, c := range s.Conditions {
		if c.Type == "Ready" && c.Status == "False" {
			what += "; it says " + a.Clip(cause{c.Reason, c.Message}.String())
		}
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "kubernetes.create", Subject: name, Message: "the controller of agent-sandbox " + what,
		Hint: "see kubectl describe " + kind + " --namespace " + a.namespace + ", and whether the controller runs",
	}
}

func taken(name string) error {
	return &sandbox.Error{
		Code: sandbox.CodeAlreadyExists, Op: "kubernetes.create", Subject: name, Message: "another pod has this name", Hint: "see kubectl describe pod " + name,
	}
}

// refused returns why the controller cannot make the pod, if it says so. name is
// that of the object.
func (s *objectStatus) refused(name string) error {
	for _, c := range s.Conditions {
		if c.Type != "Ready" || c.Status != "False" {
			continue
		}
		e := &sandbox.Error{Op: "kubernetes.create", Subject: name, Message: "the controller of agent-sandbox says " + cause{c.Reason, c.Message}.String()}
		switch c.Reason {
		case "ReconcilerError":
			if err := admission(strings.TrimPrefix(c.Message, "Error seen: "), name); err != nil {
				return err
			}
			continue // it tries again
		case "WarmPoolNotFound", "TemplateNotFound":
			e.Code, e.Hint = sandbox.CodeNotFound, "make it, or unset "+poolEnv
		case "SandboxSuspended", "SandboxExpired", "ClaimExpired", "PodFailed", "PodSucceeded":
			e.Code, e.Hint = sandbox.CodeUnavailable, "see kubectl describe sandbox"
		default:
			continue
		}
		return e
	}
	return nil
}

// discard removes what made the pod of a sandbox, and would make another one: the
// claim, if there is one, and the object.
func (a *api) discard(ctx context.Context, b sandboxRef) error {
	if b.claim != "" {
		if err := a.remove(ctx, a.path(extensions, claims, b.claim), claimKinds, b.claim, b.claimUID); err != nil {
			return err
		}
	}
	if b.object == "" {
		return nil
	}
	return a.remove(ctx, a.objects(b.name), objectKinds, b.name, b.object)
}

// remove removes the resource with a name and a UID, and waits until it is gone.
func (a *api) remove(ctx context.Context, path, kinds, name, uid string) error {
	return hosted.Poll(ctx, func() (bool, error) {
		err := a.Call(ctx, http.MethodDelete, path, map[string]any{"preconditions": map[string]string{"uid": uid}, "propagationPolicy": "Background"}, nil)
		if err != nil && !missing(err, kinds, name) && sandbox.CodeOf(err) != sandbox.CodeConflict {
			return false, err
		}
		var now struct {
			Meta meta `json:"metadata"`
		}
		err = a.Call(ctx, http.MethodGet, path, nil, &now)
		switch {
		case missing(err, kinds, name):
			return true, nil
		case err == nil && (now.Meta.Name != name || now.Meta.UID == ""):
			err = a.ProtocolError("the API server answers for another object")
		}
		return err == nil && now.Meta.UID != uid, err
	}, func() error {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: name, Message: "the cluster does not remove the object",
			Hint: "see kubectl get " + kinds + " --output yaml --namespace " + a.namespace + " " + name,
		}
	})
}

// leftover removes the object of a sandbox that got no pod, and its claim.
func (a *api) leftover(ctx context.Context, name string, id sandbox.ID) error {
	if a.pool != "" {
		c, err := a.claimed(ctx, name)
		if err == nil && c.Meta.Labels[labelID] == string(id) {
			err = a.discard(ctx, sandboxRef{claim: name, claimUID: c.Meta.UID})
		}
		if err != nil && !unmade(err) {
			return err
		}
	}
	o, err := a.object(ctx, name)
	switch {
	case err == nil && o.Meta.Labels[labelID] == string(id):
		return a.discard(ctx, sandboxRef{name: name, object: o.Meta.UID})
	case err == nil || unmade(err):
		return nil
	}
	return err
}

// unmade reports that an error says that none can have been made.
func unmade(err error) bool {
	r := rest.RefusalOf(err)
	return err == hosted.ErrNone || r.Ours && (r.Status == http.StatusNotFound || r.Status == http.StatusForbidden)
}

// rescope sets the scope of an object. Its controller copies labels to the pod,
// but for one that was claimed, it restores those of the template: the claim has
// the label.
func (a *api) rescope(ctx context.Context, b sandboxRef, scope string) error {
	labels := map[string]string{labelScope: scope}
	if b.claim != "" {
		return a.merge(ctx, a.path(extensions, claims, b.claim), map[string]any{"metadata": map[string]any{"uid": b.claimUID, "labels": labels}}, new(claim))
	}
	return a.merge(ctx, a.objects(b.name), map[string]any{
		"metadata": map[string]any{"uid": b.object, "labels": labels}, "spec": map[string]any{"podTemplate": map[string]any{"metadata": map[string]any{"labels": labels}}},
	}, new(object))
}

// merge changes a resource.
func (a *api) merge(ctx context.Context, path string, change, now any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return a.Signed(ctx, func() error {
		res, err := a.Send(ctx, http.MethodPatch, path, http.Header{"Content-Type": {"application/merge-patch+json"}}, bytes.NewReader(text))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return json.NewDecoder(io.LimitReader(res.Body, maxConfig)).Decode(now)
	})
}
