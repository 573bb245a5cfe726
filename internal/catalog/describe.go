package catalog

import (
	"cmp"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Describe adds descriptors to what is known about providers, and appends known
// systems without a driver.
func Describe(list []sandbox.Provider) []sandbox.Provider {
	known := Known()
	for i := range list {
		p := &list[i]
		permanent, isolation := p.Descriptor.Permanent, p.Descriptor.Isolation // set by the driver
		at := slices.IndexFunc(known, func(d sandbox.Descriptor) bool { return d.Name == p.Name })
		if machine, ok := MachineDescriptor(p.Name); ok {
			p.Descriptor = machine
		} else if at < 0 { // a provider that an embedding program brought
			p.Descriptor = base(p.Name, p.Summary, sandbox.TierDev)
			p.Descriptor.Persistable = false
		} else {
			p.Descriptor = known[at]
			known = slices.Delete(known, at, at+1)
		}
		p.Descriptor.Permanent = p.Descriptor.Permanent || permanent
		p.Descriptor.Isolation = cmp.Or(isolation, p.Descriptor.Isolation)
		p.Descriptor.Driver = sandbox.DriverSupport{Available: true}
		if len(p.Capabilities) > 0 {
			fit(&p.Descriptor, p.Capabilities)
		}
	}
	for _, d := range known {
		list = append(list, sandbox.Provider{Name: d.Name, Summary: d.Summary, Capabilities: map[string]bool{}, Descriptor: d, Problem: d.Driver.Reason})
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
func MachineDescriptor(name string) (sandbox.Descriptor, bool) {
	kind := "selfhosted"
	switch {
	case strings.HasPrefix(name, ofNode):
		kind = "remote"
	case !strings.HasPrefix(name, ofMachine):
		return sandbox.Descriptor{}, false
	}
	d, ok := Find(kind)
	d.Name, d.Permanent = name, false // the driver says whether it is
	return d, ok
}

// fit changes a descriptor to what the driver supports here.
func fit(d *sandbox.Descriptor, can map[string]bool) {
	if !can["pause"] {
		d.Pause, d.Lifetime.Suspend = "", false
	}
	switch {
	case !can["snapshot"]:
		d.Snapshot, d.Fork, d.Persistable = sandbox.SnapshotSupport{Kind: sandbox.SnapshotNone}, false, false
	case !can["memory"] && d.Snapshot.Kind == sandbox.SnapshotMemory:
		d.Snapshot.Kind = sandbox.SnapshotFS
	}
	switch {
	case !can["ports"]:
		d.Ports = sandbox.PortSupport{Kind: sandbox.PortNone}
	case !can["previews"] && d.Ports.Kind == sandbox.PortPreview:
		d.Ports.Kind = sandbox.PortTunnel
	}
	switch {
	case can["terminal"]:
		pty(d)
	case d.Terminal.PTY:
		d.Terminal = sandbox.TerminalSupport{Available: true, Transport: sandbox.TransportSSE}
	}
	d.RunAs, d.FileSystem.Available = can["users"], can["files"]
	d.Desktop, d.Recording = sandbox.DesktopSupport{}, false // no driver supports one yet
}

// ChooseFrom selects one of the described providers.
func ChooseFrom(n sandbox.Needs, list []sandbox.Provider) sandbox.Choice {
	return Choose(n, FactsOf(list))
}

// FactsOf returns the facts of the described providers.
func FactsOf(list []sandbox.Provider) []Facts {
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
