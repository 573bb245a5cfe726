package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// A stopped kernel blocks only requests for its own sandbox, and these get an
// error. After SIGCONT the sandbox works; until then it can be removed.
func TestFrozenKernel(t *testing.T) {
	s := newSoaker(t)
	frozen, other := s.sandbox(t, "frozen"), s.sandbox(t, "other")
	p, err := frozen.Exec(t.Context(), sandbox.Command{Shell: "while read x; do echo got $x; done; exit 3", Stdin: true, Hold: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	kernel := s.kernel(t, frozen)
	signal(t, kernel, syscall.SIGSTOP)
	stopped := true
	defer func() {
		if stopped {
			_ = syscall.Kill(kernel, syscall.SIGCONT)
		}
	}()

	var calls sync.WaitGroup
	for what, call := range map[string]func() error{
		"exec": func() error {
			_, err := frozen.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
			return err
		},
		"stat": func() error { _, err := frozen.Files().Stat(t.Context(), "/"); return err },
		"write": func() error {
			_, err := frozen.Files().Write(t.Context(), "/x", strings.NewReader("x"), atoll.WriteOptions{})
			return err
		},
		"ps":    func() error { _, err := frozen.Processes(t.Context()); return err },
		"pause": func() error { _, err := frozen.Pause(t.Context(), sandbox.PauseMemory); return err },
		"dial":  func() error { _, err := frozen.Dial(t.Context(), 80); return err },
	} {
		calls.Go(func() { wantCode(t, what, call(), sandbox.CodeUnavailable) })
	}
	for range 3 { // other sandboxes are not affected
		run(t, other, "true")
		if err := s.sandbox(t, "").Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	calls.Wait()

	// A daemon that attaches to it is not blocked either.
	s.kill()
	s.start(t)
	run(t, other, "true")
	_, err = frozen.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, "exec with another daemon", err, sandbox.CodeUnavailable)
	if again, err := s.client.Get(t.Context(), "frozen"); err != nil || again.Info().State != sandbox.Lost && again.Info().State != sandbox.Running {
		t.Errorf("it is %q, %v", again.Info().State, err)
	}

	signal(t, kernel, syscall.SIGCONT)
	stopped = false
	if err := persist(t.Context(), func() error {
		_, err := frozen.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
		return err
	}); err != nil {
		t.Errorf("after SIGCONT: %v", err)
	}
	if _, err := io.WriteString(p.Stdin(), "there\n"); err != nil {
		t.Error(err)
	}
	_ = p.Stdin().Close()
	if out, err := io.ReadAll(p.Stdout()); err != nil || string(out) != "got there\n" {
		t.Errorf("the command that ran meanwhile: %q, %v", out, err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}

	signal(t, kernel, syscall.SIGSTOP)
	if err := frozen.Destroy(t.Context()); err != nil {
		t.Errorf("it cannot be removed while it is stopped: %v", err)
	}
	if state := s.really(t)[frozen.ID()]; state != "" {
		t.Errorf("it is removed and is %q", state)
	}
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", kernel)); err == nil { // a zombie has none
		t.Error("its kernel still exists")
	}
}
