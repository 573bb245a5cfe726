package ctxsandbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/ctxsandbox"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

func client(t *testing.T) (*ctxsandbox.SandboxClient, *atoll.Client) {
	t.Helper()
	c := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	return ctxsandbox.New(c), c
}

func create(t *testing.T, c *ctxsandbox.SandboxClient, spec ctxsandbox.SandboxSpec) *ctxsandbox.SandboxHandle {
	t.Helper()
	h, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestDefaults(t *testing.T) {
	c, _ := client(t)
	h := create(t, c, ctxsandbox.SandboxSpec{Name: "one", Labels: map[string]string{"team": "red"}})
	info := h.Sandbox().Info()
	if info.Resources.Memory != ctxsandbox.DefaultMemory || info.Resources.CPUs != ctxsandbox.DefaultCPUs {
		t.Errorf("resources are %+v", info.Resources)
	}
	if left := time.Until(info.Expires); left <= ctxsandbox.DefaultLifetime-time.Minute || left > ctxsandbox.DefaultLifetime {
		t.Errorf("it ends in %v", left)
	}
	if h.Labels()["team"] != "red" {
		t.Errorf("labels are %v", h.Labels())
	}
	again, err := c.Get(t.Context(), "one")
	if err != nil || again.ID() != h.ID() {
		t.Errorf("found %v, %v", again, err)
	}
	if _, err := c.Create(t.Context(), ctxsandbox.SandboxSpec{Name: "one"}); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		t.Errorf("a second one: %v", err)
	}
	if err := c.Remove(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	if err := c.Remove(t.Context(), "one"); err != nil {
		t.Errorf("removed twice: %v", err)
	}
}

func TestResults(t *testing.T) {
	c, _ := client(t)
	h := create(t, c, ctxsandbox.SandboxSpec{})
	res, err := h.Shell(t.Context(), "echo out; echo err >&2; exit 3", time.Minute)
	if err != nil || res.OK() || res.ExitCode != 3 || res.Output() != "out\nerr\n" {
		t.Errorf("%+v, %v", res, err)
	}
	res, err = h.Exec(t.Context(), "sleep", []string{"600"}, 10*time.Millisecond)
	if err != nil || res.OK() || !res.TimedOut {
		t.Errorf("%+v, %v", res, err)
	}
	res, err = h.Shell(t.Context(), "yes | head -c 1048577", time.Minute)
	if err != nil || !res.OK() || !res.Truncated || len(res.Stdout) != ctxsandbox.MaxOutput {
		t.Errorf("%d bytes, truncated: %t, exit code %d, %v", len(res.Stdout), res.Truncated, res.ExitCode, err)
	}
}

// A command ends with the context of its caller.
func TestCancel(t *testing.T) {
	c, _ := client(t)
	h := create(t, c, ctxsandbox.SandboxSpec{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Exec(ctx, "sleep", []string{"600"}, 0); sandbox.CodeOf(err) != sandbox.CodeTimeout {
		t.Errorf("got %v", err)
	}
	for busy := true; busy; time.Sleep(time.Millisecond) { // the test's deadline bounds it
		all, err := h.Sandbox().Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		busy = false
		for _, p := range all {
			busy = busy || p.Running
		}
	}
}

// The logs include commands in the foreground.
func TestLogs(t *testing.T) {
	c, _ := client(t)
	h := create(t, c, ctxsandbox.SandboxSpec{})
	for _, script := range []string{"echo one", "echo two; echo three", "echo four"} {
		if _, err := h.Shell(t.Context(), script, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	p, err := h.Sandbox().Exec(t.Context(), sandbox.Command{Shell: "echo five; exit", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for tail, want := range map[int]string{0: "one\ntwo\nthree\nfour\nfive\n", 1: "five\n", 3: "three\nfour\nfive\n", 9: "one\ntwo\nthree\nfour\nfive\n"} {
		if got, err := h.Logs(t.Context(), tail); err != nil || got != want {
			t.Errorf("the last %d lines: %q, %v; want %q", tail, got, err, want)
		}
	}
}

func TestKillEndsTheSandbox(t *testing.T) {
	c, plain := client(t)
	h := create(t, c, ctxsandbox.SandboxSpec{Name: "one"})
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for info := range plain.List(t.Context(), atoll.ListOptions{}) {
		t.Errorf("%s was left", info.Name)
	}
}

func TestOneShots(t *testing.T) {
	c, plain := client(t)
	res, err := c.RunShell(t.Context(), "echo hi; exit 4", 0, ctxsandbox.SandboxSpec{})
	if err != nil || res.Output() != "hi\n" || res.ExitCode != 4 {
		t.Errorf("%+v %v", res, err)
	}
	// The sandboxes of this provider have no python3: the command ends with 127.
	if res, err = c.RunPython(t.Context(), "print(1)", 0, ctxsandbox.SandboxSpec{}); err != nil || res.ExitCode != 127 {
		t.Errorf("%+v %v", res, err)
	}
	// The sandbox is removed whenever the caller cancels, even while the sandbox is
	// being made.
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i)*100*time.Microsecond, cancel)
		if _, err := c.RunShell(ctx, "sleep 600", 0, ctxsandbox.SandboxSpec{}); sandbox.CodeOf(err) != sandbox.CodeCanceled {
			t.Errorf("got %v", err)
		}
	}
	for info := range plain.List(t.Context(), atoll.ListOptions{}) {
		t.Errorf("%s was left in state %s", info.Name, info.State)
	}
}

func TestUnavailable(t *testing.T) {
	none, err := atoll.New(atoll.Options{Host: "unix://" + t.TempDir() + "/none.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	_, err = ctxsandbox.New(none).RunShell(t.Context(), "true", 0, ctxsandbox.SandboxSpec{})
	if !errors.Is(err, ctxsandbox.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestSpecIsRefused(t *testing.T) {
	c, _ := client(t)
	for name, spec := range map[string]ctxsandbox.SandboxSpec{
		"a name with spaces":         {Name: "a b"},
		"memory below zero":          {Memory: -1 << 40},
		"a secret that is not there": {Secrets: []string{"missing"}},
		"a workspace that is a path": {Workspace: "../etc"},
	} {
		h, err := c.Create(t.Context(), spec)
		if err == nil {
			t.Errorf("%s: made %s", name, h.Name())
		} else if strings.Contains(err.Error(), "panic") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
