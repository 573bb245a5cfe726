package kernel

//go:generate go test -run TestPageIsCurrent . -args -update

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Item is one use of parts of gVisor that gVisor does not export, or one
// deviation from the normal start of a program. An item must save at least 15 %
// of a main benchmark by itself, or be necessary for correctness.
type Item struct {
	Name     string
	Does     string
	Why      string
	Relies   string // the parts of gVisor it relies on
	Gain     string // measured by disabling only this item
	Without  string // what happens if it is disabled or fails
	Disabled error  // why it does not fit the linked gVisor; nil: it fits
}

// Items lists them. Those that do not fit the linked version of gVisor are
// disabled in every kernel.
func Items() []Item {
	_, unfit := internals()
	list := []Item{
		{
			Name: "page sharing", Does: "Forks map the pages of their snapshot and copy them on write (`share.go`, `unshare.go`).",
			Why:    "gVisor reads all memory of a snapshot into each copy.",
			Relies: "fields of `mm.MemoryManager`, its segments, and `pgalloc.MemoryFile`; four lines of the log (`loghooks.go`)",
			Gain:   "A fork with 256 MB of dirty memory: memory 26 MB instead of 283 (−91 %), CPU time −35 to −43 %.", Without: "Each fork reads its own copy.",
			Disabled: unfit,
		},
		{
			Name: "untouched memory", Does: "Memory that was allocated but never written to is returned before a snapshot (`holes.go`).",
			Why:    "gVisor allocates 2 MB at a time and reads each page before it saves.",
			Relies: "segments of `mm.MemoryManager`; one line of the log", Gain: "A snapshot with memory of an idle sandbox: CPU time −37 %.",
			Without: "Snapshots take longer, but are not larger.", Disabled: unfit,
		},
		{
			Name: "late garbage collection", Does: "A kernel that saves or restores collects no garbage for a second (`gc.go`).",
			Why:    "Both allocate twice the kernel's heap within milliseconds.",
			Relies: "two lines of the log", Gain: "A snapshot with memory of an idle sandbox: CPU time −19 %. A fork with 256 MB: −15 %.",
			Without: "Go collects as usual.", Disabled: unfit,
		},
		{
			Name: "spinning on spare processors", Does: "Systrap waits by spinning only while the host has idle processors (`spin.go`).",
			Why:    "gVisor spins even if all processors are busy.",
			Relies: "`systrap.neverEnableFastPath`, a variable", Gain: "An exec on a busy host: CPU time −22 %, wall time −41 %. Eight sandboxes at once: CPU time −24 %.",
			Without: "gVisor decides when to spin.", Disabled: unfit,
		},
		{
			Name: "early start", Does: "Kernels, and the helper that unmounts `/proc`, start while packages are still being initialised (`kernel.go`, `early/`).",
			Why:    "They need no daemon, and its packages cost time and memory.",
			Relies: "the order of package initialisation in the Go specification; the command line of the helper",
			Gain:   "A cold create: CPU time −22 % (kernel alone −12 %, helper alone −14 %).", Without: "gVisor's own helper runs, which starts later.",
		},
		{
			Name: "host name", Does: "Process 1 of a sandbox may set the host name without `CAP_SYS_ADMIN` (`syscalls.go`).",
			Why:    "The name is known long after the start, and with that capability the guest could mount. Needed for security, not for speed.",
			Relies: "gVisor's exported table of system calls", Gain: "none", Without: "Atoll does not compile.",
		},
		{
			Name: "layers", Does: "The root of a sandbox has several lower layers (`layers.go`).",
			Why:    "gVisor mounts one file there, so each image would be a full copy of its base image.",
			Relies: "`vfs.VirtualFilesystem.fsTypes`; the list of counted objects in `refs`; three lines of the log; the files for a restored kernel",
			Gain:   "A derived image takes only the space of its changes: 8 KB for `RUN touch` instead of a full copy.", Without: "New images are built as one file. Existing layered images cannot be used.",
			Disabled: unfit,
		},
	}
	return list
}

// internals returns the layout of the linked gVisor if all of it is what this
// package is made for.
var internals = sync.OnceValues(func() (*layout, error) {
	if linked := linkedVersion(); linked != "" && linked != Version {
		return nil, fmt.Errorf("gVisor %s is linked in, not %s", linked, Version)
	}
	return theLayout()
})

// linkedVersion is the version of gVisor that is linked in, or empty if the
// build did not record it.
func linkedVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path != "gvisor.dev/gvisor" {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}
