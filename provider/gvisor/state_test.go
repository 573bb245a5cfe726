package gvisor

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

func TestStateDirLock(t *testing.T) {
	parent := t.TempDir()
	b, upper, err := createStateDir(parent, &record{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := createStateDir(parent, &record{ID: "a"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second state directory of the same name: %v, want %v", err, fs.ErrExist)
	}
	if entries, _ := os.ReadDir(parent); len(entries) != 1 {
		t.Errorf("the refused state directory left something: %v", entries)
	}
	if b.dead() {
		t.Error("a sandbox is dead while its maker holds the lock")
	}
	// A process that inherits the file keeps the sandbox alive.
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{upper}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	upper.Close()
	if b.dead() {
		t.Error("a sandbox is dead while a process that inherited its lock lives")
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if !b.dead() {
		t.Error("a sandbox is alive although its lock is free")
	}
}

func TestSweep(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name string
		rec  record
		held bool
		kept bool
	}{
		{"half-made and abandoned", record{}, false, false},
		{"being made", record{}, true, true},
		{"attached, maker gone", record{Ready: true, Attached: true}, false, false},
		{"attached, alive", record{Ready: true, Attached: true}, true, true},
		{"detached and ended: its outcome is kept", record{Ready: true}, false, true},
		{"detached, alive", record{Ready: true}, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parent := t.TempDir()
			tc.rec.ID = "box"
			b, upper, err := createStateDir(parent, &tc.rec)
			if err != nil {
				t.Fatal(err)
			}
			if tc.held {
				defer upper.Close()
			} else {
				upper.Close()
			}
			if err := sweep(parent, now); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(b.dir); (err == nil) != tc.kept {
				t.Errorf("after the sweep: %v, want kept=%v", err, tc.kept)
			}
		})
	}
}

func TestSweepUnnamed(t *testing.T) {
	parent := t.TempDir()
	// An interrupted removal leaves a directory under its name, without a record.
	for name, age := range map[string]time.Duration{halfMade + "old": time.Hour, "removed": time.Hour, halfMade + "new": 0} {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweep(parent, time.Now()); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(parent)
	if len(entries) != 1 || entries[0].Name() != halfMade+"new" {
		t.Errorf("left after the sweep: %v", entries)
	}
}

func TestProcessRef(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ref := processRef{PID: cmd.Process.Pid, Start: start}
	if !ref.alive() {
		t.Error("a running process is not alive")
	}
	reused := processRef{PID: ref.PID, Start: ref.Start + 1}
	reused.kill()
	if reused.alive() || !ref.alive() {
		t.Error("another process with the same number was taken for ours")
	}
	ref.kill()
	if err := cmd.Wait(); err == nil {
		t.Error("the process was not killed")
	}
	if ref.alive() || (processRef{}).alive() {
		t.Error("an ended process is alive")
	}
}

// TestReasonOfTheEnd: a sandbox that was at its memory limit at some time, and
// ended later, ended for the later reason.
func TestReasonOfTheEnd(t *testing.T) {
	past := time.Now().Add(-time.Minute)
	for name, tc := range map[string]struct {
		expires time.Time
		starved bool
		why     sandbox.Reason
		want    sandbox.Reason
	}{
		"at its limit":                                    {starved: true, want: sandbox.ReasonMemory},
		"at its limit, its lifetime goes on":              {starved: true, expires: time.Now().Add(time.Hour), want: sandbox.ReasonMemory},
		"at its limit, then its lifetime was over":        {starved: true, expires: past, want: sandbox.ReasonLifetime},
		"at its limit, then ended by us for its lifetime": {starved: true, why: sandbox.ReasonLifetime, want: sandbox.ReasonLifetime},
		"at its limit, then destroyed":                    {starved: true, why: sandbox.ReasonKilled, want: sandbox.ReasonKilled},
		"ended by us for want of memory":                  {why: sandbox.ReasonMemory, want: sandbox.ReasonMemory},
		"its lifetime was over":                           {expires: past, want: sandbox.ReasonLifetime},
		"nothing is known":                                {want: sandbox.ReasonCrashed},
	} {
		t.Run(name, func(t *testing.T) {
			r := &record{ID: "a", Expires: tc.expires}
			b, lock, err := createStateDir(t.TempDir(), r)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if tc.starved {
				b.addStarved()
			}
			if exit := r.outcome(b, tc.why); exit.Reason != tc.want {
				t.Errorf("reason %q, want %q", exit.Reason, tc.want)
			}
		})
	}
}
