package main

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Ctrl-C ends atoll create while the registry of its image hangs: the daemon does
// not wait for the image again, and no sandbox is left.
func TestCreateEndsWithCtrlC(t *testing.T) {
	asked := make(chan struct{}, 64)
	hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(hub.Close) // waits until nobody asks any more
	s := soakerOf(t, built.atoll, filepath.Join(t.TempDir(), "state"))
	cmd := exec.Command(s.bin, "create", "--name", "box", "--image", strings.TrimPrefix(hub.URL, "http://")+"/debian:12")
	var said safeBuffer
	cmd.Env, cmd.Stderr = s.env, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	<-asked
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || strings.Contains(said.String(), "too long") {
		t.Errorf("it ends with %d, want 130; it says %s", code, &said)
	}
	if len(asked) > 0 {
		t.Error("the daemon asked the registry again for a request that nobody waits for")
	}
	for sandbox, err := range s.client.List(t.Context()) {
		t.Errorf("left: %+v, %v", sandbox, err)
	}
}
