package microvm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// A sandbox's state directory holds
//
//	record.json  the data to find the sandbox again; no secrets
//	files.img    the disk with its writable layer
//	door, link*  the sockets of the guest's ports
//	qmp          the socket of QEMU's monitor
//	link*.lock   locked by the process that uses the link
const (
	fileRecord = "record.json"
	fileDisk   = "files.img"
	fileQMP    = "qmp"
)

// record is the stored record of a sandbox.
type record struct {
	ID         sandbox.ID        `json:"id"`
	Created    time.Time         `json:"created"`
	Expires    time.Time         `json:"expires,omitzero"`
	Labels     map[string]string `json:"labels,omitempty"`
	Ready      bool              `json:"ready,omitempty"`  // creation has finished
	Destroying bool              `json:"doomed,omitempty"` // it is being destroyed
	Stopped    bool              `json:"stopped,omitempty"`
	Maker      process           `json:"maker"` // the process that creates it
	Machine    process           `json:"machine,omitzero"`
	Guards     []process         `json:"guards,omitempty"` // they end the machine
	Engine     string            `json:"engine,omitempty"`
	Image      string            `json:"image"`
	Digest     string            `json:"digest"`
	Resources  sandbox.Resources `json:"resources"`
	Shape      shape             `json:"shape"`
}

// outcome returns how a machine ended that nobody ended on purpose.
func (r *record) outcome() sandbox.Exit {
	switch {
	case r.Destroying:
		return guestkit.Killed
	case r.Stopped:
		exit := guestkit.Killed
		exit.Detail = "its state was written to a snapshot, and it was ended"
		return exit
	case !r.Expires.IsZero() && time.Now().After(r.Expires.Add(-guestkit.Slack)):
		return guestkit.Expired
	case r.Machine.elsewhen():
		return sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "this machine was restarted"}
	}
	return sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the virtual machine ended"}
}

// stateDir is the state directory of a sandbox.
type stateDir struct{ dir string }

func (d stateDir) path(file string) string { return filepath.Join(d.dir, file) }

func (d stateDir) load() (*record, error) {
	text, err := os.ReadFile(d.path(fileRecord))
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", d.path(fileRecord), err)
	}
	return r, nil
}

func (d stateDir) save(r *record) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	tmp := d.path(fileRecord + ".tmp")
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.path(fileRecord))
}

// update changes the record, under a lock against other processes.
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

// newStateDir creates the state directory of a new sandbox with its record.
func (p *Provider) newStateDir(r *record) (stateDir, error) {
	if err := os.MkdirAll(p.sandboxes, 0o700); err != nil {
		return stateDir{}, err
	}
	tmp, err := os.MkdirTemp(p.sandboxes, halfMade)
	if err != nil {
		return stateDir{}, err
	}
	b := p.stateDir(r.ID)
	err = stateDir{tmp}.save(r)
	if err == nil {
		err = os.Rename(tmp, b.dir) // fails if the directory exists, because that is not empty
	}
	if err == nil {
		return b, nil
	}
	_ = os.RemoveAll(tmp)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		err = &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "microvm.create", Subject: string(r.ID), Message: "a sandbox with this ID already exists"}
	}
	return stateDir{}, err
}

// halfMade is the prefix of directories without a record.
const halfMade = ".new-"

// sweepOnce removes, on the first call, what killed processes have left: machines
// that were not finished, and machines without a state directory.
func (p *Provider) sweepOnce() {
	p.swept.Do(func() {
		entries, err := os.ReadDir(p.sandboxes)
		if err != nil {
			return
		}
		for _, e := range entries {
			b := stateDir{filepath.Join(p.sandboxes, e.Name())}
			if strings.HasPrefix(e.Name(), ".") {
				if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Minute {
					_ = os.RemoveAll(b.dir)
				}
				continue
			}
			r, err := b.load()
			if err == nil && (!r.Ready && !r.Maker.alive() || r.Destroying) {
				_ = p.end(b, r)
			}
		}
		p.endOrphans()
	})
}

// endOrphans ends the machines whose state directory, below this provider's, is
// not there. QEMU's arguments name the directory.
func (p *Provider) endOrphans() {
	processes, _ := os.ReadDir("/proc")
	for _, e := range processes {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := machineDir(pid)
		if filepath.Dir(dir) != p.sandboxes {
			continue
		}
		ref := processOf(pid)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) && machineDir(pid) == dir {
			ref.kill()
		}
	}
}

// machineDir returns the state directory in the arguments of a QEMU of this
// package, or nothing.
func machineDir(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	args := strings.Split(string(text), "\x00")
	for i, a := range args {
		if a == "-name" && i+1 < len(args) {
			dir, _ := strings.CutPrefix(args[i+1], machineName)
			return dir
		}
	}
	return ""
}

// machineName is the beginning of the name of a machine in QEMU's arguments.
const machineName = "atoll:"

// end kills the machine of a sandbox and removes its state directory.
func (p *Provider) end(b stateDir, r *record) error {
	for _, g := range r.Guards {
		g.kill()
	}
	r.Machine.kill()
	if !r.Machine.awaitEnd(patience) {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(r.ID), Message: "the virtual machine does not end"}
	}
	if r.Machine.PID == 0 {
		endMachinesOf(b)
	}
	return os.RemoveAll(b.dir)
}

// endMachinesOf ends a machine of which a killed process made no record.
func endMachinesOf(b stateDir) {
	processes, _ := os.ReadDir("/proc")
	for _, e := range processes {
		if pid, err := strconv.Atoi(e.Name()); err == nil && machineDir(pid) == b.dir {
			ref := processOf(pid)
			ref.kill()
			ref.awaitEnd(patience)
		}
	}
}

// process identifies a process, because a process number may be reused.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since the boot
	Boot  string `json:"boot"`
}

var bootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, start times must suffice
	return strings.TrimSpace(string(id))
})

func processOf(pid int) process {
	start, _ := startTime(pid)
	return process{PID: pid, Start: start, Boot: bootID()}
}

// startTime returns when a process started. It fails for one that has ended.
func startTime(pid int) (uint64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, fs.ErrNotExist
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func (p process) elsewhen() bool { return p.PID != 0 && p.Boot != bootID() }

func (p process) alive() bool {
	if p.PID == 0 || p.elsewhen() {
		return false
	}
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

func (p process) kill() {
	if p.PID == 0 {
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if p.alive() {
		_ = unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0)
	}
}

// awaitEnd waits until the process has ended, and reports whether it has.
func (p process) awaitEnd(limit time.Duration) bool {
	for deadline := time.Now().Add(limit); p.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func isFull(err error) bool {
	for _, e := range []syscall.Errno{unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func hostMemory() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return DefaultMemory
	}
	return int64(si.Totalram) * int64(si.Unit)
}
