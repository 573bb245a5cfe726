package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// The fault points of the provider, in the order in which a sandbox reaches
// them.
var faultPoints = []string{
	"create.box", "create.cgroup", "create.launched", "create.started", "create.connected", "create.ready",
	"destroy.killed",
}

// victimEnv makes the test binary a program that creates a sandbox and kills
// itself at a fault point.
const victimEnv = "ATOLL_TEST_VICTIM"

type victimPlan struct {
	State, Images, Point string
	Attached             bool
	ID                   sandbox.ID
	Memory               int64

	Snapshots string

	Pool    int    // create another one first, and wait until this many are ready
	Pause   bool   // attach to ID and pause it
	Save    string // attach to ID and take a snapshot with this ID
	Stop    bool   // … that stops it
	Restore string // restore ID from the snapshot in this directory
	Import  string // attach to ID and import an endless archive into this directory
	Fill    bool   // create ID, fill its memory with extended attributes, and be killed when it waits
}

// victim performs a plan. It returns only if the plan does not kill it.
func victim() int {
	var plan victimPlan
	if err := json.Unmarshal([]byte(os.Getenv(victimEnv)), &plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	store, err := image.Open(plan.Images, image.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	p, err := gvisor.New(gvisor.Options{
		StateDir: plan.State, SnapshotDir: plan.Snapshots, Images: store, Attached: plan.Attached, Pool: plan.Pool,
		Fault: func(point string) error {
			if point == plan.Point {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	in, err := plan.carryOut(p)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Println("ready")
	if plan.Point == "" {
		select {} // until the test kills this process
	}
	if err := in.Destroy(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	return 0
}

func (plan victimPlan) carryOut(p *gvisor.Provider) (driver.Instance, error) {
	ctx, spec := context.Background(), &sandbox.Spec{ID: plan.ID, Image: "host", Resources: sandbox.Resources{Memory: plan.Memory}}
	switch {
	case plan.Pause:
		in, err := p.Attach(ctx, plan.ID)
		if err == nil {
			err = in.(driver.Pauser).Pause(ctx)
		}
		return in, err
	case plan.Save != "":
		in, err := p.Attach(ctx, plan.ID)
		if err == nil {
			_, err = in.(driver.Snapshotter).Snapshot(ctx, driver.SnapshotOptions{ID: plan.Save, Memory: true, Stop: plan.Stop})
		}
		return in, err
	case plan.Import != "":
		in, err := p.Attach(ctx, plan.ID)
		if err == nil {
			endless, _ := io.Pipe()
			err = in.(driver.Archiver).Import(ctx, plan.Import, io.MultiReader(bytes.NewReader(archiveBegun()), endless), driver.ImportOptions{})
		}
		return in, err
	case plan.Restore != "":
		snapshotDir = plan.Snapshots
		ref, remove, err := linkTo(plan.Restore)
		if err != nil {
			return nil, err
		}
		defer remove()
		in, _, err := p.Restore(ctx, spec, ref)
		return in, err
	case plan.Pool > 0:
		in, err := p.Create(ctx, &sandbox.Spec{ID: "first", Image: "host"})
		if err != nil {
			return nil, err
		}
		for all, _ := p.Ready(); all < plan.Pool; all, _ = p.Ready() {
			time.Sleep(10 * time.Millisecond)
		}
		if err := in.Destroy(ctx); err != nil {
			return nil, err
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	in, err := p.Create(ctx, spec)
	if err == nil && plan.Fill {
		err = fillUp(ctx, in.(*gvisor.Instance))
	}
	return in, err
}

// fillUp fills the memory of a sandbox and kills this process when the sandbox
// waits for more. It returns if the sandbox ends.
func fillUp(ctx context.Context, in *gvisor.Instance) error {
	go fillMemory(ctx, in)
	for !in.Full() {
		if exit, ended := hasEnded(ctx, in); ended {
			return fmt.Errorf("the sandbox has ended: %+v", exit)
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func startVictim(t *testing.T, plan victimPlan) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	plan.Snapshots = snapshotDir
	js, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+string(js))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &out
}

// leftovers lists everything on the machine that belongs to a sandbox.
func leftovers(state string, id sandbox.ID) []string {
	var left []string
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		b, err := os.ReadFile(f)
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if err == nil && (args[0] == "runsc-sandbox" || args[0] == "runsc-gofer") && slices.Contains(args, string(id)) {
			left = append(left, "process "+strings.Join(args, " "))
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/atoll/", "/sys/fs/cgroup/atoll/"} {
		groups, _ := filepath.Glob(pattern + string(id) + "-*")
		left = append(left, groups...)
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(mounts, []byte(state)) {
		left = append(left, "a mount below "+state)
	}
	_ = filepath.WalkDir(filepath.Join(state, "boxes"), func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.Contains(path, "boxes/") {
			left = append(left, path)
		}
		return nil
	})
	return left
}

// endsWhole waits for the file server of a sandbox, which exits by itself after
// its kernel, and checks that nothing with the sandbox's name is left.
func endsWhole(t *testing.T, what, state string, id sandbox.ID) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left := slices.DeleteFunc(leftovers(state, id), func(s string) bool { return !strings.Contains(s, string(id)) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: left behind %q", what, left)
			return
		}
	}
}

// nothingLeft waits for exiting processes, lets a new provider sweep,
// and checks that nothing is left.
func nothingLeft(t *testing.T, state string, id sandbox.ID) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
		for range p.List(t.Context()) {
		}
		p.Close()
		left := leftovers(state, id)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// killRounds is the number of kills in the kill tests. ATOLL_KILL_ROUNDS
// overrides it for the long run of make kills.
func killRounds(t *testing.T, normal int) int {
	if n, err := strconv.Atoi(os.Getenv("ATOLL_KILL_ROUNDS")); err == nil && n > 0 {
		return n
	}
	if testing.Short() {
		return len(faultPoints)
	}
	return normal
}

// TestKilledAtFaultPoints kills the program that creates a sandbox at every
// fault point, and checks that the next start removes everything.
func TestKilledAtFaultPoints(t *testing.T) {
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "host", image.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	for i := range killRounds(t, 20*len(faultPoints)) {
		plan := victimPlan{
			State: state, Images: imagesDir, Point: faultPoints[i%len(faultPoints)],
			Attached: i/len(faultPoints)%2 == 0, ID: sandbox.ID("k" + strconv.Itoa(i)),
		}
		cmd, out := startVictim(t, plan)
		err := cmd.Wait()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); err == nil || !ok || ws.Signal() != syscall.SIGKILL {
			t.Fatalf("round %d, %s: the victim was not killed: %v\n%s", i, plan.Point, err, out)
		}
		if plan.Point == "create.ready" && !plan.Attached {
			destroyForeign(t, state, plan.ID)
		}
		nothingLeft(t, state, plan.ID)
	}
}

// destroyForeign removes a sandbox that correctly outlived its maker.
func destroyForeign(t *testing.T, state string, id sandbox.ID) {
	t.Helper()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	in, err := p.Attach(t.Context(), id)
	if err != nil {
		t.Fatalf("finding what outlived its maker: %v", err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatalf("removing what outlived its maker: %v", err)
	}
}

// TestKilledAtAnyMoment kills the program at random moments.
func TestKilledAtAnyMoment(t *testing.T) {
	state := t.TempDir()
	for i := range killRounds(t, 60) {
		plan := victimPlan{State: state, Images: imagesDir, Attached: true, ID: sandbox.ID("r" + strconv.Itoa(i))}
		cmd, _ := startVictim(t, plan)
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		nothingLeft(t, state, plan.ID)
	}
}

// TestKernelKilled kills the sentry and the gofer under a running sandbox.
func TestKernelKilled(t *testing.T) {
	for _, name := range []string{"runsc-sandbox", "runsc-gofer"} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
			id := sandbox.ID("victim-" + strings.TrimPrefix(name, "runsc-"))
			in, err := p.Create(t.Context(), &sandbox.Spec{ID: id, Image: "host"})
			if err != nil {
				t.Fatal(err)
			}
			proc, err := in.Exec(t.Context(), &sandbox.Command{Shell: "echo started; read x", Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(proc.Stdout(), make([]byte, len("started\n"))); err != nil {
				t.Fatal(err)
			}
			killNamed(t, name, id)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if exit, err := in.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonCrashed {
				t.Errorf("Wait = %+v, %v; want reason %s", exit, err, sandbox.ReasonCrashed)
			}
			if exit, err := proc.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonCrashed {
				t.Errorf("the command's Wait = %+v, %v; want reason %s", exit, err, sandbox.ReasonCrashed)
			}
			if err := in.Destroy(ctx); err != nil {
				t.Errorf("Destroy: %v", err)
			}
			nothingLeft(t, state, id)
		})
	}
}

func killNamed(t *testing.T, name string, id sandbox.ID) {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		b, _ := os.ReadFile(f)
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if args[0] == name && slices.Contains(args, string(id)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return
		}
	}
	t.Fatalf("no process %s of %s", name, id)
}
