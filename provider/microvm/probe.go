package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// Probe implements driver.Provider. Whether machines work is found out by
// starting one, once after each boot of this machine: a device for KVM proves
// nothing.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	emulated := p.opts.Accel == AccelTCG
	facts := driver.Facts{
		Provider: Name, Isolates: true, Isolation: sandbox.IsolationHardware,
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: true, Images: true, Network: p.opts.Network != nil,
			Reattach: true, Pause: true, Snapshot: true, Memory: true, Ports: true, Deadline: true, Rejoin: true,
		},
		Limits: map[string]driver.Limit{
			"memory": {Holds: true, By: "the size of the virtual machine"}, "disk": {Holds: true, By: "the size of the virtual disk"},
			"cpus": {Holds: true, By: "the virtual processors and the guest's kernel"}, "pids": {Holds: true, By: "the guest's kernel"},
			"lifetime": {Holds: true, By: "a process of this machine"},
		},
	}
	add := func(severity driver.Severity, subject, message, fix string) {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: severity, Subject: subject, Message: message, Fix: fix})
	}
	refuse := func(subject string, err error) (driver.Facts, error) {
		if ctx.Err() != nil {
			return driver.Facts{}, ctx.Err()
		}
		var e *sandbox.Error
		fix := ""
		if errors.As(err, &e) {
			fix = e.Hint
		}
		add(driver.Blocker, subject, err.Error(), fix)
		return facts, nil
	}
	qemu, err := p.qemuVersion(ctx)
	if err != nil {
		return refuse("QEMU", err)
	}
	facts.Version = qemu
	if emulated {
		facts.Version += " (emulation)"
	}
	b, err := p.getBoot()
	if err != nil {
		return refuse("kernel", err)
	}
	facts.Engine = p.engine(b, qemu)
	t, err := p.tried(ctx, b, qemu)
	if err != nil {
		return refuse("boot", err)
	}
	if t.Failed != "" {
		add(driver.Blocker, "boot", t.Failed, "use another provider, or a machine whose processor's virtualization can be used; for tests, set ATOLL_MICROVM_ACCEL=tcg")
		return facts, nil
	}
	facts.Available = true
	add(driver.OK, "boot", fmt.Sprintf("a guest with Linux %s started in %v with QEMU %s and %s", b.version, t.Took.Round(time.Millisecond), qemu, p.opts.Accel), "")
	if emulated {
		facts.Isolates, facts.Isolation = false, sandbox.IsolationNone
		add(driver.Warning, "emulation", "the processor is emulated: slow, for tests only, and no hardware isolation", "unset ATOLL_MICROVM_ACCEL")
	}
	return facts, nil
}

// engine identifies what can restore the memory of a machine.
func (p *Provider) engine(b *boot, qemu string) string {
	return "qemu-" + qemu + "-" + p.opts.Accel + "-" + b.id
}

// qemuVersion asks QEMU's program for its version.
func (p *Provider) qemuVersion(ctx context.Context) (string, error) {
	exe, err := exec.LookPath(p.opts.QEMU)
	if err != nil {
		return "", noQEMU(err)
	}
	out, err := exec.CommandContext(ctx, exe, "--version").Output()
	if err != nil {
		return "", noQEMU(err)
	}
	_, rest, _ := strings.Cut(string(out), "version ")
	version, _, _ := strings.Cut(rest, " ")
	if version = strings.TrimSpace(version); version == "" {
		return "", noQEMU(errors.New("it does not say its version"))
	}
	return version, nil
}

// trial is the outcome of starting a machine.
type trial struct {
	Boot   string        `json:"boot"` // of this machine
	Of     string        `json:"of"`   // what was tried
	Failed string        `json:"failed,omitempty"`
	Took   time.Duration `json:"took"`
}

// trialTime limits starting a machine to find out whether that works.
func (p *Provider) trialTime() time.Duration {
	if p.opts.Accel == AccelTCG {
		return 2 * time.Minute
	}
	return 20 * time.Second
}

// tried returns the outcome of the trial since the last boot, and makes one if
// there is none.
func (p *Provider) tried(ctx context.Context, b *boot, qemu string) (t trial, err error) {
	var st unix.Stat_t
	_ = unix.Stat(kvmDevice, &st) // with other permissions, the outcome may be another one
	sum := sha256.Sum256(fmt.Append(nil, b.id, qemu, p.opts.Accel, st.Mode, st.Uid, st.Gid, os.Geteuid()))
	of := hex.EncodeToString(sum[:8])
	dir := filepath.Join(p.opts.StateDir, "trials")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return t, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return t, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return t, err
	}
	file := filepath.Join(dir, of)
	if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &t) == nil && t.Boot == bootID() {
		return t, nil
	}
	t = trial{Boot: bootID(), Of: of}
	begin := time.Now()
	failed := p.try(ctx, dir, b)
	if ctx.Err() != nil {
		return t, ctx.Err()
	}
	if failed != nil {
		t.Failed = failed.Error()
	}
	t.Took = time.Since(begin)
	text, err := json.Marshal(t)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	return t, err
}

// try starts a machine without an image, whose guest only has to say that it
// cannot mount one.
func (p *Provider) try(ctx context.Context, dir string, b *boot) error {
	if p.opts.Accel == AccelKVM {
		if err := usableKVM(); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(dir, halfMade)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	disk, err := os.OpenFile(filepath.Join(tmp, fileDisk), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		defer disk.Close()
		err = disk.Truncate(1 << 20)
	}
	if err != nil {
		return err
	}
	s := shape{Accel: p.opts.Accel, CPUs: 1, RAM: 2 * kernelMemory}
	m, err := p.start(&launch{stateDir: stateDir{tmp}, boot: b, shape: s, disk: disk, config: &guest.Machine{}})
	if err != nil {
		return err
	}
	defer func() {
		m.kill()
		<-m.done
	}()
	limit := p.trialTime()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline) && ctx.Err() == nil; {
		select {
		case <-m.done:
			return m.explain(errors.New("QEMU did not start the guest"))
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		if strings.Contains(stateDir{tmp}.console(ctx), "atoll-guest:") {
			return nil
		}
	}
	said := lastLines(stateDir{tmp}.console(ctx))
	if said == "" {
		said = "nothing"
	}
	return fmt.Errorf("the guest did not start within %v with %s; its console says: %s", limit, p.opts.Accel, said)
}

// usableKVM returns an error if a machine cannot use KVM at all.
func usableKVM() error {
	info, err := os.Stat(kvmDevice)
	if err != nil {
		return errors.New("this machine has no /dev/kvm: its processor or its hypervisor offers no virtualization")
	}
	var st unix.Stat_t
	if err := unix.Stat(kvmDevice, &st); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if mode := info.Mode().Perm(); mode&0o006 != 0o006 && (mode&0o060 != 0o060 || st.Gid == 0) {
			return errors.New("QEMU runs as nobody and may not use /dev/kvm: give it a group that may, with: groupadd -f kvm; chgrp kvm /dev/kvm; chmod 660 /dev/kvm")
		}
		return nil
	}
	if unix.Access(kvmDevice, unix.R_OK|unix.W_OK) != nil {
		return errors.New("this user may not use /dev/kvm: add the user to its group, often with: usermod -aG kvm USER")
	}
	return nil
}
