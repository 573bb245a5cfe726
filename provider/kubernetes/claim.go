package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// The resources of agent-sandbox for warm pools, as paths and as errors name them.
// See its extensions/api/v1beta1.
const (
	extensions      = "extensions.agents.x-k8s.io/v1beta1"
	extensionsGroup = "extensions.agents.x-k8s.io"
	claims          = "sandboxclaims"
	claimKinds      = "sandboxclaims.extensions.agents.x-k8s.io"
	claimKind       = "SandboxClaim"
	pools           = "sandboxwarmpools"
	poolKinds       = "sandboxwarmpools.extensions.agents.x-k8s.io"
	templates       = "sandboxtemplates"
	templateKinds   = "sandboxtemplates.extensions.agents.x-k8s.io"
)

// claim takes a sandbox from a warm pool.
type claim struct {
	API    string      `json:"apiVersion,omitempty"`
	Kind   string      `json:"kind,omitempty"`
	Meta   meta        `json:"metadata"`
	Spec   claimSpec   `json:"spec"`
	Status claimStatus `json:"status,omitzero"`
}

type claimSpec struct {
	Pool struct {
		Name string `json:"name"`
	} `json:"warmPoolRef"`
	Lifecycle *lifecycle `json:"lifecycle,omitempty"`
}

type lifecycle struct {
	Ends   time.Time `json:"shutdownTime"`
	Policy string    `json:"shutdownPolicy"`
}

type claimStatus struct {
	objectStatus
	Sandbox struct {
		Name string `json:"name"`
	} `json:"sandbox"`
}

// newClaim returns the claim for a pod.
func newClaim(p *pod, pool string) *claim {
	c := &claim{API: extensions, Kind: claimKind, Meta: p.Meta}
	c.Spec.Pool.Name = pool
	if ends := p.ends(); ends != nil {
		c.Spec.Lifecycle = &lifecycle{Ends: *ends, Policy: "Delete"}
	}
	return c
}

// warmPool is a SandboxWarmPool.
type warmPool struct {
	Meta meta `json:"metadata"`
	Spec struct {
		Template struct {
			Name string `json:"name"`
		} `json:"sandboxTemplateRef"`
	} `json:"spec"`
	Status struct {
		Ready int `json:"readyReplicas"`
	} `json:"status"`
}

// template is a SandboxTemplate.
type template struct {
	Meta meta `json:"metadata"`
	Spec struct {
		Template struct {
			Meta templateMeta `json:"metadata"`
			Spec podSpec      `json:"spec"`
		} `json:"podTemplate"`
		Policy *struct {
			Ingress []any `json:"ingress"`
			Egress  []any `json:"egress"`
		} `json:"networkPolicy"`
		Managed string `json:"networkPolicyManagement"`
	} `json:"spec"`
}

// stock returns a pool and its template.
func (a *api) stock(ctx context.Context, name string) (w warmPool, t template, err error) {
	absent := func(err error, kinds, name, what string) error {
		if missing(err, kinds, name) {
			return &sandbox.Error{
				Code: sandbox.CodeNotFound, Op: "kubernetes.create", Subject: name, Message: "the namespace " + a.namespace + " has no such " + what,
				Hint: "make it, or unset " + poolEnv,
			}
		}
		return err
	}
	if err = a.Call(ctx, http.MethodGet, a.path(extensions, pools, name), nil, &w); err != nil {
		return w, t, absent(err, poolKinds, name, "SandboxWarmPool")
	}
	if from := w.Spec.Template.Name; w.Meta.Name != name || !usablePath(from) {
		return w, t, a.ProtocolError("the API server answers for another pool")
	}
	err = a.Call(ctx, http.MethodGet, a.path(extensions, templates, w.Spec.Template.Name), nil, &t)
	return w, t, absent(err, templateKinds, w.Spec.Template.Name, "SandboxTemplate")
}

// usablePath reports whether a name of an object can be a part of a path.
func usablePath(name string) bool { return name != "" && name != "." && name != ".." }

// lacks returns how pods of the template differ from a wanted one, or "".
func (t *template) lacks(want *pod, enforced bool) string {
	p := &pod{Spec: t.Spec.Template.Spec}
	now, asked := p.main(), want.main()
	switch {
	case now.Name == "":
		return "it has no container " + mainName
	case len(p.Spec.Containers) > 1:
		return "it has more containers than " + mainName
	case now.Image != asked.Image:
		return "its image is " + now.Image
	case p.Spec.Runtime != want.Spec.Runtime:
		return "its RuntimeClass is " + strconv.Quote(p.Spec.Runtime)
	case p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC || p.Spec.Token != nil && *p.Spec.Token || !reflect.DeepEqual(now.Security, asked.Security):
		return "its pods may do more, or less"
	case p.Spec.Deadline > 0:
		return "its pods end by themselves"
	case want.Spec.Hostname != "":
		return "its pods have other host names"
	case t.Spec.Managed != "Unmanaged" && (!enforced || t.Spec.Policy == nil || len(t.Spec.Policy.Ingress)+len(t.Spec.Policy.Egress) > 0):
		return "it has a network policy of its own" // policies add up
	}
	return sameLimits(now.Resources["limits"], asked.Resources["limits"])
}

// sameLimits returns how limits differ, or "".
func sameLimits(now, asked map[string]string) string {
	for name, quantity := range asked {
		if !sameQuantity(now[name], quantity) {
			return fmt.Sprintf("its limit of %s is %q, not %s", name, now[name], quantity)
		}
	}
	for name, quantity := range now {
		if asked[name] == "" {
			return fmt.Sprintf("it limits %s to %s", name, quantity)
		}
	}
	return ""
}

// claimed returns the claim with a name.
func (a *api) claimed(ctx context.Context, name string) (c claim, err error) {
	err = a.Call(ctx, http.MethodGet, a.path(extensions, claims, name), nil, &c)
	switch {
	case missing(err, claimKinds, name):
		err = hosted.ErrNone
	case err == nil && (c.Meta.Name != name || c.Meta.UID == ""):
		err = a.ProtocolError("the API server answers for another claim")
	}
	return c, err
}

// take claims a pod of a warm pool and makes it that of a sandbox. The name of the
// claim is the same in each attempt, so none claims a second one.
func (a *api) take(ctx context.Context, want *pod, pool string) (made pod, err error) {
	name, try := want.Meta.Name, want.Meta.Labels[labelTry]
	err = a.Call(ctx, http.MethodPost, a.path(extensions, claims, ""), newClaim(want, pool), new(claim))
	if conflict := sandbox.CodeOf(err) == sandbox.CodeConflict; hosted.Refused(err) && !conflict {
		return pod{}, explain(err, name)
	}
	c, err := hosted.Search(ctx, &a.Client, err, func() (claim, error) { return a.claimed(ctx, name) })
	if err == nil && c.Meta.Labels[labelTry] != try {
		err = taken(name)
	}
	if err != nil {
		return pod{}, err
	}
	uid := c.Meta.UID
	err = hosted.Poll(ctx, func() (bool, error) {
		if c, err = a.claimed(ctx, name); err != nil || c.Meta.UID != uid {
			if err == nil || err == hosted.ErrNone {
				err = a.ProtocolError("somebody removed the new claim")
			}
			return false, err
		}
		from := c.Status.Sandbox.Name
		if from == "" {
			return false, c.Status.refused(name)
		}
		o, err := a.object(ctx, from)
		if err == hosted.ErrNone {
			return false, nil // it gets another one
		}
		if err != nil || !o.Meta.of(claimKind, extensionsGroup, name, uid) {
			return false, err
		}
		made, err = a.pod(ctx, from)
		if err == hosted.ErrNone || err == nil && made.Meta.controller() != o.Meta.UID {
			return false, o.Status.refused(name)
		}
		return err == nil, err
	}, func() error {
		return a.stalls("has not given a pod", "sandboxclaim", name, c.Status.objectStatus)
	})
	if err != nil {
		return pod{}, err
	}
	notes := map[string]string{noteClaim: name + "/" + uid, noteLabels: want.Meta.Annotations[noteLabels]}
	change := map[string]any{"metadata": map[string]any{"uid": made.Meta.UID, "labels": want.Meta.Labels, "annotations": notes}}
	return made, a.merge(ctx, a.pods(made.Meta.Name), change, &made)
}

// of reports whether an object of a kind controls this one.
func (m meta) of(kind, group, name, uid string) bool {
	for _, o := range m.Owners {
		if o.Controller && o.Kind == kind && groupOf(o.API) == group && o.Name == name && o.UID == uid {
			return true
		}
	}
	return false
}
