package kubernetes

import (
	"bytes"
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
	if p.Spec.Deadline > 0 {
		ends := time.Now().Add(time.Duration(p.Spec.Deadline) * time.Second).UTC().Truncate(time.Second)
		o.Spec.Ends, o.Spec.Policy = &ends, "Delete"
	}
	return o
}

// controller returns the UID of the object to which a pod belongs, or "".
func (m meta) controller() string {
	for _, o := range m.Owners {
		if group, _, _ := strings.Cut(o.API, "/"); o.Controller && o.Kind == objectKind && group == agentsGroup && o.Name == m.Name {
			return o.UID
		}
	}
	return ""
}

func (a *api) objects(name string) string { return a.path(agents, objects, name) }

// controlled reports whether new pods are made by objects: if the options say so,
// or if the cluster has agent-sandbox and the credential may list its objects.
func (p *Provider) controlled(ctx context.Context) (bool, error) {
	if p.opts.Kind == podKind {
		return false, nil
	}
	err := p.api.Call(ctx, http.MethodGet, p.api.objects("")+"?limit=1", nil, new(any))
	r := rest.RefusalOf(err)
	switch {
	case err == nil:
		return true, nil
	case r.Ours && r.Status == http.StatusNotFound && p.opts.Kind == objectKind:
		return false, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "kubernetes.create", Subject: agents, Message: "the cluster has no agent-sandbox", Hint: "install it, or unset " + kindEnv,
		}
	case r.Ours && r.Status == http.StatusForbidden && p.opts.Kind == objectKind:
		return false, &sandbox.Error{
			Code: sandbox.CodeDenied, Op: "kubernetes.create", Subject: agents, Message: "the credential may not list objects of agent-sandbox in namespace " + p.api.namespace,
			Hint: "grant deploy/kubernetes/provider-rbac.yaml, or unset " + kindEnv, Cause: err,
		}
	case r.Ours && (r.Status == http.StatusNotFound || r.Status == http.StatusForbidden) && p.opts.Kind == "":
		return false, nil
	}
	return false, err
}

// object returns the object with a name.
func (a *api) object(ctx context.Context, name string) (o object, err error) {
	err = a.Call(ctx, http.MethodGet, a.objects(name), nil, &o)
	switch {
	case missing(err, objectKinds, name):
		err = hosted.ErrNone
	case err == nil && (o.Meta.Name != name || o.Meta.UID == ""):
		err = a.Strange("the API server answers for another object")
	}
	return o, err
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
			return false, o.refused()
		}
		if err == nil || err == hosted.ErrNone {
			err = a.Strange("somebody removed the new object")
		}
		return false, err
	}, func() error {
		return a.Strange("the controller of agent-sandbox has not made the pod: see kubectl describe sandbox " + name)
	})
	return made, err
}

func taken(name string) error {
	return &sandbox.Error{
		Code: sandbox.CodeAlreadyExists, Op: "kubernetes.create", Subject: name, Message: "another pod has this name", Hint: "see kubectl describe pod " + name,
	}
}

// refused returns why the controller cannot make the pod, if it says so.
func (o *object) refused() error {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" && c.Status == "False" && c.Reason == "ReconcilerError" {
			if err := admission(c.Message, o.Meta.Name); err != nil {
				return err
			}
		}
	}
	return nil // it tries again
}

// discard removes the object with a name and a UID, and waits until it is gone.
func (a *api) discard(ctx context.Context, name, uid string) error {
	return hosted.Poll(ctx, func() (bool, error) {
		err := a.Call(ctx, http.MethodDelete, a.objects(name), map[string]any{"preconditions": map[string]string{"uid": uid}, "propagationPolicy": "Background"}, nil)
		if err != nil && !missing(err, objectKinds, name) && sandbox.CodeOf(err) != sandbox.CodeConflict {
			return false, err
		}
		o, err := a.object(ctx, name)
		if err == hosted.ErrNone || err == nil && o.Meta.UID != uid {
			return true, nil
		}
		return false, err
	}, func() error {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: name, Message: "the cluster does not remove the object", Hint: "see kubectl get sandbox --output yaml --namespace " + a.namespace + " " + name,
		}
	})
}

// leftover removes the object of a sandbox that got no pod.
func (a *api) leftover(ctx context.Context, name string, id sandbox.ID) error {
	o, err := a.object(ctx, name)
	r := rest.RefusalOf(err)
	switch {
	case err == nil && o.Meta.Labels[labelID] == string(id):
		return a.discard(ctx, name, o.Meta.UID)
	case err == nil || err == hosted.ErrNone || r.Ours && (r.Status == http.StatusNotFound || r.Status == http.StatusForbidden): // none can have been made
		return nil
	}
	return err
}

// claimObject sets the scope of an object. Its controller copies labels to the
// pod.
func (a *api) claimObject(ctx context.Context, name, uid, scope string) error {
	labels := map[string]string{labelScope: scope}
	return a.merge(ctx, a.objects(name), map[string]any{
		"metadata": map[string]any{"uid": uid, "labels": labels}, "spec": map[string]any{"podTemplate": map[string]any{"metadata": map[string]any{"labels": labels}}},
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
