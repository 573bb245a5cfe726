package cgroup

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/need"
)

const (
	mountsHybrid = `24 1 0:21 / /sys rw - sysfs sysfs rw
30 24 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
32 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
	mountsUnified = `24 1 0:21 / /sys rw - sysfs sysfs rw
30 24 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
`
	mountsNone = "24 1 0:21 / /sys rw - sysfs sysfs rw\nnot a mount line\n"
)

func TestCgroupMounts(t *testing.T) {
	for _, tc := range []struct {
		name, mounts, v2 string
		v1               map[string]string
	}{
		{"hybrid", mountsHybrid, "/sys/fs/cgroup/unified", map[string]string{
			"rw": "/sys/fs/cgroup/pids", "cpu": "/sys/fs/cgroup/cpu", "cpuacct": "/sys/fs/cgroup/cpu",
			"memory": "/sys/fs/cgroup/memory", "pids": "/sys/fs/cgroup/pids",
		}},
		{"unified", mountsUnified, "/sys/fs/cgroup", nil},
		{"none", mountsNone, "", nil},
		{"empty", "", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v2, v1 := cgroupMounts(tc.mounts)
			if v2 != tc.v2 || !maps.Equal(v1, tc.v1) {
				t.Errorf("cgroupMounts = %q, %v; want %q, %v", v2, v1, tc.v2, tc.v1)
			}
		})
	}
}

func FuzzCgroupMounts(f *testing.F) {
	f.Add(mountsHybrid)
	f.Add(mountsUnified)
	f.Fuzz(func(t *testing.T, s string) { cgroupMounts(s) })
}

func TestOwnUnifiedGroup(t *testing.T) {
	for in, want := range map[string]string{
		"0::/user.slice/a.scope\n":       "/user.slice/a.scope",
		"5:memory:/x\n0::/\n":            "/",
		"5:memory:/x\n":                  "",
		"":                               "",
		"12:cpu,cpuacct:/y\n0::/deep/g ": "/deep/g ",
	} {
		if got := ownUnifiedGroup(in); got != want {
			t.Errorf("ownUnifiedGroup(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestSettings checks the values for both versions. A plain directory takes the
// place of the groups, so files are created instead of written.
func TestSettings(t *testing.T) {
	for version, want := range map[int]map[string]string{
		1: {
			"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000", "pids.max": "100",
			"memory.limit_in_bytes": "100663296", "memory.memsw.limit_in_bytes": "100663296",
		},
		2: {
			"cpu.max": "150000 100000", "memory.high": "67108864", "memory.max": "100663296", "memory.swap.max": "0", "pids.max": "100",
		},
	} {
		parent := t.TempDir()
		root := Root{Version: version, Dirs: map[string]string{CPU: parent, Memory: parent, PIDs: parent}}
		g := root.Group("box")
		if err := os.Mkdir(filepath.Join(parent, "box"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name := range want {
			if err := os.WriteFile(filepath.Join(parent, "box", name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Create(Limits{CPUs: 1.5, Memory: 64 << 20, PIDs: 100}); err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			b, err := os.ReadFile(filepath.Join(parent, "box", name))
			if err != nil || string(b) != value {
				t.Errorf("version %d: %s = %q, %v; want %q", version, name, b, err, value)
			}
		}
		if got := g.MemoryLimit(); got != 64<<20 {
			t.Errorf("version %d: the limit is read as %d bytes", version, got)
		}
	}
}

// TestReserve checks the reserve above a limit, and that the limit follows from
// both, as with version 1.
func TestReserve(t *testing.T) {
	for limit, want := range map[int64]int64{
		16 << 20: 48 << 20, 512 << 20: 544 << 20, 1 << 30: 1<<30 + 64<<20, 8 << 30: 8<<30 + 512<<20, 64 << 30: 64<<30 + 512<<20, -1: -1,
	} {
		if got := hardLimit(limit); got != want {
			t.Errorf("the hard limit of %d is %d, want %d", limit, got, want)
		}
	}
	for limit := int64(1); limit < 1<<40; limit += limit/7 + 1 {
		if got := softLimit(hardLimit(limit)); got != limit {
			t.Errorf("the limit that has the hard limit of %d is %d", limit, got)
		}
	}
}

func TestNoCgroup(t *testing.T) {
	var g *Group
	if (Root{}).Group("x") != nil {
		t.Error("a machine without control groups has one")
	}
	if err := g.Create(Limits{Memory: 1}); err != nil {
		t.Error(err)
	}
	g.Kill()
	if err := g.Remove(); err != nil || g.MemoryKills() != 0 || g.Processes() != nil {
		t.Error("no group is not empty")
	}
}

func TestMemoryKills(t *testing.T) {
	for _, tc := range []struct {
		version       int
		file, content string
		want          int
	}{
		{2, "memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\n", 2},
		{2, "memory.events", "low 0\nmax 12\noom_kill 0\n", 0},
		{1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1},
		{1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 0\n", 0},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, tc.file), []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		g := &Group{Version: tc.version, Dirs: map[string]string{Memory: dir}}
		if got := g.MemoryKills(); got != tc.want {
			t.Errorf("v%d %q: memoryKills = %v", tc.version, tc.content, got)
		}
	}
}

// TestThaw freezes a process in a real group of version 2, as former versions of
// Atoll did, and lets it go on.
func TestThaw(t *testing.T) {
	dir := ""
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
			dir = filepath.Join(mount, "atoll-test-thaw-"+strconv.Itoa(os.Getpid()))
		}
	}
	if dir == "" {
		need.Thing(t, "cgroup v2", "it is not mounted")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		need.Root(t, err.Error())
		t.Fatal(err)
	}
	g := &Group{Version: 2, Dirs: map[string]string{Memory: dir}}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	write := func(name, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	becomes := func(state string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
			if err == nil && strings.Contains(string(b), state+"\n") {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the group does not become %q: %q, %v", state, b, err)
			}
		}
	}
	write("cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	write("cgroup.freeze", "1")
	becomes("frozen 1")
	if err := g.Thaw(); err != nil {
		t.Fatal(err)
	}
	becomes("frozen 0")
}
