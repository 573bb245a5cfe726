package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/sandbox"
)

// A sandbox's state directory holds
//
//	record.json  the data to find the sandbox again; no secrets
//	upper        the file behind its writable layer
//	control      the socket for calls to its kernel
//	panic.log    the crash message of its kernel
//	guest.erofs  the image that its guest runs from
//	rest         present while it is paused; see Pause
//	lock         locked while that changes
//	starved      grows when it is at its memory limit
//	held         not empty while its kernel is stopped; see hold
//
// The kernel process inherits an open file description of upper that carries a
// shared lock. So the lock, and not a pid file, shows whether a sandbox is
// alive: it is free if and only if both the process that was creating the
// sandbox and the sandbox itself have ended.
const (
	fileRecord  = "record.json"
	fileUpper   = "upper"
	fileControl = "control"
	filePanic   = "panic.log"
	fileGuest   = "guest.erofs"
	fileRest    = "rest"
	fileLock    = "lock"
	fileStarved = "starved"
	fileHeld    = "held"

	halfMade = ".new-" // prefix of directories of sandboxes being created
)

// record is the stored record of a sandbox on disk.
type record struct {
	ID         sandbox.ID         `json:"id"`
	Created    time.Time          `json:"created"`
	Expires    time.Time          `json:"expires,omitzero"`
	Labels     map[string]string  `json:"labels,omitempty"`
	Attached   bool               `json:"attached,omitempty"` // ends with its maker
	Ready      bool               `json:"ready,omitempty"`    // creation has finished
	Destroying bool               `json:"doomed,omitempty"`   // it is being destroyed
	Maker      processRef         `json:"maker"`              // the process that creates it, until it is ready
	Inside     string             `json:"inside"`             // its ID in its kernel
	Group      string             `json:"group,omitempty"`    // of its processes inside, if not Inside
	Engine     string             `json:"engine,omitempty"`   // the engine that can restore its memory
	Guest      string             `json:"guest,omitempty"`    // digest of its guest's program
	Mounts     []string           `json:"mounts,omitempty"`   // targets of host mounts, in order
	Kernel     processRef         `json:"kernel,omitzero"`
	Gofer      processRef         `json:"gofer,omitzero"`
	Deadline   processRef         `json:"deadline,omitzero"`
	Cgroup     map[string]string  `json:"cgroup,omitempty"` // controller → directory
	Version    int                `json:"cgroupVersion,omitempty"`
	Spec       sandboxDescription `json:"spec"`
}

// sandboxDescription is the stored part of a Spec, without the environment.
type sandboxDescription struct {
	Image     string            `json:"image"`
	Digest    string            `json:"digest"`
	Resources sandbox.Resources `json:"resources"`
}

func (r *record) cgroup() *cgroup.Group {
	if r.Version == 0 {
		return nil
	}
	return &cgroup.Group{Version: r.Version, Dirs: r.Cgroup}
}

// group returns the control group inside that contains all its processes.
func (r *record) group() string {
	if r.Group != "" {
		return r.Group
	}
	return r.Inside
}

// processRef identifies a process, because a process number may be reused.
type processRef struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`          // clock ticks since boot
	Boot  string `json:"boot,omitempty"` // boot ID; empty in records of earlier versions
}

// bootID identifies the current boot of the machine. Processes of earlier boots
// no longer exist, whatever their number and start time.
var bootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, start times must suffice
	return strings.TrimSpace(string(id))
})

// refTo returns a reference to a running process.
func refTo(pid int) processRef {
	start, _ := startTime(pid)
	return processRef{PID: pid, Start: start, Boot: bootID()}
}

// elsewhen reports whether the process belongs to an earlier boot.
func (p processRef) elsewhen() bool { return p.Boot != "" && p.Boot != bootID() }

// alive reports whether the process still exists and is not a zombie.
func (p processRef) alive() bool {
	if p.PID == 0 || p.elsewhen() {
		return false
	}
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// kill kills the process, if it is still the same, without a race.
func (p processRef) kill() {
	if p.PID == 0 {
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if p.alive() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// stopped reports whether the process exists and is stopped by a signal.
func (p processRef) stopped() bool {
	f, err := processStat(p.PID)
	return err == nil && p.alive() && (f[0] == "T" || f[0] == "t")
}

// startTime returns when a process started. It fails for a zombie.
func startTime(pid int) (uint64, error) {
	f, err := processStat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[statStart], 10, 64)
}

// Indexes in the result of processStat. proc_pid_stat(5) counts from 3.
const (
	statParent   = 1
	statStart    = 19 // in ticks since the machine started
	statResident = 21 // in pages
)

// processStat returns the fields of /proc/PID/stat, from the state on.
func processStat(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	// The command name, in parentheses, may contain any bytes.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) <= statResident || f[0] == "Z" || f[0] == "X" {
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// stateDir is a sandbox's state directory.
type stateDir struct{ dir string }

func (d stateDir) path(file string) string { return filepath.Join(d.dir, file) }

func (d stateDir) load() (*record, error) {
	js, err := os.ReadFile(d.path(fileRecord))
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(js, r); err != nil {
		return nil, fmt.Errorf("%s: %w", d.path(fileRecord), err)
	}
	return r, nil
}

func (d stateDir) save(r *record) error {
	js, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	tmp := d.path(fileRecord + ".tmp")
	if err := os.WriteFile(tmp, js, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.path(fileRecord))
}

// update changes the record of a ready sandbox, under a lock against other
// processes. If change fails, nothing is written.
func (d stateDir) update(change func(*record) error) error {
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer dir.Close() // releases the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	r, err := d.load()
	if err != nil {
		return err
	}
	if err := change(r); err != nil {
		return err
	}
	return d.save(r)
}

// createStateDir creates the state directory of a new sandbox. The returned file
// holds its lock. If it exists, the error is fs.ErrExist.
func createStateDir(parent string, r *record) (stateDir, *os.File, error) {
	tmp, err := os.MkdirTemp(parent, halfMade)
	if err != nil {
		return stateDir{}, nil, err
	}
	made := stateDir{tmp}
	upper, err := os.OpenFile(made.path(fileUpper), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = unix.Flock(int(upper.Fd()), unix.LOCK_SH)
	}
	if err == nil {
		err = made.save(r)
	}
	final := stateDir{filepath.Join(parent, string(r.ID))}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, made.dir, unix.AT_FDCWD, final.dir, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		if upper != nil {
			upper.Close()
		}
		os.RemoveAll(tmp)
		return stateDir{}, nil, err
	}
	return final, upper, nil
}

// destroying reports whether any process has destroyed or is destroying the
// sandbox.
func (d stateDir) destroying() bool {
	r, err := d.load()
	return errors.Is(err, fs.ErrNotExist) || (err == nil && r.Destroying)
}

// dead reports whether the lock of the sandbox is free.
func (d stateDir) dead() bool {
	f, err := os.Open(d.path(fileUpper))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// awaitDeath waits until the lock is free, and reports whether that happened
// within limit.
func (d stateDir) awaitDeath(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; !d.dead(); wait = min(2*wait, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(wait)
	}
	return true
}

// remove ends the processes of the sandbox and removes its files and groups.
func (d stateDir) remove(r *record) error {
	if r != nil {
		cg := r.cgroup()
		cg.Kill()
		r.Kernel.kill()
		r.Gofer.kill()
		r.Deadline.kill()
		if err := cg.Remove(); err != nil {
			return err
		}
	}
	// Another process that also destroys the sandbox may write its record once.
	var err error
	for range 10 {
		if err = os.RemoveAll(d.dir); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	return err
}

// sweep removes sandboxes whose maker was killed: unfinished ones, partly
// destroyed ones, and those that end with their maker. It also ends sandboxes
// past their deadline.
func sweep(parent string, now time.Time) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		b := stateDir{filepath.Join(parent, e.Name())}
		if strings.HasPrefix(e.Name(), halfMade) {
			errs = append(errs, sweepHalfMade(b, e, now))
			continue
		}
		r, err := b.load()
		if errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, sweepHalfMade(b, e, now)) // its removal was interrupted
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		expired := !r.Expires.IsZero() && now.After(r.Expires) && r.Ready
		abandoned := !r.Ready && !r.Maker.alive()
		// Without its file server a sandbox can only hang.
		broken := r.Ready && r.Gofer.PID != 0 && !r.Gofer.alive()
		if (expired || abandoned || broken || r.Destroying) && !b.dead() {
			r.cgroup().Kill()
			r.Kernel.kill()
			if abandoned {
				b.killUnrecorded()
			}
			b.awaitDeath(5 * time.Second)
		}
		if (r.Attached || r.Destroying || !r.Ready) && b.dead() {
			errs = append(errs, b.remove(r))
		}
	}
	return errors.Join(errs...)
}

// killUnrecorded kills processes that a killed maker had started but neither
// recorded nor put into a control group. Their arguments name the sandbox.
func (d stateDir) killUnrecorded() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ref := refTo(pid) // taken first, so that a reused number is not killed
		args, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && slices.Contains(strings.Split(string(args), "\x00"), "--bundle="+d.dir) {
			ref.kill()
		}
	}
}

// halfMadeAge is the age at which an unlocked directory without a name is
// considered abandoned.
const halfMadeAge = 2 * time.Second

// sweepHalfMade removes a directory without a record: it never got its name, or
// its removal was interrupted. A new directory is locked right after it is
// created; the age covers the moment before.
func sweepHalfMade(b stateDir, e fs.DirEntry, now time.Time) error {
	info, err := e.Info()
	if err != nil {
		return nil //nolint:nilerr // another process removed it
	}
	if now.Sub(info.ModTime()) < halfMadeAge || !b.dead() {
		return nil
	}
	return os.RemoveAll(b.dir)
}
