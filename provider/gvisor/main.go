package gvisor

import (
	"os"

	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"

	"github.com/atoll-run/atoll/provider/gvisor/kernel"
)

// The process names with which this binary is re-executed. gVisor uses the
// first three for the kernel, the file server and their helper.
const (
	argvKernel   = kernel.Argv0
	argvGofer    = "runsc-gofer"
	argvSelf     = "/proc/self/exe"
	argvDeadline = "atoll-deadline" // see startDeadline
	argvGuard    = "atoll-pool"     // see Guard of prewarmer
	argvProbe    = "atoll-probe"    // see probeNamespaces
)

// Main runs this process as a part of the gVisor kernel if it was started as
// one; then it does not return. In any other process it returns at once. It
// must be the first call in main. The kernel itself starts even earlier: see
// package kernel.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	switch name := os.Args[0]; {
	case name == argvGofer, name == argvSelf && len(os.Args) > 1:
		runHelperCommand()
	case name == argvDeadline:
		os.Exit(runDeadline(os.Args[1:]))
	case name == argvGuard:
		os.Exit(runGuard(os.Args[1:]))
	case name == argvProbe:
		os.Exit(0)
	}
}

// runHelperCommand runs gVisor's command line with only those commands that its
// processes use among themselves beside the kernel's. Upstream's separate
// kernel binary is not used: launch starts the kernel itself.
func runHelperCommand() {
	kernel.Run(new(sentrycmd.Boot), new(cmd.Gofer), new(sentrycmd.Umount))
}
