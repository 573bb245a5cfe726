// Package kernel turns a process that was started as the kernel of a sandbox
// into one, while the program is still being initialised. It is also the only
// package that depends on unexported parts of the linked version of gVisor: see
// [Items].
//
// The program is also a daemon, whose packages cost a starting kernel
// milliseconds and memory. Go initialises packages in the order of their import
// paths, each as soon as its imports are ready. This package imports gVisor's
// kernel and little else, so most of what only a daemon needs comes after it. A
// program imports it for its effect.
package kernel

import (
	"os"
	"slices"
	"syscall"

	"gvisor.dev/gvisor/pkg/gomaxprocs"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/util"

	_ "github.com/atoll-run/atoll/provider/gvisor/kernel/early" // runs the helper that unmounts /proc
)

// Argv0 is the name that gVisor knows a kernel's process by.
const Argv0 = "runsc-sandbox"

// Version is the version of gVisor that this package is made for. A test
// compares it with go.mod.
const Version = "v0.0.0-20260905035102-160fafc42237"

func init() {
	if len(os.Args) > 0 && os.Args[0] == Argv0 {
		awaitCgroup()
		// Not on this goroutine, which is locked to its thread during
		// initialisation.
		go Run(new(boot))
		select {}
	}
}

// awaitCgroup returns at the end of standard input. This process is in its
// control group then. Processes that the kernel started before would stay
// outside of the group, and so would all programs of the sandbox.
func awaitCgroup() {
	for {
		n, err := syscall.Read(0, make([]byte, 1))
		if n <= 0 && err != syscall.EINTR {
			return
		}
	}
}

// Run executes gVisor's command line, with only these commands, and does not
// return.
func Run(commands ...util.SubCommand) {
	replace("sethostname", letGuestSetHostname)
	replace("statx", fillBasicFields)
	state.Register((*restoreHook)(nil))
	if _, err := internals(); err == nil {
		hookClone()
		spinOnSpare()
	}
	for _, call := range []string{"fork", "clone", "clone3"} {
		replace(call, recordKernel)
	}
	if slices.Contains(os.Args, "--cpu-num=1") {
		// The kernel and the program wait for each other. One processor is what
		// programs see; the control group limits both.
		gomaxprocs.Add(1)
	}
	_ = exportStatus()        // without it, the status is unknown, which is an error only when it is needed
	log.SetLevel(log.Warning) // do not format unused lines; --debug enables all
	known := make(map[util.SubCommand]string, len(commands))
	for _, c := range commands {
		known[c] = ""
	}
	cli.Run(nil, known, nil)
	os.Exit(0)
}
