package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/sandbox"
)

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
		b := stateDir{t.TempDir()}
		rec := &record{Spec: sandboxDescription{Resources: sandbox.Resources{Memory: 96 << 20}}}
		if err := b.save(rec); err != nil {
			t.Fatal(err)
		}
		m := &memoryGuard{stateDir: b, rec: rec}
		g := &cgroup.Group{Version: version, Dirs: map[string]string{cgroup.Memory: dir}}
		const limit = 96 << 20
		hard := strconv.Itoa(limit)
		if version == 1 {
			hard = strconv.Itoa(limit + cgroup.MinReserve)
		}
		state := func(used, cached int) {
			t.Helper()
			write(name.usage, strconv.Itoa(used))
			write("memory.stat", fmt.Sprintf("%sactive_file %d\n%sinactive_file %d\n", name.prefix, cached/3, name.prefix, cached-cached/3))
			if got := g.Held(); got != int64(used-cached) {
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
		for version, file := range map[int]struct{ file, value string }{
			1: {"memory.limit_in_bytes", strconv.Itoa(limit + cgroup.MinReserve)},
			2: {"memory.high", strconv.Itoa(limit)},
		} {
			g := &cgroup.Group{Version: version, Dirs: map[string]string{cgroup.Memory: t.TempDir()}}
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(g.Dirs[cgroup.Memory], name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(file.file, file.value)
			seen := sight{read: tc.before, times: 2}
			write("memory.stat", fmt.Sprintf("shmem 49127424\nworkingset_refault_file %d\n%s", tc.before+tc.again, tc.files))
			if got := standstill(g, seen); got.times != tc.want {
				t.Errorf("version %d: %s: seen %d times, want %d", version, tc.name, got.times, tc.want)
			}
		}
	}
	if got := standstill(nil, sight{times: 1}); got.times != 1 {
		t.Errorf("without a group: %+v", got)
	}
}
