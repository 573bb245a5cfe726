package kernel

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/metric"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// Status says whether a kernel runs its programs.
type Status uint64

// These are the states of a kernel. While a kernel is saving, it pauses itself
// and then undoes that. Whether it was paused before shows only afterwards. A
// kernel whose log hooks are disabled does not know that it is saving.
const (
	StatusUnknown Status = iota // no program has started
	StatusRunning
	StatusPaused
	StatusSaving
)

// StatusMetric is the name of the metric whose value is the status of a kernel.
// gVisor's calls cannot answer that question, but its metrics can have values
// of a program that links it, and it exports them while its programs are
// paused.
const StatusMetric = "atoll_status"

// exportStatus registers the metric. It must be called before gVisor starts.
func exportStatus() error {
	return metric.RegisterCustomUint64Metric("/"+StatusMetric, metric.Uint64Metadata{Description: "Whether programs run."},
		func(...*metric.FieldValue) uint64 { return uint64(status()) })
}

// savesAtStart is one more than the number of saves that had ended when the last
// one began, or zero.
var savesAtStart atomic.Uint64

// saveBegins records that a save of k has begun.
func saveBegins(k *kernel.Kernel) { savesAtStart.Store(uint64(k.CheckpointGen().Count) + 1) }

func status() Status {
	k := running.Load()
	if k == nil {
		return StatusUnknown
	}
	before := savesAtStart.Load()
	saving := before > uint64(k.CheckpointGen().Count)
	paused := k.IsPaused()
	switch {
	case saving, savesAtStart.Load() != before:
		return StatusSaving
	case paused:
		return StatusPaused
	default:
		return StatusRunning
	}
}

// running is the kernel of this process. It is known when a program has cloned
// a thread or a process for the first time, as every guest does when it starts,
// or when the kernel has been restored.
var running atomic.Pointer[kernel.Kernel]

// recordKernel makes calls that start a thread or a process record the kernel.
func recordKernel(usual kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if running.Load() == nil {
			if lower.missing() {
				panic("the root lacks its lower layers")
			}
			installRestoreHook(t.Kernel())
			running.Store(t.Kernel())
		}
		return usual(t, sysno, args)
	}
}
