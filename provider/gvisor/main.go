package gvisor

import (
	"os"
	"path/filepath"
	"syscall"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/specutils"
)

// The names under which this binary is re-executed. gVisor itself chooses the
// first three when it starts its helpers; the last two are the file names
// under which its newer releases look for separate binaries.
const (
	argvKernel    = "runsc-sandbox"
	argvGofer     = "runsc-gofer"
	argvSelf      = "/proc/self/exe"
	nameSentry    = "gvisor_sentry"
	namePrewarmer = "gvisor-sentry-prewarmer"
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
	case name == argvProbe:
		os.Exit(0)
	case filepath.Base(name) == namePrewarmer && len(os.Args) > 2:
		// The prewarmer's arguments are the binary to execute and its argv.
		err := syscall.Exec(os.Args[1], os.Args[2:], os.Environ())
		os.Stderr.WriteString("atoll: cannot execute the kernel: " + err.Error() + "\n")
		os.Exit(127)
	case filepath.Base(name) == nameSentry:
		runKernelCommand()
	}
}

// runKernelCommand hands over to gVisor's own command line, with only those
// commands that its processes use among themselves.
func runKernelCommand() {
	if exe := os.Getenv(kernelEnv); exe != "" {
		specutils.ExePath = exe
	}
	usePrecompiledSeccomp()
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(cmd.Gofer):        "",
		new(sentrycmd.Umount): "",
	}, nil)
	os.Exit(0)
}
