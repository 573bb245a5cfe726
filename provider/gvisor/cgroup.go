package gvisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupRoot describes the control groups of this machine and the limits that
// this process may set there. The zero value has none.
type cgroupRoot struct {
	version int               // 2, 1, or 0 for none
	dirs    map[string]string // controller → directory in which groups are created
	why     string            // what is missing, for messages
}

// Controllers that carry limits.
const (
	ctlCPU    = "cpu"
	ctlMemory = "memory"
	ctlPIDs   = "pids"

	// ctlAccount only counts processor time. Version 2 always does that.
	ctlAccount = "cpuacct"
)

var controllers = []string{ctlCPU, ctlMemory, ctlPIDs}

// groupParent is the name of the directory that contains all of Atoll's groups.
const groupParent = "atoll"

// findCgroups finds the directories in which groups can be created. It creates
// Atoll's parent group, because only that shows whether it is permitted.
func findCgroups(mountinfo, self string) cgroupRoot {
	v2, v1 := cgroupMounts(mountinfo)
	if v2 != "" && len(v1) == 0 {
		return findUnified(v2, self)
	}
	root := cgroupRoot{version: 1, dirs: map[string]string{}}
	var missing []string
	for _, ctl := range controllers {
		dir := v1[ctl]
		if dir == "" {
			missing = append(missing, ctl+" is not mounted")
			continue
		}
		parent := filepath.Join(dir, groupParent)
		if err := mkdirGroup(parent); err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", ctl, reason(err)))
			continue
		}
		root.dirs[ctl] = parent
	}
	root.why = strings.Join(missing, "; ")
	if len(root.dirs) == 0 {
		root.version = 0
		return root
	}
	if dir := v1[ctlAccount]; dir != "" {
		if parent := filepath.Join(dir, groupParent); mkdirGroup(parent) == nil {
			root.dirs[ctlAccount] = parent
		}
	}
	return root
}

// findUnified tries this process's own group first, which may be delegated to
// the user, and then the top, for root.
func findUnified(mount, self string) cgroupRoot {
	candidates := []string{mount}
	if own := ownUnifiedGroup(self); own != "" && own != "/" {
		// A group with processes cannot enable controllers for its children, so
		// Atoll's parent is created beside it.
		candidates = []string{filepath.Dir(filepath.Join(mount, own)), mount}
	}
	why := "no cgroup v2 hierarchy is mounted"
	for _, dir := range candidates {
		parent := filepath.Join(dir, groupParent)
		if err := mkdirGroup(parent); err != nil {
			why = reason(err)
			continue
		}
		enabled := enableControllers(dir, parent)
		if len(enabled) == 0 {
			why = "no controller could be enabled below " + dir
			_ = os.Remove(parent)
			continue
		}
		root := cgroupRoot{version: 2, dirs: map[string]string{}}
		var missing []string
		for _, ctl := range controllers {
			if enabled[ctl] {
				root.dirs[ctl] = parent
			} else {
				missing = append(missing, ctl+" is not delegated")
			}
		}
		root.why = strings.Join(missing, "; ")
		return root
	}
	return cgroupRoot{why: why}
}

func enableControllers(dir, parent string) map[string]bool {
	for _, d := range []string{dir, parent} {
		for _, ctl := range controllers {
			// One at a time, because the kernel rejects a list if it rejects one entry.
			_ = os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+"+ctl), 0)
		}
	}
	enabled := map[string]bool{}
	b, _ := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
	for _, ctl := range strings.Fields(string(b)) {
		enabled[ctl] = true
	}
	return enabled
}

// cgroupMounts parses /proc/self/mountinfo for the cgroup hierarchies.
func cgroupMounts(mountinfo string) (v2 string, v1 map[string]string) {
	v1 = map[string]string{}
	sc := bufio.NewScanner(strings.NewReader(mountinfo))
	for sc.Scan() {
		pre, post, ok := strings.Cut(sc.Text(), " - ")
		f, p := strings.Fields(pre), strings.Fields(post)
		if !ok || len(f) < 5 || len(p) < 3 {
			continue
		}
		switch p[0] {
		case "cgroup2":
			v2 = f[4]
		case "cgroup":
			for _, opt := range strings.Split(p[2], ",") {
				v1[opt] = f[4]
			}
		}
	}
	for _, ctl := range controllers {
		if v1[ctl] != "" {
			return v2, v1
		}
	}
	return v2, nil
}

// ownUnifiedGroup returns this process's group from /proc/self/cgroup.
func ownUnifiedGroup(self string) string {
	for _, line := range strings.Split(self, "\n") {
		if g, ok := strings.CutPrefix(line, "0::"); ok {
			return g
		}
	}
	return ""
}

func mkdirGroup(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		// It may belong to another user.
		return unix.Access(dir, unix.W_OK)
	}
	return err
}

func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// cgroup is the control group of one sandbox; nil: there is none.
type cgroup struct {
	version int
	dirs    map[string]string // controller → the group's own directory
}

// limits of one sandbox. Zero sets no limit, a negative value removes it.
type limits struct {
	cpus   float64
	memory int64
	pids   int64
}

// group returns the group of a sandbox without creating it.
func (r cgroupRoot) group(id string) *cgroup {
	if r.version == 0 {
		return nil
	}
	g := &cgroup{version: r.version, dirs: map[string]string{}}
	for ctl, parent := range r.dirs {
		g.dirs[ctl] = filepath.Join(parent, id)
	}
	return g
}

// create creates the group and sets its limits. On an error it removes the
// group.
func (g *cgroup) create(l limits) (err error) {
	if g == nil {
		return nil
	}
	defer func() {
		if err != nil {
			_ = g.remove()
		}
	}()
	for _, dir := range g.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making the control group: %w", err)
		}
	}
	for _, s := range g.settings(l) {
		dir, ok := g.dirs[s.ctl]
		if !ok {
			continue
		}
		err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.value), 0)
		if err != nil && !s.optional {
			return fmt.Errorf("setting %s: %w", s.file, err)
		}
	}
	return nil
}

type setting struct {
	ctl, file, value string
	optional         bool
}

// settings returns the files that set the limits, in an order that the kernel
// accepts.
func (g *cgroup) settings(l limits) []setting {
	var s []setting
	if g.version == 2 {
		if l.cpus != 0 {
			s = append(s, setting{ctlCPU, "cpu.max", quota(l.cpus, "max") + " 100000", false})
		}
		if l.memory != 0 {
			s = append(s,
				setting{ctlMemory, "memory.high", amount(l.memory, "max"), false},
				setting{ctlMemory, "memory.max", amount(hardLimit(l.memory), "max"), false},
				setting{ctlMemory, "memory.swap.max", "0", true})
		}
	} else {
		if l.cpus != 0 {
			s = append(s,
				setting{ctlCPU, "cpu.cfs_period_us", "100000", false},
				setting{ctlCPU, "cpu.cfs_quota_us", quota(l.cpus, "-1"), false})
		}
		if l.memory != 0 {
			pair := []setting{
				{ctlMemory, "memory.limit_in_bytes", amount(hardLimit(l.memory), "-1"), false},
				{ctlMemory, "memory.memsw.limit_in_bytes", amount(hardLimit(l.memory), "-1"), true},
			}
			if g.raises(hardLimit(l.memory)) {
				slices.Reverse(pair)
			}
			s = append(s, pair...)
		}
	}
	if l.pids != 0 {
		s = append(s, setting{ctlPIDs, "pids.max", amount(l.pids, "max"), false})
	}
	return s
}

// amount formats a limit for the kernel.
func amount(n int64, none string) string {
	if n < 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

// quota formats the processor time per 100 ms, in microseconds.
func quota(cpus float64, none string) string {
	if cpus < 0 {
		return none
	}
	return strconv.FormatInt(int64(cpus*100_000), 10)
}

// enterOnClone makes a process start inside the group if the kernel supports
// that. The caller calls release after the start.
func (g *cgroup) enterOnClone(attr *syscall.SysProcAttr) (release func(), err error) {
	if g == nil || g.version != 2 {
		return func() {}, nil
	}
	f, err := os.Open(g.anyDir())
	if err != nil {
		return nil, err
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	return func() { f.Close() }, nil
}

// add moves a new process into the group.
func (g *cgroup) add(pid int) error {
	if g == nil || g.version == 2 {
		return nil
	}
	for _, dir := range g.dirs {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("entering the control group: %w", err)
		}
	}
	return nil
}

func (g *cgroup) anyDir() string {
	for _, dir := range g.dirs {
		return dir
	}
	return ""
}

// memoryKills counts the processes of the group that the host killed because
// the group reached its memory limit.
func (g *cgroup) memoryKills() int {
	if g == nil || g.dirs[ctlMemory] == "" {
		return 0
	}
	file := "memory.oom_control"
	if g.version == 2 {
		file = "memory.events"
	}
	for line := range strings.Lines(readCounters(filepath.Join(g.dirs[ctlMemory], file))) {
		if s, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(s))
			return n
		}
	}
	return 0
}

// readCounters reads a small file of the kernel. It runs for every command, and
// os.ReadFile needs twice as many system calls.
func readCounters(name string) string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b [512]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// processes lists the processes in the group.
func (g *cgroup) processes() []int {
	if g == nil {
		return nil
	}
	var pids []int
	b, _ := os.ReadFile(filepath.Join(g.anyDir(), "cgroup.procs"))
	for _, s := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(s); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill kills every process in the group.
func (g *cgroup) kill() {
	if g == nil {
		return
	}
	if g.version == 2 && os.WriteFile(filepath.Join(g.anyDir(), "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	for _, pid := range g.processes() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// remove removes the group after its processes were killed. The kernel refuses
// until the last process is reaped, so remove retries for a while.
func (g *cgroup) remove() error {
	if g == nil {
		return nil
	}
	var first error
	for _, dir := range g.dirs {
		if err := g.removeDir(dir); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (g *cgroup) removeDir(dir string) error {
	deadline := time.Now().Add(10 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return fmt.Errorf("removing the control group %s: %w", dir, err)
		}
		g.kill()
		time.Sleep(wait)
	}
}
