package kernel

import (
	_ "embed"
	"encoding/json"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

//go:generate go test -run TestSeccompIsCurrent . -args -update

// seccompJSON holds the system call filters of the kernel process, compiled
// ahead of time: gVisor's Go module ships none, and compiling them anew takes
// 14 to 21 ms of every start. TestSeccompIsCurrent compares them with what the
// linked version of gVisor would compile, and rewrites them on request.
//
//go:embed seccomp_amd64.json
var seccompJSON []byte

//go:linkname precompiledPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var precompiledPrograms map[string]precompiledseccomp.Program

// usePrecompiledSeccomp registers the filters with gVisor. A filter for other
// options, or for another processor, is not found there and gets compiled.
func usePrecompiledSeccomp() {
	filter.ListPrecompiled() // registers gVisor's own, of which there are none
	var programs []precompiledseccomp.Program
	if json.Unmarshal(seccompJSON, &programs) != nil {
		return // the kernel compiles its own
	}
	for _, p := range programs {
		precompiledPrograms[p.Name] = p
	}
}
