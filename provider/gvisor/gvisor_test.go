package gvisor_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// TestMain builds the program that kernels run from. The test binary cannot be
// used, because with the race detector it is not static.
func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if os.Getenv(victimEnv) != "" {
		return victim()
	}
	// All temporary files go there, so that they are removed even if this is
	// killed.
	dir, remove, err := scratch.Dir("atoll-gvisor-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = remove() }()
	os.Setenv("TMPDIR", dir)
	if os.Getenv("ATOLL_KERNEL") == "" {
		kernel := filepath.Join(dir, "atoll")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", kernel, "../../cmd/atoll")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building the kernel: %v\n%s", err, out)
			return 1
		}
		os.Setenv("ATOLL_KERNEL", kernel)
	}
	if imagesDir = os.Getenv("ATOLL_TEST_IMAGES"); imagesDir == "" {
		imagesDir = filepath.Join(dir, "images")
	}
	snapshotDir = filepath.Join(dir, "snapshots")
	if err := os.Mkdir(snapshotDir, 0o700); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// imagesDir is the image store of all tests. Its images are shared, as in
// production.
var imagesDir string

var images = sync.OnceValues(func() (*image.Store, error) { return image.Open(imagesDir, image.Options{}) })

// newProvider returns a provider with a new state directory.
func newProvider(tb testing.TB, change func(*gvisor.Options)) *gvisor.Provider {
	tb.Helper()
	opts := gvisor.Options{StateDir: tb.TempDir(), SnapshotDir: snapshotDir, Attached: true}
	store, err := images()
	if err != nil {
		tb.Fatal(err)
	}
	opts.Images = store
	if change != nil {
		change(&opts)
	}
	p, err := gvisor.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

// create creates a sandbox that is destroyed when the test ends.
func create(tb testing.TB, p *gvisor.Provider, spec sandbox.Spec) driver.Instance {
	tb.Helper()
	if spec.ID == "" {
		spec.ID = "test"
	}
	in, err := p.Create(context.Background(), &spec)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			tb.Errorf("destroying the sandbox: %v", err)
		}
	})
	return in
}

func TestConformance(t *testing.T) {
	state := t.TempDir()
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	drivertest.Run(t, drivertest.Harness{
		SnapshotFiles: func(ref driver.SnapshotRef) string { return filepath.Join(state, "snapshots", ref.Data, "files") },
		New: func(context.Context) (driver.Provider, error) {
			return gvisor.New(gvisor.Options{StateDir: state, Images: store})
		},
		Spec: func() sandbox.Spec {
			return sandbox.Spec{Image: "host", Resources: sandbox.Resources{Memory: 512 << 20, Disk: 512 << 20, PIDs: 256}}
		},
		Parallel: true,
	})
}

// shorter returns n, or less in short mode.
func shorter(n, less int) int {
	if testing.Short() {
		return less
	}
	return n
}

// TestManyAtOnce creates sandboxes concurrently. The two processes of a sandbox
// must not depend on the order in which they start.
func TestManyAtOnce(t *testing.T) {
	p := newProvider(t, nil)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			in, err := p.Create(t.Context(), &sandbox.Spec{ID: sandbox.ID(fmt.Sprint("many-", i)), Image: "host"})
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if err := answers(t.Context(), in); err != nil {
				t.Errorf("exec: %v", err)
			}
			if err := in.Destroy(t.Context()); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	wg.Wait()
}

// TestConformanceRootless runs the suite as an unprivileged user, through the
// command for users. Without root, TestConformance does that.
func TestConformanceRootless(t *testing.T) {
	need.Full(t, "TestConformance runs the suite as root")
	need.Root(t, "otherwise TestConformance does it")
	home, err := os.MkdirTemp("", "atoll-nobody-") //nolint:usetesting // the user nobody cannot traverse t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	const nobody = 65534
	if err := os.Chown(home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Getenv("ATOLL_KERNEL"), "provider", "check", "gvisor")
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(" 0 failed")) {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out[bytes.LastIndex(out, []byte("gvisor:")):])
}

// TestProbeIsSteady probes repeatedly: the process that a probe starts may have
// ended before the probe looks at it.
func TestProbeIsSteady(t *testing.T) {
	p := newProvider(t, nil)
	for range shorter(200, 20) {
		facts, err := p.Probe(t.Context())
		if err != nil || !facts.Available {
			t.Fatalf("%+v, %v", facts.Findings, err)
		}
	}
}

// TestPool checks that a sandbox from the pool has all features of a new one.
func TestPool(t *testing.T) {
	p := newProvider(t, nil)
	res := sandbox.Resources{Memory: 256 << 20}
	if err := p.Warm(t.Context(), &sandbox.Spec{Image: "host", Resources: res}, 1); err != nil {
		t.Fatal(err)
	}
	for _, id := range []sandbox.ID{"pooled", "made"} { // the pool is empty for the second
		in := create(t, p, sandbox.Spec{
			ID: id, Image: "host", Resources: res, Hostname: string(id), Env: map[string]string{"WHO": string(id)},
		})
		o := sh(t, in, `hostname; echo $WHO; stat -f -c %T /tmp; grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | sort -u -k2 | wc -l; `+
			`python3 -c 'import re; [print(int(c, 16) >> 21 & 1) for p in ("self", "1") for c in re.findall("Cap(?:Prm|Bnd):\\s*(\\w+)", open(f"/proc/{p}/status").read())]'; `+
			`python3 -c 'import socket; socket.sethostname("mine")' 2>/dev/null || echo refused`)
		lines := strings.Fields(o.stdout)
		if len(lines) != 9 || lines[0] != string(id) || lines[1] != string(id) || lines[2] == "tmpfs" || lines[3] != "1" || strings.Join(lines[4:], "") != "0000refused" {
			t.Errorf("%s: %+v", id, o)
		}
	}
}

// TestProcessorAnswersItself checks that CPUID inside is executed by the
// processor, unless the processor can fault there: then the kernel emulates it.
// The test uses a leaf that the kernel does not emulate, for which it returns 0.
func TestProcessorAnswersItself(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Log("there is no such instruction")
		return
	}
	const script = `import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
m.write(bytes.fromhex("53 b800000040 0fa2 89d8 5b c3"))  # push rbx; mov eax, 0x40000000; cpuid; mov eax, ebx; pop rbx; ret
print(ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())`
	here, err := exec.CommandContext(t.Context(), need.Program(t, "python3"), "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := string(here)
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil && strings.Contains(string(info), " cpuid_fault") {
		want = "0\n"
	}
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host"})
	if o := python(t, in, script); o.stdout != want || o.exit.Code != 0 {
		t.Errorf("inside: %+v, want %q", o, want)
	}
}

// TestKernelSeesTheLoad checks that a working kernel keeps /proc/loadavg open
// and no other file of the host's /proc.
func TestKernelSeesTheLoad(t *testing.T) {
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host"})
	if o := python(t, in, "print(1)"); o.exit.Code != 0 {
		t.Fatalf("%+v", o)
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", in.(*gvisor.Instance).Kernel()))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	var seen []string
	for _, f := range files {
		// The file may have been closed meanwhile.
		if name, err := os.Readlink(f); err == nil && strings.HasPrefix(name, "/proc/") {
			seen = append(seen, name)
		}
	}
	if !slices.Equal(seen, []string{"/proc/loadavg"}) {
		t.Errorf("the kernel has of /proc: %q", seen)
	}
}
