package kernel

import (
	_ "embed"
	"encoding/json"
	"os"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

//go:generate go test -run TestSeccompIsCurrent . -args -update

// seccompJSON holds the system call filters of the kernel process, compiled
// ahead of time: gVisor's Go module ships none, and compiling them anew takes
// 14 to 21 ms of every start. TestSeccompIsCurrent compares them with what the
// linked version of gVisor would compile, and rewrites them on request.
//
//go:embed seccomp_amd64.json
var seccompJSON []byte

// seccompGoferJSON holds those of the file server, which take 3 to 5 ms.
//
//go:embed seccomp_gofer_amd64.json
var seccompGoferJSON []byte

//go:linkname precompiledPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var precompiledPrograms map[string]precompiledseccomp.Program

//go:linkname precompiledGofers gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var precompiledGofers map[string]precompiledseccomp.Program

// usePrecompiledSeccomp registers the filters with gVisor. A filter for other
// options, or for another processor, is not found there and gets compiled.
func usePrecompiledSeccomp() {
	filter.ListPrecompiled() // registers gVisor's own, of which there are none
	register(precompiledPrograms, seccompJSON)
	if os.Args[0] != Argv0 { // it may be a file server
		gofer.ListPrecompiled()
		register(precompiledGofers, seccompGoferJSON)
	}
}

func register(known map[string]precompiledseccomp.Program, js []byte) {
	var programs []precompiledseccomp.Program
	if json.Unmarshal(js, &programs) != nil {
		return // the process compiles its own
	}
	for _, p := range programs {
		known[p.Name] = p
	}
}
