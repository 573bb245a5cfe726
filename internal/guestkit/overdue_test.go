package guestkit

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKillScript: a command is killed with its process group, even if it does
// not lead it. A command that has ended is not an error.
func TestKillScript(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep 600 & echo $!; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	member := strings.TrimSpace(line)
	for range 2 {
		if text, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", killScript, "sh", member).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, text)
		}
		_ = cmd.Wait()
	}
	if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the leader of the group ended with %v", cmd.ProcessState)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + member + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") { // it may be a zombie
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the member lives: %s", stat)
		}
	}
}
