package remote

import (
	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// An instance implements what the other daemon's provider supports, which is
// known only at run time. So it is built from layers: each adds one optional
// interface, which driver.As finds.
type (
	withFiles struct {
		layer
		driver.FileSystem
	}
	withArchives struct {
		layer
		driver.Archiver
	}
	withWatches struct {
		layer
		driver.Watcher
	}
	withCommands struct {
		layer
		driver.ProcessManager
	}
	withPorts struct {
		layer
		driver.Dialer
	}
	withPreviews struct {
		layer
		driver.Previewer
	}
	withPauses struct {
		layer
		driver.Pauser
	}
	withSnapshots struct {
		layer
		driver.Snapshotter
	}
	withSizes struct {
		layer
		driver.Resizer
	}
	withDeadlines struct {
		layer
		driver.DeadlineSetter
	}
	withMeters struct {
		layer
		driver.Meter
	}
	withRejoins struct {
		layer
		driver.Rejoiner
	}
)

// layer wraps an instance.
type layer struct{ driver.Instance }

// Unwrap implements driver.Unwrapper.
func (l layer) Unwrap() any { return l.Instance }

// instance returns an instance with the layers for its capabilities.
func (p *Provider) instance(id sandbox.ID, s *atoll.Sandbox, can driver.Capabilities) driver.Instance {
	b := &remoteSandbox{p: p, id: id, s: s}
	in := driver.Instance(b)
	add := func(can bool, wrap func(layer) driver.Instance) {
		if can {
			in = wrap(layer{in})
		}
	}
	add(can.Files, func(l layer) driver.Instance { return withFiles{l, files{b}} })
	add(can.Archive, func(l layer) driver.Instance { return withArchives{l, archives{b}} })
	add(can.Watch, func(l layer) driver.Instance { return withWatches{l, watches{b}} })
	add(can.Processes, func(l layer) driver.Instance { return withCommands{l, commands{b}} })
	add(can.Ports, func(l layer) driver.Instance { return withPorts{l, ports{b}} })
	add(can.Previews, func(l layer) driver.Instance { return withPreviews{l, previews{b}} })
	add(can.Pause, func(l layer) driver.Instance { return withPauses{l, pauses{b}} })
	add(can.Snapshot, func(l layer) driver.Instance { return withSnapshots{l, snapshots{b, can}} })
	add(can.Resize, func(l layer) driver.Instance { return withSizes{l, sizes{b}} })
	add(can.Deadline, func(l layer) driver.Instance { return withDeadlines{l, deadlines{b}} })
	add(can.Usage, func(l layer) driver.Instance { return withMeters{l, meters{b}} })
	add(can.Rejoin, func(l layer) driver.Instance { return withRejoins{l, rejoins{b}} })
	return in
}
