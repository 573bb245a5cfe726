package providers

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/sandbox"
)

// HasNodes reports whether sandboxes are made on nodes.
func (s *Service) HasNodes() bool { return s.cfg.Nodes != nil && s.cfg.Nodes.Any() }

// node returns the provider of a node.
func (s *Service) node(name string) (p catalog.Provider, ok bool) {
	if s.cfg.Nodes == nil {
		return p, false
	}
	return s.cfg.Nodes.Find(name)
}

// OnNode reports whether a provider is that of a node. What is stored there is
// lost with the node.
func (s *Service) OnNode(name string) bool {
	_, ok := s.node(name)
	return ok
}

// accepts returns an error for a node that gets no new sandboxes.
func (s *Service) accepts(name string) error {
	n, ok := s.node(name)
	if !ok || n.Problem == "" {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "node.place", Subject: name, Message: "the node gets no new sandboxes: " + n.Problem, Hint: "leave the provider out, or see: atoll node ls",
	}
}

// ReloadNodes reads what was decided about the nodes.
func (s *Service) ReloadNodes(ctx context.Context) error { return s.cfg.Nodes.Reload(ctx) }

// Accepts reports whether a provider takes new sandboxes, as far as is known
// without asking it.
func (s *Service) Accepts(name string) bool { return s.accepts(name) == nil }

// Place chooses a node for a sandbox, and says for what reasons.
func (s *Service) Place(spec *sandbox.Spec) (provider, why string, err error) {
	memory := cmp.Or(spec.Resources.Memory, s.cfg.Defaults.Memory)
	if provider, why = s.cfg.Nodes.Choose(spec.Image, memory, spec.Isolation); provider != "" {
		return provider, why, nil
	}
	var all []string
	for _, c := range catalog.Choose(catalog.Needs{Isolation: spec.Isolation}, s.cfg.Nodes.Candidates(spec.Image, memory)).Candidates {
		all = append(all, c.Provider+": "+strings.Join(c.Reasons, "; "))
	}
	refusal := &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "node.place", Subject: "nodes", Message: "no node takes a sandbox: " + strings.Join(all, ", "), Hint: "see: atoll node ls",
	}
	if slices.ContainsFunc(s.cfg.Nodes.Known(), func(n catalog.Provider) bool { return n.Problem == "" }) { // it is too weak
		refusal.Code, refusal.Subject = sandbox.CodeUnsupported, "isolation"
		refusal.Hint = "demand less, or see what each one gives with: atoll provider choose --isolation " + string(spec.Isolation)
	}
	return "", "", refusal
}
