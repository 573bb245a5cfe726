// Package kernel makes the kernel of a sandbox of this process, if that is what
// it was started as, while the program is still being initialised.
//
// The program is also a daemon, whose packages cost a starting kernel
// milliseconds and memory. Packages are initialised in the order of their import
// paths as soon as what they import is ready; this one imports gVisor's kernel
// and little else, so that most of what only a daemon needs comes after it. A
// program imports it for its effect.
package kernel

import (
	"os"
	"syscall"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// Argv0 is the name of a kernel's process, which gVisor knows it by.
const Argv0 = "runsc-sandbox"

// Version is the version of gVisor that is linked in. A test compares it with
// go.mod.
const Version = "v0.0.0-20260905035102-160fafc42237"

// version is what gVisor calls itself. Its Go module does not know; the
// version binds memory snapshots to the kernel that can restore them, so that
// it has to be set and has to be right however this program was built.
//
//go:linkname version gvisor.dev/gvisor/runsc/version.version
var version string

func init() {
	if len(os.Args) > 0 && os.Args[0] == Argv0 {
		leaveCPUID()
		awaitPlace()
		// Not on this goroutine, which is bound to its thread for as long as
		// initialisation lasts.
		go Run(new(boot))
		select {}
	}
}

// awaitPlace returns when standard input ends: this process is in its control
// group then. What a kernel starts before would stay outside of it, and with it
// all that programs inside do.
func awaitPlace() {
	for {
		n, err := syscall.Read(0, make([]byte, 1))
		if n <= 0 && err != syscall.EINTR {
			return
		}
	}
}

// Run hands over to gVisor's own command line, with only these commands, and
// does not return.
func Run(commands ...util.SubCommand) {
	version = Version
	usePrecompiledSeccomp()
	skipTracePoints()
	replace("clock_gettime", hastenClock)
	replace("sethostname", nameByInit)
	shareMemory()
	state.Register((*settings)(nil))
	spinOnSpare()
	deferCollection(deferredTime)
	log.SetLevel(log.Warning) // no line that nobody reads is put together, unless --debug asks for all
	known := make(map[util.SubCommand]string, len(commands))
	for _, c := range commands {
		known[c] = ""
	}
	cli.Run(nil, known, nil)
	os.Exit(0)
}
