package control

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Labels that Atoll sets on sandboxes. Callers cannot use their prefix.
const (
	ReservedPrefix = "atoll."
	LabelName      = ReservedPrefix + "name"  // the sandbox's name
	LabelImage     = ReservedPrefix + "image" // the image
	LabelOwner     = ReservedPrefix + "owner" // the process that it must not outlive
	// LabelTenant is the tenant of a sandbox that a daemon created.
	LabelTenant = ReservedPrefix + "tenant"
)

// CreateRequest is a request to create a sandbox.
type CreateRequest struct {
	Spec     sandbox.Spec
	Pull     Pull           // when to pull the image; empty: when it is missing
	Platform string         // of the image, "os/arch[/variant]"; empty: this machine's
	Progress func(Progress) // called during a pull; may be nil
	Bound    bool           // the sandbox must not outlive this process
	Tenant   string         // the owner; empty without a daemon
	// Egress has details of the network rules that the Spec does not contain.
	Egress Egress
	// Hidden are environment variables that must not be recorded, because they are
	// secrets or placeholders. The provider gets them with Spec.Env, instead of
	// those of Spec.Secrets that it does not hold itself.
	Hidden map[string]string
	// Reserved means that the caller has made sure that the name is free, where
	// names are not managed by the provider.
	Reserved bool
	// Limits are the limits that the provider does not enforce, and why. Prepare
	// fills them in.
	Limits map[string]sandbox.Enforcement
	// FilesOnly makes Restore ignore the memory of a snapshot.
	FilesOnly bool

	prepared bool // the Spec is validated and complete
}

// spec returns the complete Spec for the provider, including hidden variables.
func (c *Control) spec(ctx context.Context, req *CreateRequest) (*sandbox.Spec, error) {
	if !req.prepared {
		spec, err := c.complete(ctx, req)
		if err != nil {
			return nil, err
		}
		req.Spec, req.prepared = *spec, true
	}
	spec := req.Spec
	if len(req.Hidden) > 0 {
		spec.Env = maps.Clone(spec.Env)
		if spec.Env == nil {
			spec.Env = map[string]string{}
		}
		maps.Copy(spec.Env, req.Hidden)
	}
	spec.Secrets = nil
	for _, ref := range req.Spec.Secrets {
		if driver.Holds(c.cfg.Provider, ref) {
			spec.Secrets = append(spec.Secrets, ref)
		}
	}
	spec.Labels, spec.Lifetime.Timeout = c.labels(&spec, req), spec.Lifetime.HardTimeout()
	return &spec, nil
}

// Prepare validates a request and returns it with all defaults filled in, as
// Create does: id, name, image, resources and others.
func (c *Control) Prepare(ctx context.Context, req CreateRequest) (CreateRequest, error) {
	spec, err := c.complete(ctx, &req)
	if err != nil {
		return req, c.wrap(Action{Op: ops.SandboxCreate}, err)
	}
	req.Spec, req.prepared = *spec, true
	return req, nil
}

// Create creates a sandbox. On an error, or if ctx ends first, nothing remains.
func (c *Control) Create(ctx context.Context, req CreateRequest) (*Sandbox, error) {
	var box *Sandbox
	chosen := req.Spec.Name != "" && !req.Reserved
	spec, err := c.spec(ctx, &req)
	if err != nil {
		return nil, c.wrap(Action{Op: ops.SandboxCreate}, err)
	}
	a := Action{Op: ops.SandboxCreate, Sandbox: spec.ID, Name: spec.Name, Subject: spec.Name}
	err = c.do(ctx, a, func(ctx context.Context) error {
		img, err := c.ensureImage(ctx, &req, spec)
		if err != nil {
			return err
		}
		inst, err := c.makeNamed(ctx, spec, chosen)
		if err != nil {
			return err
		}
		box = &Sandbox{c: c, inst: inst, name: spec.Name, image: img, limits: req.Limits}
		return nil
	})
	return box, err
}

// complete validates a request and returns its Spec with defaults filled in. It
// does not modify req.
func (c *Control) complete(ctx context.Context, req *CreateRequest) (*sandbox.Spec, error) {
	spec := req.Spec
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	for k := range spec.Labels {
		if strings.HasPrefix(k, ReservedPrefix) {
			return nil, invalid("", "labels", fmt.Sprintf("%q begins with %q, which Atoll keeps for itself", k, ReservedPrefix), "")
		}
	}
	switch req.Pull {
	case "", PullMissing, PullAlways, PullNever:
	default:
		return nil, invalid("", "pull", fmt.Sprintf("%q is not one of missing, always and never", req.Pull), "")
	}
	if err := c.CheckIsolation(ctx, spec.Isolation); err != nil {
		return nil, err
	}
	if err := c.checkNetwork(ctx, &spec, req); err != nil {
		return nil, err
	}
	if len(spec.Workspaces) > 0 && !c.cfg.Workspaces {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "workspace", Message: "workspaces need the daemon", Hint: "start it with: atoll up",
		}
	}
	if req.Tenant == "" && spec.Lifetime.HardTimeout() != spec.Lifetime.Timeout {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "lifetime", Message: "stopping or pausing a sandbox at its timeout needs the daemon", Hint: "start it with: atoll up",
		}
	}
	if spec.ID == "" {
		spec.ID = c.cfg.NewID()
	}
	if spec.Name == "" {
		spec.Name = string(spec.ID)
	}
	if spec.Image == "" {
		spec.Image = HostImage
	}
	if spec.Hostname == "" {
		spec.Hostname = spec.Name
	}
	if spec.Workdir != "" {
		spec.Workdir = path.Clean(spec.Workdir)
	} else if hasWorkspaceDir(&spec) {
		spec.Workdir = sandbox.WorkspaceDir
	}
	var err error
	if req.Limits, err = c.limit(ctx, &spec.Resources); err != nil {
		return nil, err
	}
	if spec.RequireLimits {
		if err := Required(req.Limits); err != nil {
			return nil, err
		}
	}
	spec.Env = maps.Clone(spec.Env)
	spec.Mounts = append([]sandbox.Mount(nil), spec.Mounts...)
	return &spec, nil
}

// CheckIsolation refuses a demand that the provider does not meet now.
func (c *Control) CheckIsolation(ctx context.Context, demand sandbox.Isolation) error {
	if demand == "" {
		return nil
	}
	facts, err := c.cfg.Facts(ctx)
	if err != nil || facts.Isolation.Meets(demand) {
		return err
	}
	return TooWeak(facts.Provider, facts.Isolation, demand)
}

// TooWeak is the refusal of a provider that isolates less than is demanded.
func TooWeak(provider string, gives, demand sandbox.Isolation) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: "isolation",
		Message: fmt.Sprintf("the provider %s gives %s, and %s is demanded", provider, gives.Known(), demand),
		Hint:    "see which ones give it with: atoll provider choose --isolation " + string(demand),
	}
}

// hasWorkspaceDir reports whether a workspace is mounted at its default path,
// in which case commands start there.
func hasWorkspaceDir(spec *sandbox.Spec) bool {
	return slices.ContainsFunc(spec.Workspaces, func(w sandbox.WorkspaceMount) bool {
		return w.Path == "" || path.Clean(w.Path) == sandbox.WorkspaceDir
	})
}

// checkNetwork refuses network rules that would not be enforced, and secrets
// that would not be available.
func (c *Control) checkNetwork(ctx context.Context, spec *sandbox.Spec, req *CreateRequest) (err error) {
	if spec.Network.Plain = nil; req.Tenant == "" && (spec.Network.Profile != "" || len(spec.Secrets) > 0 || spec.Redact) {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: "network", Message: "stored profiles and secrets need a daemon, and none is running",
			Hint: "start one with: atoll up",
		}
	}
	if local, ok := spec.Network.Local(); ok {
		if err := policy.Check(local); err != nil {
			return err
		}
	}
	gateway := slices.ContainsFunc(spec.Secrets, func(s sandbox.SecretRef) bool {
		return s.Mode != sandbox.SecretEnv && !driver.Holds(c.cfg.Provider, s)
	})
	if !spec.Network.Asked() && !gateway {
		return nil
	}
	facts, err := c.cfg.Facts(ctx)
	if err != nil || facts.Capabilities.Network {
		return err
	}
	if gateway {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "secrets",
			Message: "a secret in the mode gateway is inserted by Atoll's egress gateway, which sandboxes of the provider " + facts.Provider + " do not use",
			Hint:    "use the mode env, which shows the value to the sandbox, or choose a provider with a gateway; remote can use the other daemon's secrets that ATOLL_REMOTE_SECRETS names",
		}
	}
	if spec.Network.Plain, err = c.translate(spec.Network, req.Egress); err == nil && spec.Network.Plain == nil {
		if egress := spec.Network.Egress; egress != nil && len(egress) == 0 && facts.Isolates {
			spec.Network = sandbox.Network{} // on which every host is denied, too
			return nil
		}
		err = &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "network", Message: "the provider " + facts.Provider + " cannot give sandboxes a network",
			Hint: "leave it out: the sandbox then has no network",
		}
	}
	return err
}

// labels returns a sandbox's own labels together with Atoll's.
func (c *Control) labels(spec *sandbox.Spec, req *CreateRequest) map[string]string {
	labels := map[string]string{LabelName: spec.Name}
	if len(spec.Image) <= sandbox.MaxLabelLen {
		labels[LabelImage] = printable(spec.Image)
	}
	if req.Bound {
		labels[LabelOwner] = c.cfg.Owner.Token()
	}
	if req.Tenant != "" {
		labels[LabelTenant] = req.Tenant
	}
	maps.Copy(labels, spec.Labels)
	return labels
}

// ensureImage makes the image of spec available, and sets its digest in spec.
func (c *Control) ensureImage(ctx context.Context, req *CreateRequest, spec *sandbox.Spec) (ImageConfig, error) {
	if spec.Image == HostImage {
		return ImageConfig{Ref: HostImage}, nil
	}
	if own, ok := driver.As[driver.ImageChecker](c.cfg.Provider); ok {
		return ImageConfig{Ref: spec.Image}, own.CheckImage(spec.Image)
	}
	facts, err := c.cfg.Facts(ctx)
	if err != nil {
		return ImageConfig{}, err
	}
	facts.Capabilities.Images = facts.Capabilities.Images && c.cfg.Images != nil
	if err := driver.CheckImage(c.cfg.Provider, facts, spec.Image); err != nil {
		return ImageConfig{}, err
	}
	img, err := c.cfg.Images.Ensure(ctx, ImageRequest{
		Ref: spec.Image, Platform: req.Platform, Pull: req.Pull, Progress: req.Progress,
	})
	if err != nil {
		return ImageConfig{}, c.wrap(Action{Op: ops.ImageGet, Subject: spec.Image}, err)
	}
	if img.Ref != "" {
		spec.Image = img.Ref
	}
	return img, nil
}

// makeNamed creates the sandbox while no other one can take its name. A
// generated name is as unique as the id and needs no lock.
func (c *Control) makeNamed(ctx context.Context, spec *sandbox.Spec, chosen bool) (driver.Instance, error) {
	if !chosen {
		return c.cfg.Provider.Create(ctx, spec)
	}
	release, err := c.cfg.LockNames(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	for found, err := range c.cfg.Provider.List(ctx) {
		if err != nil {
			return nil, err
		}
		if found.State != sandbox.Gone && (nameOf(found) == spec.Name || string(found.ID) == spec.Name) {
			return nil, &sandbox.Error{
				Code: sandbox.CodeAlreadyExists, Subject: spec.Name, Message: "a sandbox with that name exists",
				Hint: "choose another name, or remove that one with: atoll rm -f " + spec.Name,
			}
		}
	}
	return c.cfg.Provider.Create(ctx, spec)
}
