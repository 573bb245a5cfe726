package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// The doctor finds faults of the machine under a real daemon and says how to
// fix them: a full disk, exhausted descriptors, and a killed gateway that
// cannot be restarted.
func TestDoctorFindsRealFaults(t *testing.T) {
	disk := smallDisk(t, "256m")
	s := soakerIn(t, filepath.Join(disk, "state"))
	spec := sandbox.Spec{Name: "net", Resources: sandbox.Resources{Memory: 256 << 20}, Network: sandbox.Network{Egress: []string{}}}
	if _, err := s.client.Create(t.Context(), spec, atoll.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.finds(t, "disk", "blocker")
	s.finds(t, "descriptors", "ok")
	s.finds(t, "gateway", "ok")

	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_NOSUID, "size=1g"); err != nil {
		t.Fatal(err)
	}
	s.finds(t, "disk", "warning")

	// A create closes descriptors with a delay: wait until the number is back.
	pid := s.daemon.Process.Pid
	restore := func() {}
	found := s.finding(t, "descriptors")
	for ; found.Severity != "warning"; found = s.finding(t, "descriptors") {
		restore()
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		restore = limitFiles(t, pid, uint64(len(open)*6/5-1))
	}
	if found.Fix == "" {
		t.Errorf("%+v does not say how to fix it", found)
	}
	restore()
	s.finds(t, "descriptors", "ok")

	restore = limitFiles(t, pid, 3) // nothing more can be opened, so no gateway can start
	signal(t, gatewayOf(t, pid), syscall.SIGKILL)
	for s.finding(t, "gateway").Severity != "blocker" { // until the daemon has noticed
	}
	s.finds(t, "gateway", "blocker")
	restore()
	for s.finding(t, "gateway").Severity != "ok" { // until it has started another
	}
}

// finding returns the daemon's finding about a subject.
func (s *soaker) finding(t *testing.T, subject string) operator.Finding {
	t.Helper()
	d, err := s.client.Admin().Diagnose(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	i := slices.IndexFunc(d.Findings, func(f operator.Finding) bool { return f.Subject == subject })
	if i < 0 {
		t.Fatalf("nothing about the %s: %+v", subject, d)
	}
	return d.Findings[i]
}

// finds fails unless the daemon reports a subject with this severity and,
// unless that is ok, says how to fix it.
func (s *soaker) finds(t *testing.T, subject, severity string) {
	t.Helper()
	if f := s.finding(t, subject); f.Severity != severity || severity != "ok" && f.Fix == "" {
		t.Errorf("%+v, want %s", f, severity)
	}
}

// limitFiles sets how many files a process may open, until restore is called.
func limitFiles(t *testing.T, pid int, n uint64) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
			t.Error(err)
		}
	}
}

// gatewayOf returns the gateway process of a daemon.
func gatewayOf(t *testing.T, daemon int) int {
	t.Helper()
	pid := findGateway(daemon)
	if pid == 0 {
		t.Fatal("the daemon has no gateway")
	}
	return pid
}

// findGateway is gatewayOf, but returns zero if there is none.
func findGateway(daemon int) int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name) // it may just have ended
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) < 2 || f[1] != strconv.Itoa(daemon) {
			continue
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && bytes.HasPrefix(args, []byte("atoll-gateway\x00")) {
			return pid
		}
	}
	return 0
}
