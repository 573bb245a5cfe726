package microvm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestInitrd reads an archive as the kernel does.
func TestInitrd(t *testing.T) {
	text := string(initrd([]byte("program"), []module{{"one", []byte("1")}, {"two", []byte("22")}}))
	for _, want := range []string{
		strings.TrimPrefix(guest.Path, "/") + "\x00", "modules/00-one.ko\x00", "modules/01-two.ko\x00", "program", "TRAILER!!!\x00",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the archive lacks %q", want)
		}
	}
	for at := 0; at < len(text); at++ {
		if strings.HasPrefix(text[at:], "070701") && at%4 != 0 {
			t.Errorf("a header is at offset %d, which is not a multiple of 4", at)
		}
	}
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		return // what follows only repeats it
	}
	cmd := exec.CommandContext(t.Context(), cpio, "-t", "--quiet")
	cmd.Stdin = strings.NewReader(text)
	list, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(list), "modules/01-two.ko") {
		t.Errorf("cpio: %v\n%s", err, list)
	}
}

func TestDefaults(t *testing.T) {
	if r := withDefaults(sandbox.Resources{}); r.Memory != DefaultMemory || r.Disk != DefaultDisk || r.PIDs != DefaultPIDs || r.CPUs != 0 {
		t.Errorf("defaults: %+v", r)
	}
	if r := withDefaults(sandbox.Resources{Memory: -1, Disk: -1, PIDs: -1, CPUs: -1}); r.Memory <= 0 || r.Disk != unlimitedDisk || r.PIDs != 0 || r.CPUs != 0 {
		t.Errorf("without limits: %+v", r)
	}
	if r := withDefaults(sandbox.Resources{Memory: 1 << 20, Disk: 2 << 20, PIDs: 3, CPUs: 0.5}); r != (sandbox.Resources{Memory: 1 << 20, Disk: 2 << 20, PIDs: 3, CPUs: 0.5}) {
		t.Errorf("limits are changed: %+v", r)
	}
}

// TestGuard checks that a guard ends its process, and no other one.
func TestGuard(t *testing.T) {
	start := func() (process, *exec.Cmd) {
		cmd := exec.CommandContext(t.Context(), "sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return processOf(cmd.Process.Pid), cmd
	}
	meant, cmd := start()
	other, spared := start()
	if _, err := guard(meant, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	stale := other
	stale.Start-- // the number belonged to an earlier process
	g, err := guard(stale, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	if !g.awaitEnd(30*time.Second) || !other.alive() {
		t.Error("a guard ended a process that it was not for")
	}
	other.kill()
	_ = spared.Wait()
}

// TestDisk saves a disk with holes and loads it again.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 8<<20)
	for _, at := range []int{0, 1 << 20, 1<<20 + 4096, 5 << 20, 8<<20 - 1} {
		content[at] = byte(at>>12) + 1
	}
	f, err := os.Create(filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at := range content {
		if content[at] != 0 {
			if _, err := f.WriteAt(content[at:at+1], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Truncate(64 << 20); err != nil { // it ends with a hole
		t.Fatal(err)
	}
	s := &saved{dir: dir}
	if err := s.saveDisk(t.Context(), f.Name(), filepath.Join(dir, snapDisk)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, snapDisk))
	if err != nil || info.Size() > 1<<20 {
		t.Errorf("the snapshot has %d bytes, %v", info.Size(), err)
	}
	out, err := s.loadDisk(t.Context(), filepath.Join(dir, "again"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	got, err := os.ReadFile(out.Name())
	if err != nil || len(got) != 64<<20 || !bytes.Equal(got[:len(content)], content) {
		t.Errorf("the loaded disk has %d bytes and is different, %v", len(got), err)
	}
}
