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

// gVisor has no hook in the middle of a save or a restore. But it logs how far
// it is, on the goroutine that does the work, and goes on when the line is
// written. These are the formats of the lines that stand in for hooks. This is
// the only place that depends on what gVisor logs. TestWordsOfGVisor compares the
// formats with its source; fitsVersion disables the hooks where another
// version of gVisor is linked in.
const (
	logSaving    = "Sandbox save started, pausing all tasks."                               // nothing is saved yet
	logIndexRead = "MemoryFile(%p): loaded metadata in %s"                                  // its pages are not read yet
	logLoaded    = "Kernel load took [%s]."                                                 // all of the kernel but its memory is there
	logPagesDue  = "MemoryFile(%p): loaded page file offsets in %s; async loading %d bytes" // no program runs yet
	logMounting  = "Configuring container's file system"                                    // nothing is mounted yet
	logRestoring = "Starting to restore %d containers"                                      // nothing is loaded yet
	logMounts    = "Restore using mounts: %v"                                               // no file system is loaded yet; for debugging
)

// logFull is logged when the sandbox is at its memory limit and the host gives
// the kernel no more memory. Writing the line needs some, and the kernel would
// end. So it is not written.
const logFull = "Disabling pgalloc.MemoryFile.AllocateAndFill pre-population: madvise failed: %s"

// boot is gVisor's command that becomes a kernel.
type boot struct{ sentrycmd.Boot }

// Execute installs the hooks after gVisor has decided where to write its log.
func (b *boot) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	translateNoStub()
	if l, err := internals(); err == nil {
		said := log.Log()
		lower = lowerLayers()
		lower.watch()
		log.SetTarget(newLogHooks(said, l))
		if said.Level < log.Info {
			log.SetLevel(log.Info)
		}
	}
	return b.Boot.Execute(ctx, f, args...)
}

// logHooks calls functions when the kernel logs certain lines, and passes on
// the lines that would have been written without it.
type logHooks struct {
	log.Emitter
	most  log.Level // of the lines that are passed on
	hooks map[string]func(args []any)
}

func newLogHooks(usual *log.BasicLogger, l *layout) *logHooks {
	sharing := newRestore(l)
	var gc collection
	return &logHooks{Emitter: usual.Emitter, most: usual.Level, hooks: map[string]func([]any){
		logSaving: func([]any) {
			gc.putOff(collectionDelay)
			prepareSave(l)
		},
		logIndexRead: func(args []any) {
			gc.putOff(collectionDelay)
			sharing.awaitKernel(memoryFile(args))
		},
		logLoaded:   func([]any) { sharing.kernelLoaded() },
		logPagesDue: func(args []any) { sharing.share(memoryFile(args)) },

		logMounting:  func([]any) { lower.begin() },
		logRestoring: func([]any) { lower.awaitMounts() },
		logMounts:    lower.restore,
	}}
}

// Emit implements log.Emitter.
func (h *logHooks) Emit(depth int, level log.Level, at time.Time, format string, v ...any) {
	if hook := h.hooks[format]; hook != nil && level != log.Warning {
		hook(v)
	}
	if level <= h.most && format != logFull {
		h.Emitter.Emit(depth+1, level, at, format, v...)
	}
}

func memoryFile(args []any) *pgalloc.MemoryFile {
	if len(args) == 0 {
		return nil
	}
	f, _ := args[0].(*pgalloc.MemoryFile)
	return f
}

// prepareSave gets the kernel of this process ready to be saved, with its
// programs stopped: shared memory becomes its own, because only that can be
// saved, and untouched memory is returned. If the first fails, so does the
// save.
func prepareSave(l *layout) {
	k := running.Load()
	if k == nil {
		return
	}
	saveBegins(k)
	k.Pause()
	defer k.Unpause()
	_ = unshareAll(k)
	returnUntouched(k, l)
}
