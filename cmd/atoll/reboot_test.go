package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// stranger starts a process that has nothing to do with sandboxes.
func stranger(t *testing.T) (pid int, alive func() bool) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "stat"))
		return err == nil && !strings.Contains(string(stat), ") Z ")
	}
}

// reboot turns a running sandbox into what a restart of the machine leaves: its
// processes have ended, their numbers belong to other processes with the same
// start times, and the boot ID is another.
func (s *soaker) reboot(t *testing.T, b *atoll.Sandbox, other int) {
	t.Helper()
	file := filepath.Join(s.state, "gvisor", "boxes", string(b.ID()), "record.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	refs := 0
	for _, name := range []string{"kernel", "gofer", "deadline", "maker"} {
		ref, _ := r[name].(map[string]any)
		pid, _ := ref["pid"].(float64)
		if pid == 0 {
			continue
		}
		if boot, _ := ref["boot"].(string); boot == "" {
			t.Errorf("%s is recorded without a boot: %v", name, ref)
		}
		if name != "maker" { // the maker is the daemon, which was killed
			_ = syscall.Kill(int(pid), syscall.SIGKILL)
		}
		refs++
		ref["pid"], ref["start"], ref["boot"] = other, startOf(t, other), "11111111-2222-3333-4444-555555555555"
	}
	if refs < 2 {
		t.Fatalf("the record names %d processes: %s", refs, text)
	}
	if text, err = json.Marshal(r); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startOf returns the start time of a process in ticks.
func startOf(t *testing.T, pid int) json.Number {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	return json.Number(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[19])
}

// After a restart of the machine, no sandbox runs. Sandboxes paused to disk can
// be resumed, running ones are recorded as ended, and other processes are not
// affected.
func TestReboot(t *testing.T) {
	s := newSoaker(t)
	ran, stood := s.sandbox(t, "ran"), s.sandbox(t, "stood")
	stopped, slept := s.sandbox(t, "stopped"), s.sandbox(t, "slept")
	for _, b := range []*atoll.Sandbox{ran, stood, stopped, slept} {
		run(t, b, "echo kept > /kept")
	}
	if _, err := stood.Pause(t.Context(), sandbox.PauseMemory); err != nil {
		t.Fatal(err)
	}
	if _, err := stopped.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := slept.Pause(t.Context(), sandbox.PauseDisk); err != nil {
		t.Fatal(err)
	}
	half := s.sandbox(t, "half")
	s.kill()
	other, alive := stranger(t)
	for _, b := range []*atoll.Sandbox{ran, stood, half} {
		s.reboot(t, b, other)
	}
	unready(t, filepath.Join(s.state, "gvisor", "boxes", string(half.ID()), "record.json"))
	s.start(t)

	for _, b := range []*atoll.Sandbox{ran, stood} {
		now, err := s.client.Get(t.Context(), b.Name())
		if err != nil {
			t.Fatal(err)
		}
		if info := now.Info(); info.State != sandbox.Failed || info.Exit == nil || !strings.Contains(info.Exit.Detail, "restarted") {
			t.Errorf("%s is %q because %q: %+v", b.Name(), info.State, info.Reason, info.Exit)
		}
		_, err = now.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
		wantCode(t, "exec in "+b.Name(), err, sandbox.CodeConflict)
	}
	if now, err := s.client.Get(t.Context(), string(half.ID())); err != nil || now.Info().State != sandbox.Gone {
		t.Errorf("the unfinished one is %q, %v", now.Info().State, err)
	}
	if _, err := stopped.Start(t.Context()); err != nil {
		t.Errorf("start: %v", err)
	}
	if _, err := slept.Resume(t.Context()); err != nil {
		t.Errorf("resume: %v", err)
	}
	for _, b := range []*atoll.Sandbox{stopped, slept} {
		if got := run(t, b, "cat /kept"); got != "kept" {
			t.Errorf("%s kept %q", b.Name(), got)
		}
	}
	for _, b := range []*atoll.Sandbox{ran, stood} {
		if err := b.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	left := s.really(t)
	delete(left, stopped.ID())
	delete(left, slept.ID())
	if len(left) != 0 {
		t.Errorf("there still are %v", left)
	}
	if !alive() {
		t.Error("a process was killed that had nothing to do with it")
	}
	if r, err := s.client.Admin().VerifyAudit(t.Context()); err != nil || !r.Sound {
		t.Errorf("%+v, %v", r, err)
	}
}

// unready changes a sandbox's record to one of an unfinished sandbox.
func unready(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if r["ready"] != true {
		t.Fatalf("no record of a sandbox: %s", text)
	}
	r["ready"] = false
	if text, err = json.Marshal(r); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
