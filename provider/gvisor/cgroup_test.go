package gvisor

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
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
		root := cgroupRoot{version: version, dirs: map[string]string{ctlCPU: parent, ctlMemory: parent, ctlPIDs: parent}}
		g := root.group("box")
		if err := os.Mkdir(filepath.Join(parent, "box"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name := range want {
			if err := os.WriteFile(filepath.Join(parent, "box", name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.create(limits{cpus: 1.5, memory: 64 << 20, pids: 100}); err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			b, err := os.ReadFile(filepath.Join(parent, "box", name))
			if err != nil || string(b) != value {
				t.Errorf("version %d: %s = %q, %v; want %q", version, name, b, err, value)
			}
		}
		if got := g.memoryLimit(); got != 64<<20 {
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

// TestLimit checks when a group is at its limit: the cache of files does not count.
func TestLimit(t *testing.T) {
	for version, name := range map[int]struct{ usage, limit, prefix string }{
		1: {"memory.usage_in_bytes", "memory.limit_in_bytes", "total_"},
		2: {"memory.current", "memory.high", ""},
	} {
		dir := t.TempDir()
		write := func(name, content string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b := box{t.TempDir()}
		rec := &record{Spec: sandboxDescription{Resources: sandbox.Resources{Memory: 96 << 20}}}
		if err := b.save(rec); err != nil {
			t.Fatal(err)
		}
		m := &memoryGuard{box: b, rec: rec}
		g := &cgroup{version: version, dirs: map[string]string{ctlMemory: dir}}
		const limit = 96 << 20
		hard := strconv.Itoa(limit)
		if version == 1 {
			hard = strconv.Itoa(int(hardLimit(limit)))
		}
		state := func(used, cached int) {
			t.Helper()
			write(name.usage, strconv.Itoa(used))
			write("memory.stat", fmt.Sprintf("%sactive_file %d\n%sinactive_file %d\n", name.prefix, cached/3, name.prefix, cached-cached/3))
			if got := g.held(); got != int64(used-cached) {
				t.Errorf("version %d: a group with %d bytes and a cache of %d holds %d", version, used, cached, got)
			}
		}
		write(name.limit, hard)
		for _, tc := range []struct {
			used, cached int
			want         bool
		}{
			{limit - 1, 0, false},
			{limit, 0, true},
			{limit + 1<<20, 1 << 20, true},
			{limit + 8<<20, 32 << 20, false},
		} {
			state(tc.used, tc.cached)
			if got := m.starves(g); got != tc.want {
				t.Errorf("version %d: with %d bytes and a cache of %d, it is at its limit: %v", version, tc.used, tc.cached, got)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, name.limit)); string(got) != hard {
				t.Errorf("version %d: %s is %s afterwards, want %s", version, name.limit, got, hard)
			}
		}
	}
}

func TestNoCgroup(t *testing.T) {
	var g *cgroup
	if cgroupRoot(cgroupRoot{}).group("x") != nil {
		t.Error("a machine without control groups has one")
	}
	if err := g.create(limits{memory: 1}); err != nil {
		t.Error(err)
	}
	g.kill()
	if err := g.remove(); err != nil || g.memoryKills() != 0 || g.processes() != nil {
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
		g := &cgroup{version: tc.version, dirs: map[string]string{ctlMemory: dir}}
		if got := g.memoryKills(); got != tc.want {
			t.Errorf("v%d %q: memoryKills = %v", tc.version, tc.content, got)
		}
	}
}

// TestStandstill checks groups whose files are read again and again because
// programs use all other memory, and some that are only busy.
func TestStandstill(t *testing.T) {
	const limit = 64 << 20
	for _, tc := range []struct {
		name          string
		before, again int64 // pages
		files         string
		want          int
	}{
		{"programs are read again as soon as they are given back", 50_000, 30_000, "active_file 20480\ninactive_file 2826240\n", 3},
		{"nothing is read again", 50_000, 0, "active_file 0\ninactive_file 0\n", 0},
		{"a few pages are", 50_000, 400, "active_file 0\ninactive_file 8192\n", 0},
		{"a large file is read again and again beside a small program", 50_000, 30_000, "active_file 0\ninactive_file 50000000\n", 0},
		{"less is read again than there is", 50_000, 5_000, "active_file 0\ninactive_file 40000000\n", 0},
	} {
		for version, file := range map[int]setting{
			1: {file: "memory.limit_in_bytes", value: strconv.FormatInt(hardLimit(limit), 10)},
			2: {file: "memory.high", value: strconv.Itoa(limit)},
		} {
			g := &cgroup{version: version, dirs: map[string]string{ctlMemory: t.TempDir()}}
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(g.dirs[ctlMemory], name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(file.file, file.value)
			seen := sight{read: tc.before, times: 2}
			write("memory.stat", fmt.Sprintf("shmem 49127424\nworkingset_refault_file %d\n%s", tc.before+tc.again, tc.files))
			if got := g.look(seen); got.times != tc.want {
				t.Errorf("version %d: %s: seen %d times, want %d", version, tc.name, got.times, tc.want)
			}
		}
	}
	if got := (*cgroup)(nil).look(sight{times: 1}); got.times != 1 {
		t.Errorf("without a group: %+v", got)
	}
}
