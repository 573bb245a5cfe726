package catalog

import (
	"slices"

	"github.com/atoll-run/atoll/sandbox"
)

// Describe completes what was found out about providers with their descriptors,
// and appends the systems that Atoll knows and has no driver for.
func Describe(list []sandbox.Provider) []sandbox.Provider {
	known := Known()
	for i := range list {
		p := &list[i]
		permanent := p.Descriptor.Permanent // says the driver
		at := slices.IndexFunc(known, func(d sandbox.Descriptor) bool { return d.Name == p.Name })
		if at < 0 { // a program brought its own
			p.Descriptor = base(p.Name, p.Summary, sandbox.TierDev)
			p.Descriptor.Persistable = false
		} else {
			p.Descriptor = known[at]
			known = slices.Delete(known, at, at+1)
		}
		p.Descriptor.Permanent = p.Descriptor.Permanent || permanent
		p.Descriptor.Driver = sandbox.DriverSupport{Available: true}
		if len(p.Capabilities) > 0 {
			reduce(&p.Descriptor, p.Capabilities)
		}
	}
	for _, d := range known {
		list = append(list, sandbox.Provider{Name: d.Name, Summary: d.Summary, Capabilities: map[string]bool{}, Descriptor: d, Problem: d.Driver.Reason})
	}
	return list
}

// reduce takes from a descriptor what the driver does not do, or not here.
func reduce(d *sandbox.Descriptor, can map[string]bool) {
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
	if !can["terminal"] && d.Terminal.PTY {
		d.Terminal = sandbox.TerminalSupport{Available: true, Transport: sandbox.TransportSSE}
	}
	d.RunAs = d.RunAs && can["users"]
	d.FileSystem.Available = d.FileSystem.Available && can["files"]
	d.Desktop, d.Recording = sandbox.DesktopSupport{}, false // no driver has one yet
}

// ChooseFrom selects one of the providers described.
func ChooseFrom(n sandbox.Needs, list []sandbox.Provider) sandbox.Choice {
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
	return Choose(n, facts)
}
