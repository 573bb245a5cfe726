package catalog

import (
	"cmp"
	"slices"
	"strings"
)

// Describe adds descriptors to what is known about providers, and appends known
// systems without a driver.
func Describe(list []Provider) []Provider {
	known := Known()
	for i := range list {
		p := &list[i]
		permanent, isolation, egress := p.Descriptor.Permanent, p.Descriptor.Isolation, p.Descriptor.Egress // set by the driver
		at := slices.IndexFunc(known, func(d Descriptor) bool { return d.Name == p.Name })
		if machine, ok := MachineDescriptor(p.Name); ok {
			p.Descriptor = machine
		} else if at < 0 { // a provider that an embedding program brought
			p.Descriptor = base(p.Name, p.Summary, TierDev)
			p.Descriptor.Persistable = false
		} else {
			p.Descriptor = known[at]
			known = slices.Delete(known, at, at+1)
		}
		p.Descriptor.Permanent = p.Descriptor.Permanent || permanent
		p.Descriptor.Isolation = cmp.Or(isolation, p.Descriptor.Isolation)
		p.Descriptor.Egress = cmp.Or(egress, p.Descriptor.Egress)
		p.Descriptor.Driver = DriverSupport{Available: true}
		if len(p.Capabilities) > 0 {
			fit(&p.Descriptor, p.Capabilities)
		}
	}
	for _, d := range known {
		list = append(list, Provider{Name: d.Name, Summary: d.Summary, Capabilities: map[string]bool{}, Descriptor: d, Problem: d.Driver.Reason})
	}
	return list
}

// ofMachine and ofNode are the begins of the names of the providers of
// self-hosted machines and of nodes.
const (
	ofMachine = "selfhosted-"
	ofNode    = "node-"
)

// MachineDescriptor returns the descriptor of the provider of a self-hosted
// machine or of a node, and whether the name is that of one.
func MachineDescriptor(name string) (Descriptor, bool) {
	kind := "selfhosted"
	switch {
	case strings.HasPrefix(name, ofNode):
		kind = "remote"
	case !strings.HasPrefix(name, ofMachine):
		return Descriptor{}, false
	}
	d, ok := Find(kind)
	d.Name, d.Permanent = name, false // the driver says whether it is
	return d, ok
}

// fit changes a descriptor to what the driver supports here.
func fit(d *Descriptor, can map[string]bool) {
	if !can["pause"] {
		d.Pause, d.Lifetime.Suspend = "", false
	}
	switch {
	case !can["snapshot"]:
		d.Snapshot, d.Fork, d.Persistable = SnapshotSupport{Kind: SnapshotNone}, false, false
	case !can["memory"] && d.Snapshot.Kind == SnapshotMemory:
		d.Snapshot.Kind = SnapshotFS
	}
	switch {
	case !can["ports"]:
		d.Ports = PortSupport{Kind: PortNone}
	case !can["previews"] && d.Ports.Kind == PortPreview:
		d.Ports.Kind = PortTunnel
	}
	switch {
	case can["terminal"]:
		pty(d)
	case d.Terminal.PTY:
		d.Terminal = TerminalSupport{Available: true, Transport: TransportSSE}
	}
	d.RunAs, d.FileSystem.Available = can["users"], can["files"]
	d.Desktop, d.Recording = DesktopSupport{}, false // no driver supports one yet
}

// ChooseFrom selects one of the described providers.
func ChooseFrom(n Needs, list []Provider) Choice {
	return Choose(n, FactsOf(list))
}

// FactsOf returns the facts of the described providers.
func FactsOf(list []Provider) []Facts {
	facts := make([]Facts, len(list))
	for i, p := range list {
		holds := map[string]bool{}
		for name, l := range p.Limits {
			holds[name] = l.Enforced
		}
		facts[i] = Facts{
			Descriptor: p.Descriptor, Available: p.Available, Why: p.Problem, Isolates: p.Isolates, Shares: p.SharesFiles, Default: p.Default,
			Images: p.Images, Mounts: p.Capabilities["mounts"], Holds: holds,
		}
	}
	return facts
}
