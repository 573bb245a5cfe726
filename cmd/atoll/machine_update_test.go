package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// A machine whose owner turned updates on continues in the program of its daemon,
// with the same process.
func TestMachineUpdates(t *testing.T) {
	fullOnly(t)
	old, next := filepath.Join(built.dir, "atoll-0.4.0"), filepath.Join(built.dir, "atoll-0.5.0")
	goBuild(t, old, ".", "-X main.release=0.4.0")
	goBuild(t, next, ".", "-X main.release=0.5.0")
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: "127.0.0.1:0"}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, "127.0.0.1")
	broker.start(t)
	s := soakerOf(t, next, filepath.Join(t.TempDir(), "state"), "--machines-file", broker.file("machines.json"))
	invited, err := s.client.Admin().InviteMachine(t.Context(), operator.NewMachineToken{Name: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(invited.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(old, append([]string{"--state-dir", state, "machine"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("join", "--enrol-only", "--yes", "--token-file", token, "--ca", broker.file("cert.pem"), "tls://"+broker.address)
	if out := run("status"); strings.Contains(out, "updates") {
		t.Errorf("the machine has agreed to updates after joining: %s", out)
	}
	serve := exec.Command(old, "--state-dir", state, "machine", "join")
	var said safeBuffer
	serve.Stderr = &said
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
	}()
	runs := func(version string) {
		t.Helper()
		var out string
		err := eventually(func() error {
			if out = run("status", "--json"); strings.Contains(out, `"version": "`+version+`"`) && strings.Contains(out, `"connected": true`) {
				return nil
			}
			return errors.New(out)
		})
		if err != nil {
			t.Fatalf("version %s does not serve: %v; it says %s", version, err, &said)
		}
	}
	runs("0.4.0")
	if out := run("updates", "on", "--yes"); !strings.Contains(out, "run any program as you") {
		t.Errorf("turning updates on does not say what the owner agrees to: %s", out)
	}
	if out := run("status"); !strings.Contains(out, "updates") {
		t.Errorf("the consent to updates is not shown: %s", out)
	}
	runs("0.5.0")
	err = eventually(func() error { // after its trial
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", serve.Process.Pid))
		if err == nil && !strings.HasPrefix(exe, filepath.Join(state, "machine", "program")) {
			err = fmt.Errorf("the process runs %s", exe)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	runs("0.5.0")
}
