// Package cgroup limits sandboxes by control groups of the host, of version 1 or
// 2, and reads what they use.
//
// A group may use a reserve above its memory limit, so that its owner has time to
// make room in it; see Events.
package cgroup

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

// Root describes the control groups of this machine and the limits that this
// process may set there. The zero value has none.
type Root struct {
	Version int               // 2, 1, or 0 for none
	Dirs    map[string]string // controller → directory in which groups are created
	Why     string            // what is missing, for messages
}

// Controllers that carry limits.
const (
	CPU    = "cpu"
	Memory = "memory"
	PIDs   = "pids"

	// account only counts processor time. Version 2 always does that.
	account = "cpuacct"
)

var controllers = []string{CPU, Memory, PIDs}

// groupParent is the name of the directory that contains all of Atoll's groups.
const groupParent = "atoll"

// Find finds the control groups that this process may use. It creates Atoll's
// parent group.
func Find() Root {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
		}
		return Root{Why: err.Error()}
	}
	self, _ := os.ReadFile("/proc/self/cgroup")
	return find(string(mounts), string(self))
}

// find finds the directories in which groups can be created. It creates
// Atoll's parent group, because only that shows whether it is permitted.
func find(mountinfo, self string) Root {
	v2, v1 := cgroupMounts(mountinfo)
	if v2 != "" && len(v1) == 0 {
		return findUnified(v2, self)
	}
	root := Root{Version: 1, Dirs: map[string]string{}}
	var missing []string
	for _, ctl := range controllers {
		dir := v1[ctl]
		if dir == "" {
			missing = append(missing, ctl+" is not mounted")
			continue
		}
		parent := filepath.Join(dir, groupParent)
		if err := mkdirGroup(parent); err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", ctl, err))
			continue
		}
		root.Dirs[ctl] = parent
	}
	root.Why = strings.Join(missing, "; ")
	if len(root.Dirs) == 0 {
		root.Version = 0
		return root
	}
	if dir := v1[account]; dir != "" {
		if parent := filepath.Join(dir, groupParent); mkdirGroup(parent) == nil {
			root.Dirs[account] = parent
		}
	}
	return root
}

// findUnified tries this process's own group first, which may be delegated to
// the user, and then the top, for root.
func findUnified(mount, self string) Root {
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
			why = err.Error()
			continue
		}
		enabled := enableControllers(dir, parent)
		if len(enabled) == 0 {
			why = "no controller could be enabled below " + dir
			_ = os.Remove(parent)
			continue
		}
		root := Root{Version: 2, Dirs: map[string]string{}}
		var missing []string
		for _, ctl := range controllers {
			if enabled[ctl] {
				root.Dirs[ctl] = parent
			} else {
				missing = append(missing, ctl+" is not delegated")
			}
		}
		root.Why = strings.Join(missing, "; ")
		return root
	}
	return Root{Why: why}
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
	err := unix.Mkdir(dir, 0o755)
	if err == unix.EEXIST {
		// It may belong to another user.
		return unix.Access(dir, unix.W_OK)
	}
	return err
}

// Of returns the group of a process, if it is a sandbox's.
func (r Root) Of(pid int) *Group {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(text)) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":/")
		for _, parent := range r.Dirs {
			if filepath.Base(filepath.Dir(group)) == filepath.Base(parent) {
				return r.Group(filepath.Base(group))
			}
		}
	}
	return nil
}

// Group is the control group of one sandbox. Its methods take nil, which has no
// group, unless they read or set memory. A Group may be used concurrently.
type Group struct {
	Version int
	Dirs    map[string]string // controller → the group's own directory
}

// Limits are the limits of one sandbox. Zero sets no limit, a negative value
// removes it.
type Limits struct {
	CPUs   float64 // processors
	Memory int64   // bytes
	PIDs   int64   // processes and threads of the host
}

// Group returns the group of a sandbox without creating it.
func (r Root) Group(id string) *Group {
	if r.Version == 0 {
		return nil
	}
	g := &Group{Version: r.Version, Dirs: map[string]string{}}
	for ctl, parent := range r.Dirs {
		g.Dirs[ctl] = filepath.Join(parent, id)
	}
	return g
}

// Create creates the group and sets its limits. On an error it removes the
// group.
func (g *Group) Create(l Limits) (err error) {
	if g == nil {
		return nil
	}
	defer func() {
		if err != nil {
			_ = g.Remove()
		}
	}()
	for _, dir := range g.Dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making the control group: %w", err)
		}
	}
	for _, s := range g.settings(l) {
		dir, ok := g.Dirs[s.ctl]
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
func (g *Group) settings(l Limits) []setting {
	var s []setting
	if g.Version == 2 {
		if l.CPUs != 0 {
			s = append(s, setting{CPU, "cpu.max", Quota(l.CPUs, "max") + " 100000", false})
		}
		if l.Memory != 0 {
			s = append(s,
				setting{Memory, "memory.high", Amount(l.Memory, "max"), false},
				setting{Memory, "memory.max", Amount(hardLimit(l.Memory), "max"), false},
				setting{Memory, "memory.swap.max", "0", true})
		}
	} else {
		if l.CPUs != 0 {
			s = append(s,
				setting{CPU, "cpu.cfs_period_us", "100000", false},
				setting{CPU, "cpu.cfs_quota_us", Quota(l.CPUs, "-1"), false})
		}
		if l.Memory != 0 {
			pair := []setting{
				{Memory, "memory.limit_in_bytes", Amount(hardLimit(l.Memory), "-1"), false},
				{Memory, "memory.memsw.limit_in_bytes", Amount(hardLimit(l.Memory), "-1"), true},
			}
			if g.raises(hardLimit(l.Memory)) {
				slices.Reverse(pair)
			}
			s = append(s, pair...)
		}
	}
	if l.PIDs != 0 {
		s = append(s, setting{PIDs, "pids.max", Amount(l.PIDs, "max"), false})
	}
	return s
}

// Amount formats a limit for the kernel.
func Amount(n int64, none string) string {
	if n < 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

// Quota formats the processor time per 100 ms, in microseconds.
func Quota(cpus float64, none string) string {
	if cpus < 0 {
		return none
	}
	return strconv.FormatInt(int64(cpus*100_000), 10)
}

// EnterOnClone makes a process start inside the group if the kernel supports
// that. The caller calls release after the start.
func (g *Group) EnterOnClone(attr *syscall.SysProcAttr) (release func(), err error) {
	if g == nil || g.Version != 2 {
		return func() {}, nil
	}
	f, err := os.Open(g.anyDir())
	if err != nil {
		return nil, err
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	return func() { f.Close() }, nil
}

// Add moves a new process into the group.
func (g *Group) Add(pid int) error {
	if g == nil || g.Version == 2 {
		return nil
	}
	for _, dir := range g.Dirs {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("entering the control group: %w", err)
		}
	}
	return nil
}

func (g *Group) anyDir() string {
	for _, dir := range g.Dirs {
		return dir
	}
	return ""
}

// MemoryKills counts the processes of the group that the host killed because
// the group reached its memory limit.
func (g *Group) MemoryKills() int {
	if g == nil || g.Dirs[Memory] == "" {
		return 0
	}
	file := "memory.oom_control"
	if g.Version == 2 {
		file = "memory.events"
	}
	for line := range strings.Lines(readCounters(filepath.Join(g.Dirs[Memory], file))) {
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

// Processes lists the processes in the group.
func (g *Group) Processes() []int {
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

// Kill kills every process in the group.
func (g *Group) Kill() {
	if g == nil {
		return
	}
	if g.Version == 2 && os.WriteFile(filepath.Join(g.anyDir(), "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	for _, pid := range g.Processes() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// Remove removes the group after its processes were killed. The kernel refuses
// until the last process is reaped, so Remove retries for a while.
func (g *Group) Remove() error {
	if g == nil {
		return nil
	}
	var first error
	for _, dir := range g.Dirs {
		if err := g.removeDir(dir); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (g *Group) removeDir(dir string) error {
	deadline := time.Now().Add(10 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return fmt.Errorf("removing the control group %s: %w", dir, err)
		}
		g.Kill()
		time.Sleep(wait)
	}
}

// Has reports whether the group has a controller.
func (g *Group) Has(ctl string) bool { return g != nil && g.Dirs[ctl] != "" }

// Change sets limits of a group in use; negative values remove them. On an
// error some may have changed: undo, which is never nil, restores them.
func (g *Group) Change(l Limits) (undo func(), err error) {
	var done []func()
	undo = func() {
		for i := len(done) - 1; i >= 0; i-- {
			done[i]()
		}
	}
	if g == nil {
		return undo, nil
	}
	for _, s := range g.settings(l) {
		dir, ok := g.Dirs[s.ctl]
		if !ok {
			continue
		}
		file := filepath.Join(dir, s.file)
		old, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(s.value), 0)
		}
		switch {
		case err == nil:
			done = append(done, func() { _ = os.WriteFile(file, []byte(strings.TrimSpace(string(old))), 0) })
		case !s.optional:
			return undo, fmt.Errorf("setting %s: %w", s.file, err)
		}
	}
	return undo, nil
}

// raises reports whether a hard limit is above the present one. Version 1 has
// two limits, one of which must never exceed the other.
func (g *Group) raises(memory int64) bool {
	if memory < 0 {
		return true
	}
	b, err := os.ReadFile(filepath.Join(g.Dirs[Memory], "memory.limit_in_bytes"))
	if err != nil {
		return false
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return err == nil && memory > now
}
