package gvisor

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

var update = flag.Bool("update", false, "rewrite generated files instead of comparing with them")

//go:linkname seccompRules gvisor.dev/gvisor/runsc/boot/filter/config.rules
func seccompRules(opt config.Options, vars precompiledseccomp.Values) (seccomp.SyscallRules, seccomp.SyscallRules)

// TestSeccompIsCurrent fails when gVisor was updated, or the options of the
// kernel were changed, without compiling its filters anew.
func TestSeccompIsCurrent(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Logf("no filters are compiled ahead for %s: its kernels compile their own", runtime.GOARCH)
		return
	}
	constructor, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	var programs []precompiledseccomp.Program
	for _, info := range constructor.PrecompiledSeccompInfo() {
		opt := config.Options{Platform: info}
		var names []string
		for name := range opt.Vars() {
			names = append(names, name)
		}
		p, err := precompiledseccomp.Precompile(opt.ConfigKey(), names, func(vars precompiledseccomp.Values) *seccomp.Program {
			rules, deny := seccompRules(opt, vars)
			return &seccomp.Program{
				RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: rules.Copy(), Action: seccomp.Allow}},
				Options:  config.SeccompOptions(opt),
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	slices.SortFunc(programs, func(a, b precompiledseccomp.Program) int { return strings.Compare(a.Name, b.Name) })
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	if err := enc.Encode(programs); err != nil {
		t.Fatal(err)
	}
	const file = "seccomp_amd64.json"
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what this gVisor compiles; run: go generate ./provider/gvisor", file)
	}
}
