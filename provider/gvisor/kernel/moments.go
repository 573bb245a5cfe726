package kernel

import (
	"context"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/google/subcommands"
)

// gVisor has no place for somebody who is to do something in the middle of a
// save or of a restore. But it says how far it is, in its log, on the goroutine
// that does the work, which waits for what it says to be written.
const (
	saysSaving    = "Sandbox save started, pausing all tasks."                               // nothing is saved yet
	saysStateDue  = "CPUID save took [%s]."                                                  // no program runs
	saysStateDone = "Kernel save took [%s]."                                                 // still none runs
	saysFailed    = "Save failed: exiting... %v"                                             // nor now
	saysIndexRead = "MemoryFile(%p): loaded metadata in %s"                                  // its pages are not read yet
	saysLoaded    = "Kernel load took [%s]."                                                 // all of a kernel but its memory is
	saysPagesDue  = "MemoryFile(%p): loaded page file offsets in %s; async loading %d bytes" // no program runs yet
)

// boot is gVisor's command that becomes a kernel.
type boot struct{ sentrycmd.Boot }

// Execute listens to what the kernel says as soon as gVisor has decided where to
// write it.
func (b *boot) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	said := log.Log()
	log.SetTarget(&moments{Emitter: said.Emitter, most: said.Level})
	if said.Level < log.Info {
		log.SetLevel(log.Info)
	}
	return b.Boot.Execute(ctx, f, args...)
}

// moments does what is to be done when the kernel says how far it is, and passes
// on what was to be written anyway.
type moments struct {
	log.Emitter
	most log.Level

	arrival   arrival
	registers registers
}

// Emit implements log.Emitter.
func (m *moments) Emit(depth int, level log.Level, at time.Time, format string, v ...any) {
	switch {
	case format == saysFailed:
		m.registers.restore()
	case level != log.Info:
	case format == saysSaving:
		takeBack()
	case format == saysStateDue:
		m.registers.shorten(running.Load())
	case format == saysStateDone:
		m.registers.restore()
	case format == saysIndexRead:
		m.arrival.awaitKernel(memoryFile(v))
	case format == saysLoaded:
		arrive()
	case format == saysPagesDue:
		m.arrival.share(memoryFile(v))
	}
	if level <= m.most {
		m.Emitter.Emit(depth+1, level, at, format, v...)
	}
}

func memoryFile(v []any) *pgalloc.MemoryFile {
	if len(v) == 0 {
		return nil
	}
	f, _ := v[0].(*pgalloc.MemoryFile)
	return f
}
