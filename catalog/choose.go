package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// NeedsOf returns the needs of a Spec. A caller adds needs that a Spec cannot
// express.
func NeedsOf(s *sandbox.Spec) Needs {
	n := Needs{
		Images: s.Image != "" && s.Image != "host", Mounts: len(s.Mounts) > 0, User: s.User != "", Isolation: s.Isolation,
	}
	switch {
	case s.Network.Inline != nil, s.Network.Profile != "":
		n.Egress = enforce.Host
	case len(s.Network.Egress) > 0:
		n.Egress = enforce.Host
	}
	for _, ref := range s.Secrets {
		if ref.Mode != sandbox.SecretEnv {
			n.Egress = enforce.Full
		}
	}
	return n
}

// Facts describe a provider of this daemon.
type Facts struct {
	Descriptor Descriptor
	Available  bool
	Why        string          // why it is unavailable
	Isolates   bool            // isolates the machine from code in the sandbox
	Shares     bool            // uses the machine's root file system
	Images     bool            // supports OCI images
	Mounts     bool            // can mount directories of this machine
	Holds      map[string]bool // enforced limits
	Denied     string          // why a policy forbids it; empty: allowed
	Default    bool            // the daemon's default
	Node       *Node           // nil: it is not that of a node
}

// Node describes a node for Choose.
type Node struct {
	Refused  string // why it gets no new sandboxes; empty: it does
	HasImage bool   // the image is stored there, or needs no download
	Free     int64  // memory in bytes
	Full     bool   // that is less than the sandbox asks for
}

// Choose orders providers, nodes and machines by their suitability, best first,
// and explains each. It is pure. The choice is the first that meets the needs.
// Nodes are before others: those with enough memory first, then those that have
// the image, then those with more free memory. Then the default provider is before
// others, then the cheaper price class, then the name.
func Choose(n Needs, facts []Facts) Choice {
	type judged struct {
		Facts
		why []string // it does not meet the needs
	}
	list := make([]judged, 0, len(facts))
	for _, f := range facts {
		list = append(list, judged{f, refusals(n, f)})
	}
	slices.SortFunc(list, func(a, b judged) int {
		return cmp.Or(cmp.Compare(order(len(a.why) > 0), order(len(b.why) > 0)), compare(&a.Facts, &b.Facts))
	})
	choice := Choice{Candidates: []Candidate{}}
	for _, f := range list {
		c := Candidate{Provider: f.Descriptor.Name, Reasons: f.why, Fits: len(f.why) == 0}
		if c.Fits {
			c.Reasons = f.Merits()
			if choice.Provider == "" {
				choice.Provider = c.Provider
			}
		}
		choice.Candidates = append(choice.Candidates, c)
	}
	return choice
}

// Best returns the one that Choose chooses, without an explanation of the others:
// there may be thousands of them. ok is false if none meets the needs.
func Best(n Needs, facts iter.Seq[Facts]) (best Facts, ok bool) {
	for f := range facts {
		if (!ok || compare(&f, &best) < 0) && len(refusals(n, f)) == 0 {
			best, ok = f, true
		}
	}
	return best, ok
}

// compare orders those that meet the needs, the better one first.
func compare(a, b *Facts) int {
	return cmp.Or(
		compareNodes(a.Node, b.Node),
		cmp.Compare(order(!a.Default), order(!b.Default)),
		cmp.Compare(priceRank(a.Descriptor.Price), priceRank(b.Descriptor.Price)),
		cmp.Compare(a.Descriptor.Name, b.Descriptor.Name),
	)
}

func compareNodes(a, b *Node) int {
	if a == nil || b == nil {
		return cmp.Compare(order(a == nil), order(b == nil))
	}
	return cmp.Or(
		cmp.Compare(order(a.Full), order(b.Full)),
		cmp.Compare(order(!a.HasImage), order(!b.HasImage)),
		cmp.Compare(b.Free, a.Free),
	)
}

func order(later bool) int {
	if later {
		return 1
	}
	return 0
}

func priceRank(p PriceClass) int {
	return slices.Index([]PriceClass{PriceFree, PriceUse, PricePlan}, p)
}

// refusals returns why a provider does not meet the needs.
func refusals(n Needs, f Facts) []string {
	d := f.Descriptor
	var why []string
	refuse := func(when bool, format string, args ...any) {
		if when {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	refuse(n.Provider != "" && n.Provider != d.Name, "the spec names %s", n.Provider)
	if f.Available && f.Node != nil {
		refuse(f.Node.Refused != "", "%s", f.Node.Refused)
	}
	refuse(!f.Available, "not available: %s", cmp.Or(f.Why, d.Driver.Reason, "unknown reason"))
	refuse(f.Denied != "", "policy: %s", f.Denied)
	refuse(d.Tier == TierNone, "cannot create sandboxes")
	refuse(n.Images && !f.Images, "does not support OCI images")
	refuse(n.Mounts && !f.Mounts, "cannot mount directories of this machine")
	refuse(n.User && !d.RunAs, "cannot run commands as another user")
	refuse(n.Egress != "" && d.Egress.Rank() < n.Egress.Rank(), "enforces egress at level %s, and %s is needed", d.Egress, n.Egress)
	refuse(n.Pause == sandbox.PauseMemory && d.Pause != sandbox.PauseMemory, "does not keep memory while paused")
	refuse(n.Pause == sandbox.PauseDisk && d.Pause == "", "cannot pause")
	refuse(n.Snapshot == SnapshotMemory && d.Snapshot.Kind != SnapshotMemory, "cannot take snapshots of memory")
	refuse(n.Snapshot != "" && d.Snapshot.Kind == SnapshotNone, "cannot take snapshots")
	refuse(n.Fork && !d.Fork, "cannot fork")
	refuse(n.Ports && d.Ports.Kind == PortNone, "exposes no ports")
	refuse(n.Desktop && !d.Desktop.Available, "has no desktop")
	refuse(n.Isolated && !f.Isolates, "does not isolate")
	refuse(!n.Isolation.Valid(), "%q is no isolation", n.Isolation)
	refuse(!d.Isolation.Meets(n.Isolation), "gives %s, and isolation %s is needed", d.Isolation.Known(), n.Isolation)
	refuse(n.OwnFiles && f.Shares, "has no root file system of its own: commands would use the machine's files")
	refuse(n.Price != "" && priceRank(d.Price) > priceRank(n.Price), "price class %s is above %s", d.Price, n.Price)
	for _, limit := range n.Limits {
		refuse(!f.Holds[limit], "does not enforce the %s limit", limit)
	}
	return why
}

// Merits returns the advantages of a provider that meets the needs.
func (f *Facts) Merits() []string {
	good := []string{}
	if f.Default {
		good = append(good, "the default")
	}
	if f.Isolates {
		good = append(good, "isolates")
	}
	if f.Descriptor.Isolation != "" {
		good = append(good, "isolation "+string(f.Descriptor.Isolation))
	}
	if f.Descriptor.Price != "" {
		good = append(good, "price class "+string(f.Descriptor.Price))
	}
	if f.Node == nil {
		return good
	}
	image := "has to fetch the image"
	if f.Node.HasImage {
		image = "has the image"
	}
	return append(good, image, fmt.Sprintf("%.1f GiB of memory free", float64(f.Node.Free)/(1<<30)))
}
