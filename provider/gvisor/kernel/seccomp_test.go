package kernel

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
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
	if os.Getpid() != 1 {
		compileAsKernel(t)
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
	compare(t, "seccomp_amd64.json", programs)
	gofers, err := goferconfig.PrecompiledPrograms()
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "seccomp_gofer_amd64.json", slices.DeleteFunc(gofers, func(p precompiledseccomp.Program) bool {
		return p.Name != (goferconfig.Options{}).ConfigKey() // ours share no host socket, and serve all files themselves
	}))
}

// compare compares a file with the programs that it is to hold, or rewrites it.
func compare(t *testing.T, file string, programs []precompiledseccomp.Program) {
	t.Helper()
	for _, p := range programs {
		// What stands for a variable is arbitrary until the filter is installed.
		for _, offsets := range p.VarOffsets {
			for _, at := range offsets {
				p.Bytecode32[at] = 0
			}
		}
	}
	slices.SortFunc(programs, func(a, b precompiledseccomp.Program) int { return strings.Compare(a.Name, b.Name) })
	var want bytes.Buffer
	if err := json.NewEncoder(&want).Encode(programs); err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("%s is not what this gVisor compiles; run: go generate ./provider/gvisor/kernel", file)
	}
}

// compileAsKernel runs this test the way a kernel runs: built without cgo,
// which changes the filter, and as the first process of a namespace, because
// one of its rules holds the process's own number.
func compileAsKernel(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "gvisor.test")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(binary, "-test.run=^TestSeccompIsCurrent$", "-update="+strconv.FormatBool(*update))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
