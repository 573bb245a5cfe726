package daemon

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

// policyPeriod is how often the files of policies are looked at.
const policyPeriod = 2 * time.Second

// policies is where the policies come from.
func (d *Daemon) policies() plane.Policies {
	if d.opts.Policies == "" {
		return plane.Policies{}
	}
	return plane.Policies{Source: d.opts.Policies, Load: func() (*policyset.Set, error) { return policyset.Open(d.opts.Policies) }}
}

// Reload reads the policies anew. What is wrong with them is an error, and
// those that held before hold on.
func (d *Daemon) Reload(ctx context.Context) error { return d.plane.LoadPolicies(ctx) }

// watchPolicies looks whether the files of policies are others, until ctx ends.
func (d *Daemon) watchPolicies(ctx context.Context) {
	tick := time.NewTicker(policyPeriod)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := d.plane.LoadPolicies(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			d.opts.Logger.Error("the policies cannot be used; those that held before hold on", "error", err)
		}
		if said = ""; err != nil {
			said = err.Error()
		}
	}
}

func shownPolicies(s plane.PolicyState) sandbox.Policies {
	out := sandbox.Policies{Source: s.Source, Digest: s.Digest, Loaded: s.Loaded, Problem: s.Problem, Policies: []sandbox.Policy{}}
	for _, p := range s.Policies {
		one := sandbox.Policy{
			Name: p.Name, Description: p.Description, Tenants: p.Tenants, Labels: p.Labels, CPUs: p.CPUs, Memory: p.Memory, Disk: p.Disk,
			PIDs: p.PIDs, Lifetime: p.Lifetime, Images: p.Images, Mounts: p.Mounts, Network: p.Network, Egress: p.Egress, Secrets: p.Secrets,
			SecretModes: p.SecretModes, OnUnenforceable: string(p.OnUnenforceable), Redact: p.Redact, File: p.File, Lines: p.Lines,
		}
		for _, s := range p.Signed {
			one.SignedImages = append(one.SignedImages, sandbox.SignedImage{Image: s.Image, SignedBy: s.By})
		}
		out.Policies = append(out.Policies, one)
	}
	return out
}

func (s service) Policies(ctx context.Context) (sandbox.Policies, error) {
	p, err := s.Plane.GetPolicies(ctx)
	return shownPolicies(p), err
}

func (s service) ReloadPolicies(ctx context.Context) (sandbox.Policies, error) {
	p, err := s.Plane.ReloadPolicies(ctx)
	return shownPolicies(p), err
}

func (s service) ExplainPolicies(ctx context.Context, req api.CreateRequest) (sandbox.PolicyAnswer, error) {
	return s.Plane.ExplainPolicies(ctx, req.Spec)
}
