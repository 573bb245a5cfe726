package gvisor_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// racers is a program of many processes that wait for /root/go and take turns.
// Each calls clone3 while another of its threads changes CLONE_VM in the
// arguments. The child is machine code without a stack. It exits with a byte of
// the memory that it sees. Only the first child with a copy of the memory can
// be attacked.
const racers = `
import ctypes, mmap, os, threading, time
MB, WALL = 1 << 20, 0x40000000
def attack(n):
    m = mmap.mmap(-1, 4 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(4): m[i * MB:(i + 1) * MB] = bytes([77]) + os.urandom(MB - 1)
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex("b8b3010000" "0f05" "4885c0" "750c" "0fb63a" "b83c000000" "0f05" "9090" "c3"))
    code.seek(64)
    code.write(bytes.fromhex("80770101" "803e00" "74f7" "c3"))
    at = ctypes.addressof(ctypes.c_char.from_buffer(code))
    clone = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(at)
    flip = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(at + 64)
    args = (ctypes.c_uint64 * 11)(0x100)
    stop = ctypes.create_string_buffer(1)
    target = ctypes.addressof(ctypes.c_char.from_buffer(m, 2 * MB))
    open("/root/ready.%d" % n, "w").close()
    while not os.path.exists("/root/seen.%d" % (n - 1) if n else "/root/go"): time.sleep(0.02)
    thread = threading.Thread(target=flip, args=(ctypes.addressof(args), ctypes.addressof(stop)))
    thread.start()
    seen = {}
    for _ in range(20):
        pid = clone(ctypes.addressof(args), 88, target)
        saw = os.waitstatus_to_exitcode(os.waitpid(pid, WALL)[1]) if pid > 0 else pid
        seen[saw] = seen.get(saw, 0) + 1
    stop[0] = 1
    thread.join()
    with open("/root/tmp.%d" % n, "w") as f: f.write(repr(seen))
    os.rename("/root/tmp.%d" % n, "/root/seen.%d" % n)
for n in range(%d):
    if os.fork() == 0:
        attack(n)
        os._exit(0)
while True: time.sleep(1)
`

// TestAttackCloneFlags changes the flags of clone3 while the kernel reads them.
// A kernel that reads them twice could take the child for a thread and then
// copy its memory without the part that it shares with the snapshot. The child
// would read zeros.
func TestAttackCloneFlags(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		need.Thing(t, "amd64", "the attack is machine code")
	}
	need.Program(t, "python3")
	const n = 12
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", strings.Replace(racers, "%d):", fmt.Sprint(n)+"):", 1)}, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	waitFor(t, in, "ready", n)
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	twin, how := restore(t, p, dir, sandbox.Spec{ID: "copy", Image: "host"})
	if !how.Memory {
		t.Fatalf("the memory was not restored: %s", how.Why)
	}
	sh(t, twin, "touch /root/go")
	waitFor(t, twin, "seen", n)
	o := sh(t, twin, "cat /root/seen.*")
	if want := strings.Repeat("{77: 20}", n); o.stdout != want {
		t.Errorf("children saw %s, and not %s", o.stdout, want)
	}
	stillWorks(t, twin)
}

// waitFor waits until there are n files with a name.
func waitFor(t *testing.T, in driver.Instance, name string, n int) {
	t.Helper()
	o := sh(t, in, fmt.Sprintf(`i=0; while [ "$(ls /root/%s.* 2>/dev/null | wc -l)" != %d ]; do i=$((i+1)); [ $i -gt 1200 ] && exit 1; sleep 0.05; done`, name, n))
	if o.exit.Code != 0 {
		t.Fatalf("there are no %d files %s: %s", n, name, sh(t, in, "ls /root").stdout)
	}
}
