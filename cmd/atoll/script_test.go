package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/internal/testing/storetest"
)

// The scripts run the real static program, built once: a test binary with the
// race detector could not start kernels.
var built struct{ dir, atoll, tool string }

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, remove, err := scratch.Dir("atoll-test-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = remove() }()
	built.dir, built.atoll, built.tool = dir, os.Getenv("ATOLL_BIN"), filepath.Join(dir, "tool")
	if built.atoll == "" {
		built.atoll = filepath.Join(dir, "atoll")
		build(built.atoll, ".")
	}
	build(built.tool, "./testdata/tool")
	defer storetest.Stop()
	return blobtest.Main(m)
}

func build(output, pkg string) {
	cmd := exec.Command("go", "build", "-o", output, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("building %s: %v\n%s", pkg, err, out))
	}
}

func TestScript(t *testing.T) { testscript.RunT(quiet{t}, scriptParams(built.atoll)) }

// TestLightScript runs scripts with the light program, which continues in the
// engine: commands with and without a daemon, with input, help and errors.
func TestLightScript(t *testing.T) {
	program := os.Getenv("ATOLL_LIGHT")
	if program == "" {
		need.Thing(t, "ATOLL_LIGHT", "make test names the light program with it")
	}
	params := scriptParams(program)
	params.Dir = ""
	for _, name := range []string{"background", "check", "completion", "context", "daemon", "detach", "doctor", "env", "errors", "exit-codes", "first-run", "help", "image", "killed", "lifecycle", "providers", "restore", "session", "stdin"} {
		params.Files = append(params.Files, filepath.Join("../../test/script", name+".txtar"))
	}
	files, err := filepath.Glob("../../test/script-light/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no scripts: %v", err)
	}
	params.Files = append(params.Files, files...)
	testscript.RunT(quiet{t}, params)
}

// scriptParams returns the parameters of scripts that use a program as atoll.
func scriptParams(atoll string) testscript.Params {
	return testscript.Params{
		Dir:                 "../../test/script",
		RequireExplicitExec: true,
		Setup:               func(env *testscript.Env) error { return setup(env, atoll) },
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "memory":
				return limitsMemory()
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitfile":    waitFile,
			"waitfor":     waitFor,
			"mkrootfs":    makeRootfs,
			"hostiletar":  hostileTar,
			"killhard":    killHard,
			"noprocess":   noProcess,
			"nothingleft": nothingLeft,
			"servesigned": serveSigned,
		},
	}
}

// limitsMemory reports whether this user can limit the memory of sandboxes on
// this machine: it takes a control group.
var limitsMemory = sync.OnceValues(func() (bool, error) {
	cmd := exec.Command(built.atoll, "provider", "show", "gvisor", "--json")
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+filepath.Join(built.dir, "state"), "ATOLL_NO_DAEMON=1")
	js, err := cmd.Output()
	if err != nil {
		return false, err
	}
	var p catalog.Provider
	err = json.Unmarshal(js, &p)
	return p.Limits["memory"].Enforced, err
})

// quiet prints only the failed part of a script, although -json makes every
// test verbose.
type quiet struct{ *testing.T }

func (q quiet) Verbose() bool { return false }

func (q quiet) Run(name string, f func(testscript.T)) {
	q.T.Run(name, func(t *testing.T) {
		script, err := os.ReadFile(filepath.Join("../../test/script", name+".txtar"))
		if err == nil { // else it is a script of another directory
			need.Commands(t, string(script))
		}
		f(quiet{t})
	})
}

// setup gives every script its own home, state directory and copy of the
// program. The copy's path identifies the script's processes.
func setup(env *testscript.Env, atoll string) error {
	bin := filepath.Join(env.WorkDir, "bin")
	for _, dir := range []string{bin, filepath.Join(env.WorkDir, "home")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(env.WorkDir, 0o755); err != nil {
		return err
	}
	program := filepath.Join(bin, "atoll")
	if err := copyFile(atoll, program); err != nil {
		return err
	}
	env.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
	env.Setenv("ATOLL_STATE_DIR", filepath.Join(env.WorkDir, "state"))
	env.Setenv("LC_ALL", "C")
	// What the machine has makes no difference: no Docker daemon, one time zone.
	env.Setenv("DOCKER_HOST", "unix://"+filepath.Join(env.WorkDir, "docker.sock"))
	env.Setenv("TZ", "UTC")
	// A script starts a daemon explicitly if it needs one.
	env.Setenv("ATOLL_NO_DAEMON", "1")
	env.Defer(func() {
		cmd := exec.Command(program, "rm", "--force", "--all")
		cmd.Env = env.Vars
		_ = cmd.Run()
		for pid := range processesOf(programs(env.WorkDir)...) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	// A child forked for another script could hold the file open for writing;
	// executing the file would then fail.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(to, data, 0o755)
}

// eventually waits for an effect of other processes.
func eventually(what func() error) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := what()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// waitFor runs a command until its output matches or, negated, no longer
// matches: waitfor PATTERN COMMAND [ARG...].
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: waitfor PATTERN COMMAND [ARG...]")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	ts.Check(eventually(func() error {
		if err := ts.Exec(args[1], args[2:]...); err != nil {
			return err
		}
		if out := ts.ReadFile("stdout"); pattern.MatchString(out) == neg {
			return fmt.Errorf("the output of %q is not as wanted:\n%s", args[1:], out)
		}
		return nil
	}))
}

// waitFile waits until a file exists and is not empty.
func waitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	ts.Check(eventually(func() error {
		info, err := os.Stat(ts.MkAbs(args[0]))
		if err == nil && info.Size() == 0 {
			err = errors.New(args[0] + " is empty")
		}
		return err
	}))
}

// makeRootfs writes a tar of a root file system with one program, /tool.
func makeRootfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: mkrootfs FILE")
	}
	ts.Check(writeRootfs(ts.MkAbs(args[0])))
}

func writeRootfs(file string) error {
	tool, err := os.ReadFile(built.tool)
	if err != nil {
		return err
	}
	return writeTar(file, tool,
		tar.Header{Name: "tool", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(tool))},
		tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755})
}

// hostileTar writes a tar that tries to escape from its destination.
func hostileTar(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: hostiletar FILE MEMBER")
	}
	body := []byte("escaped\n")
	ts.Check(writeTar(ts.MkAbs(args[0]), body, tar.Header{Name: args[1], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}))
}

// writeTar writes a tar. Members with a size have the given body.
func writeTar(file string, body []byte, members ...tar.Header) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	for _, h := range members {
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		if h.Size == 0 {
			continue
		}
		if _, err := w.Write(body); err != nil {
			return err
		}
	}
	return w.Close()
}

// killHard kills the process whose number is in a file, and waits for its end.
func killHard(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: killhard PIDFILE")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
}

// noProcess waits until no process runs the script's program.
func noProcess(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: noprocess")
	}
	ts.Check(eventually(func() error {
		for pid, name := range processesOf(programs(ts.Getenv("WORK"))...) {
			return fmt.Errorf("process %d (%s) is left", pid, name)
		}
		return nil
	}))
}

// nothingLeft checks that no process of the script's program and no mount,
// control group or record of a sandbox is left.
func nothingLeft(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: nothingleft")
	}
	noProcess(ts, false, nil)
	work := ts.Getenv("WORK")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	if strings.Contains(string(mounts), work) {
		ts.Fatalf("a mount is left")
	}
	sandboxes, err := os.ReadDir(filepath.Join(work, "state", "gvisor", "boxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("%v", err)
	}
	for _, b := range sandboxes {
		ts.Fatalf("the record of %s is left", b.Name())
	}
}

// programs returns the programs of a script: its atoll, and the engine that it
// has unpacked.
func programs(work string) []string {
	engines, _ := filepath.Glob(filepath.Join(work, "*", "engine", "*", "atoll")) // of each state directory
	return append(engines, filepath.Join(work, "bin", "atoll"))
}

// processesOf returns the processes that run one of some programs, in any mount
// namespace.
func processesOf(programs ...string) map[int]string {
	found := map[int]string{}
	var want []os.FileInfo
	for _, program := range programs {
		if info, err := os.Stat(program); err == nil {
			want = append(want, info)
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		got, err := os.Stat(filepath.Join("/proc", e.Name(), "exe"))
		if err == nil && slices.ContainsFunc(want, func(info os.FileInfo) bool { return os.SameFile(info, got) }) {
			args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			found[pid] = strings.ReplaceAll(string(args), "\x00", " ")
		}
	}
	return found
}
