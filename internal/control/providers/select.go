package providers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/sandbox"
)

// Select returns the provider of a new sandbox: the one that its Spec names, else
// the default. If the default isolates less than the Spec demands, it is another
// one that meets the Spec, and chosen says why. A provider that the Spec names is
// never replaced. Callers who do not own the machine only get shared providers,
// because some do not isolate and others cost money.
//
// If there are nodes, a sandbox without a provider gets one of them.
func (s *Service) Select(ctx context.Context, who key.Principal, spec *sandbox.Spec) (be *Backend, chosen string, err error) {
	if spec.Provider == "" && s.HasNodes() {
		name, why, err := s.Place(spec)
		if err == nil {
			be, err = s.Backend(ctx, name)
		}
		return be, "made by " + name + ": " + why, err
	}
	if err := core.FirstError(s.Permit(ctx, who, spec.Provider), s.accepts(spec.Provider)); err != nil {
		return nil, "", err
	}
	if be, err = s.Backend(ctx, spec.Provider); err != nil || spec.Isolation == "" {
		return be, "", err
	}
	gives := be.Isolation(ctx)
	if weak := plan.Isolated(be.Name, gives, spec.Isolation); weak == nil || spec.Provider != "" {
		return be, "", weak
	}
	choice, all := s.stronger(ctx, who, spec)
	if choice.Provider == "" {
		return nil, "", noneMeets(choice, all, spec.Isolation)
	}
	chosen = fmt.Sprintf("made by %s: the default provider %s gives %s, and isolation %s is demanded", choice.Provider, be.Name, gives.Known(), spec.Isolation)
	be, err = s.Backend(ctx, choice.Provider)
	return be, chosen, err
}

// KeepHere names the default provider in a Spec without one, if there are nodes:
// what the sandbox is made from is on this machine only.
func (s *Service) KeepHere(spec *sandbox.Spec) {
	if spec.Provider == "" && s.HasNodes() {
		spec.Provider = s.cfg.Default.Name
	}
}

// Lends reports whether nodes can get an image of this machine for a tenant.
func (s *Service) Lends(ctx context.Context, tenant, image string) bool {
	return s.HasNodes() && s.cfg.Nodes.Lends(ctx, tenant, image)
}

// stronger chooses among the providers of this daemon that the caller may use.
// The machines of users are not among them: they are used only by name.
func (s *Service) stronger(ctx context.Context, who key.Principal, spec *sandbox.Spec) (catalog.Choice, []catalog.Provider) {
	all := make([]catalog.Provider, 0, len(s.cfg.Known))
	for _, known := range s.cfg.Known {
		if s.Permit(ctx, who, known.Name) == nil {
			all = append(all, s.describe(ctx, known))
		}
	}
	able := catalog.Describe(all)[:len(all)]
	for i := range able {
		if err := s.CheckImage(ctx, able[i].Name, spec.Image); able[i].Available && err != nil {
			able[i].Available, able[i].Problem = false, err.Error()
		}
	}
	needs := catalog.NeedsOf(spec)
	needs.Images = false // each has checked the exact image
	return catalog.ChooseFrom(needs, able), able
}

// noneMeets is the refusal when no provider is strong enough and can be used. It
// says what the available ones give, and what the strong ones lack.
func noneMeets(choice catalog.Choice, all []catalog.Provider, demand sandbox.Isolation) error {
	var each []string
	for _, c := range choice.Candidates {
		p := all[slices.IndexFunc(all, func(p catalog.Provider) bool { return p.Name == c.Provider })]
		switch gives := p.Descriptor.Isolation; {
		case gives.Meets(demand):
			each = append(each, c.Provider+": "+strings.Join(c.Reasons, ", "))
		case p.Available:
			each = append(each, c.Provider+" gives "+gives.Known())
		}
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: "isolation",
		Message: fmt.Sprintf("no provider that you may use gives isolation %s here: %s", demand, strings.Join(each, "; ")),
		Hint:    "demand less, or see what each one lacks with: atoll provider choose --isolation " + string(demand),
	}
}
