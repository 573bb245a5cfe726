package daemon

import (
	"context"
	"errors"
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

func shownPolicies(s plane.PolicyState) api.Policies {
	out := api.Policies{Source: s.Source, Digest: s.Digest, Loaded: s.Loaded, Problem: s.Problem, Policies: []api.Policy{}}
	for _, p := range s.Policies {
		one := api.Policy{
			Name: p.Name, Description: p.Description, Tenants: p.Tenants, Labels: p.Labels, CPUs: p.CPUs, Memory: p.Memory, Disk: p.Disk,
			PIDs: p.PIDs, Images: p.Images, Mounts: p.Mounts, Network: p.Network, Egress: p.Egress, Secrets: p.Secrets,
			OnUnenforceable: string(p.OnUnenforceable), Redact: p.Redact, File: p.File, Lines: p.Lines,
		}
		if p.Lifetime != nil {
			ms := p.Lifetime.Milliseconds()
			one.LifetimeMS = &ms
		}
		for _, s := range p.Signed {
			one.SignedImages = append(one.SignedImages, api.SignedImage{Image: s.Image, SignedBy: s.By})
		}
		if p.SecretModes != nil {
			one.SecretModes = []string{}
		}
		for _, m := range p.SecretModes {
			one.SecretModes = append(one.SecretModes, string(m))
		}
		out.Policies = append(out.Policies, one)
	}
	return out
}

func (s service) Policies(ctx context.Context) (api.Policies, error) {
	p, err := s.Plane.GetPolicies(ctx)
	return shownPolicies(p), err
}

func (s service) ReloadPolicies(ctx context.Context) (api.Policies, error) {
	p, err := s.Plane.ReloadPolicies(ctx)
	return shownPolicies(p), err
}

func (s service) ExplainPolicies(ctx context.Context, req api.CreateRequest) (api.PolicyAnswer, error) {
	a, err := s.Plane.ExplainPolicies(ctx, req.Spec)
	out := api.PolicyAnswer{
		Allow: a.Denied == nil, Limits: a.Caps.Resources, LifetimeMS: a.Caps.Lifetime.Milliseconds(),
		Findings: []api.PolicyFinding{}, Ceilings: []api.PolicyCeiling{},
	}
	if denied := new(sandbox.Error); errors.As(a.Denied, &denied) {
		out.Message, out.Rule = denied.Error(), denied.Rule
	}
	for _, f := range a.Findings {
		out.Findings = append(out.Findings, api.PolicyFinding{Rule: f.Rule, File: f.File, Line: f.Line, OK: f.OK, Asked: f.Asked, Limit: f.Limit})
	}
	for _, c := range a.Ceilings {
		out.Ceilings = append(out.Ceilings, api.PolicyCeiling{Policy: c.Name, Profile: c.Profile})
	}
	return out, err
}
