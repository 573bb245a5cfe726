package gvisor

import (
	"os"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	_ "github.com/atoll-run/atoll/provider/gvisor/early" // is the helper of a starting kernel
)

// The names under which this binary is re-executed. gVisor itself uses the
// first three for the kernel, the file server and their helper.
const (
	argvKernel   = "runsc-sandbox"
	argvGofer    = "runsc-gofer"
	argvSelf     = "/proc/self/exe"
	argvDeadline = "atoll-deadline" // see startDeadline
	argvGuard    = "atoll-pool"     // see guardPool
	argvProbe    = "atoll-probe"    // see probeNamespaces
)

// Main runs this process as a part of the gVisor kernel if that is what it was
// started for, and does not return then. In any other process it returns at
// once. It must be the first thing that main does.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	switch name := os.Args[0]; {
	case name == argvKernel, name == argvGofer, name == argvSelf && len(os.Args) > 1:
		runKernelCommand()
	case name == argvDeadline:
		os.Exit(runDeadline(os.Args[1:]))
	case name == argvGuard:
		os.Exit(runGuard(os.Args[1:]))
	case name == argvProbe:
		os.Exit(0)
	}
}

// EngineVersion is the version of gVisor that is linked in. A test compares it
// with go.mod.
const EngineVersion = "v0.0.0-20260905035102-160fafc42237"

// kernelVersion is what gVisor calls itself. Its Go module does not know; the
// version binds memory snapshots to the kernel that can restore them, so that
// it has to be set and has to be right however this program was built.
//
//go:linkname kernelVersion gvisor.dev/gvisor/runsc/version.version
var kernelVersion string

// runKernelCommand hands over to gVisor's own command line, with only those
// commands that its processes use among themselves. Upstream's separate binary
// for the kernel is of no concern here: launch starts the kernel itself, so
// that nothing looks for one.
func runKernelCommand() {
	kernelVersion = EngineVersion
	usePrecompiledSeccomp()
	skipTracePoints()
	deferCollection()
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(cmd.Gofer):        "",
		new(sentrycmd.Umount): "",
	}, nil)
	os.Exit(0)
}
