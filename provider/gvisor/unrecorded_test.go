package gvisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// A maker can be killed right after it has started a kernel and before the
// kernel is recorded. The next sweep must find this process and no other.
func TestSweepFindsUnrecordedKernel(t *testing.T) {
	parent := t.TempDir()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	r := &record{ID: sandbox.ID("half"), Maker: processRef{PID: gone.Process.Pid, Start: 1, Boot: bootID()}}
	b, upper, err := createStateDir(parent, r)
	if err != nil {
		t.Fatal(err)
	}
	start := func(bundle string, files ...*os.File) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sh", "-c", "echo; read x <&0; sleep 1000", "kernel", "--bundle="+bundle)
		in, silent, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { silent.Close() }) // keeps it from being collected, which would unblock the process
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin, cmd.ExtraFiles = in, files
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it has executed
			t.Fatal(err)
		}
		return cmd
	}
	kernel := start(b.dir, upper)
	other := start(filepath.Join(parent, "half-sister"))
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	upper.Close()
	if b.dead() {
		t.Fatal("the lock is free")
	}
	swept := make(chan error, 1)
	go func() { swept <- sweep(parent, time.Now()) }()
	if err := kernel.Wait(); err == nil || !kernel.ProcessState.Sys().(interface{ Signaled() bool }).Signaled() {
		t.Errorf("the kernel ended by itself: %v", err)
	}
	if err := <-swept; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.dir); !os.IsNotExist(err) {
		t.Errorf("its directory is left: %v", err)
	}
	if err := unix.Kill(other.Process.Pid, 0); err != nil {
		t.Errorf("another process was killed: %v", err)
	}
}
