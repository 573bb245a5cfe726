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

	"github.com/atoll-run/atoll/sandbox"
)

// A sandbox's state directory holds
//
//	record.json  what is needed to find the sandbox again, and nothing secret
//	upper        the file behind its writable layer
//	control      the socket on which its kernel takes instructions
//	panic.log    what its kernel said when it died
//	guest.erofs  the image that its guest runs from
//	rest         there if it is paused; see Pause
//
// The kernel process inherits an open file description of upper that carries a
// shared lock. Whether a sandbox lives is therefore asked of the host kernel
// and not of a pid file: the lock is free when, and only when, both the
// process that was making the sandbox and the sandbox itself have ended.
const (
	fileRecord  = "record.json"
	fileUpper   = "upper"
	fileControl = "control"
	filePanic   = "panic.log"
	fileGuest   = "guest.erofs"
	fileRest    = "rest"

	halfMade = ".new-" // prefix of directories of sandboxes being made
)

// record is the stored record of a sandbox on disk.
type record struct {
	ID       sandbox.ID         `json:"id"`
	Created  time.Time          `json:"created"`
	Expires  time.Time          `json:"expires,omitzero"`
	Labels   map[string]string  `json:"labels,omitempty"`
	Attached bool               `json:"attached,omitempty"` // dies with its maker
	Ready    bool               `json:"ready,omitempty"`    // creation has finished
	Doomed   bool               `json:"doomed,omitempty"`   // somebody is destroying it
	Maker    processRef         `json:"maker"`              // who makes it, until it is ready
	Inside   string             `json:"inside"`             // the id its kernel knows it by
	Group    string             `json:"group,omitempty"`    // of its processes inside, if not Inside
	Engine   string             `json:"engine,omitempty"`   // what can restore its memory; see engine
	Guest    string             `json:"guest,omitempty"`    // digest of its guest's program
	Mounts   []string           `json:"mounts,omitempty"`   // where host files are shown, in order
	Kernel   processRef         `json:"kernel,omitzero"`
	Gofer    processRef         `json:"gofer,omitzero"`
	Deadline processRef         `json:"deadline,omitzero"`
	Cgroup   map[string]string  `json:"cgroup,omitempty"` // controller → directory
	Version  int                `json:"cgroupVersion,omitempty"`
	Spec     sandboxDescription `json:"spec"`
}

// sandboxDescription is the part of a Spec that is kept: no environment.
type sandboxDescription struct {
	Image     string            `json:"image"`
	Digest    string            `json:"digest"`
	Resources sandbox.Resources `json:"resources"`
}

func (r *record) cgroup() *cgroup {
	if r.Version == 0 {
		return nil
	}
	return &cgroup{version: r.Version, dirs: r.Cgroup}
}

// group is the control group inside that all its processes are in.
func (r *record) group() string {
	if r.Group != "" {
		return r.Group
	}
	return r.Inside
}

// processRef names a process for as long as the machine is up: a pid alone may
// be reused.
type processRef struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`          // clock ticks since boot
	Boot  string `json:"boot,omitempty"` // which; empty in records of earlier versions
}

// bootID names the time since the machine was started. After that no process
// is one that was known before, whatever its number and age.
var bootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, times have to do
	return strings.TrimSpace(string(id))
})

// refTo names a process that runs.
func refTo(pid int) processRef {
	start, _ := startTime(pid)
	return processRef{PID: pid, Start: start, Boot: bootID()}
}

// elsewhen reports that the process was one of an earlier start of the machine.
func (p processRef) elsewhen() bool { return p.Boot != "" && p.Boot != bootID() }

// alive reports whether the process still exists and is not a zombie.
func (p processRef) alive() bool {
	if p.PID == 0 || p.elsewhen() {
		return false
	}
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// kill ends the process if it still is the one meant, without a race.
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

// stopped reports whether the process exists and stands still because of a
// signal.
func (p processRef) stopped() bool {
	f, err := processStat(p.PID)
	return err == nil && p.alive() && (f[0] == "T" || f[0] == "t")
}

// startTime reads when a process started; a zombie counts as ended.
func startTime(pid int) (uint64, error) {
	f, err := processStat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[statStart], 10, 64)
}

// Some of what processStat returns. See proc_pid_stat(5), which counts from 3.
const (
	statParent   = 1
	statStart    = 19 // in ticks since the machine started
	statResident = 21 // in pages
)

// processStat reads what the host's kernel says of a process, from its state on.
func processStat(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	// The command name, in parentheses, may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) <= statResident || f[0] == "Z" || f[0] == "X" {
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// box is a sandbox's state directory.
type box struct{ dir string }

func (b box) path(file string) string { return filepath.Join(b.dir, file) }

func (b box) load() (*record, error) {
	js, err := os.ReadFile(b.path(fileRecord))
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(js, r); err != nil {
		return nil, fmt.Errorf("%s: %w", b.path(fileRecord), err)
	}
	return r, nil
}

func (b box) save(r *record) error {
	js, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	tmp := b.path(fileRecord + ".tmp")
	if err := os.WriteFile(tmp, js, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, b.path(fileRecord))
}

// update changes the record of a sandbox that is ready, which other processes
// may want to change at the same time. Nothing is written if change fails.
func (b box) update(change func(*record) error) error {
	dir, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	defer dir.Close() // which gives the lock back
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	r, err := b.load()
	if err != nil {
		return err
	}
	if err := change(r); err != nil {
		return err
	}
	return b.save(r)
}

// createBox makes the state directory of a new sandbox, with the lock held by
// the returned file. An existing one is an error that is fs.ErrExist.
func createBox(parent string, r *record) (box, *os.File, error) {
	tmp, err := os.MkdirTemp(parent, halfMade)
	if err != nil {
		return box{}, nil, err
	}
	made := box{tmp}
	upper, err := os.OpenFile(made.path(fileUpper), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = unix.Flock(int(upper.Fd()), unix.LOCK_SH)
	}
	if err == nil {
		err = made.save(r)
	}
	final := box{filepath.Join(parent, string(r.ID))}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, made.dir, unix.AT_FDCWD, final.dir, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		if upper != nil {
			upper.Close()
		}
		os.RemoveAll(tmp)
		return box{}, nil, err
	}
	return final, upper, nil
}

// doomed reports whether the sandbox was destroyed or is being destroyed, here
// or by another process.
func (b box) doomed() bool {
	r, err := b.load()
	return errors.Is(err, fs.ErrNotExist) || (err == nil && r.Doomed)
}

// dead reports whether nobody holds the lock of the sandbox any more.
func (b box) dead() bool {
	f, err := os.Open(b.path(fileUpper))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// awaitDeath waits until nobody holds the lock, and reports whether that came
// about in time.
func (b box) awaitDeath(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for wait := time.Millisecond; !b.dead(); wait = min(2*wait, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(wait)
	}
	return true
}

// remove ends what still runs of the sandbox and removes every trace of it.
func (b box) remove(r *record) error {
	if r != nil {
		cg := r.cgroup()
		cg.kill()
		r.Kernel.kill()
		r.Gofer.kill()
		r.Deadline.kill()
		if err := cg.remove(); err != nil {
			return err
		}
	}
	// Another process that destroys the sandbox, too, may put its record there
	// meanwhile, once.
	var err error
	for range 10 {
		if err = os.RemoveAll(b.dir); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	return err
}

// sweep removes what sandboxes left whose maker was killed: those half made,
// half destroyed, those that were to die with their maker, and ends those past
// their lifetime.
func sweep(parent string, now time.Time) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		b := box{filepath.Join(parent, e.Name())}
		if strings.HasPrefix(e.Name(), halfMade) {
			errs = append(errs, sweepHalfMade(b, e, now))
			continue
		}
		r, err := b.load()
		if errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, sweepHalfMade(b, e, now)) // its removal was cut off
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
		if (expired || abandoned || broken || r.Doomed) && !b.dead() {
			r.cgroup().kill()
			r.Kernel.kill()
			if abandoned {
				b.killUnrecorded()
			}
			b.awaitDeath(5 * time.Second)
		}
		if (r.Attached || r.Doomed || !r.Ready) && b.dead() {
			errs = append(errs, b.remove(r))
		}
	}
	return errors.Join(errs...)
}

// killUnrecorded ends what a maker had started, and neither written down nor put
// into a control group, when it was killed. Such a process says in its arguments
// which sandbox it is part of.
func (b box) killUnrecorded() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ref := refTo(pid) // before looking, so that it is this very process that is ended
		args, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && slices.Contains(strings.Split(string(args), "\x00"), "--bundle="+b.dir) {
			ref.kill()
		}
	}
}

// halfMadeAge is from when on a directory without a name that nobody has locked
// is nobody's.
const halfMadeAge = 2 * time.Second

// sweepHalfMade removes a directory without a record: it never got its name, or
// most of it is removed already. It is locked right after it is made; the age
// covers the moment before.
func sweepHalfMade(b box, e fs.DirEntry, now time.Time) error {
	info, err := e.Info()
	if err != nil {
		return nil //nolint:nilerr // somebody else removed it
	}
	if now.Sub(info.ModTime()) < halfMadeAge || !b.dead() {
		return nil
	}
	return os.RemoveAll(b.dir)
}
