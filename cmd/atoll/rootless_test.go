package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// somebody is an unprivileged user of the machine without an entry in
// /etc/passwd.
const somebody = 54321

// TestRootless runs the first steps of a new user, as an unprivileged user with
// a daemon, and checks what is left behind.
func TestRootless(t *testing.T) {
	need.Root(t, "otherwise such a user runs all tests")
	home := filepath.Join(built.dir, "somebody-"+rand.Text())
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, somebody, somebody); err != nil {
		t.Fatal(err)
	}
	try := func(args ...string) (string, error) {
		cmd := exec.Command(built.atoll, args...)
		cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: somebody, Gid: somebody}}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	atoll := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatalf("atoll %v: %v\n%s", args, err, out)
		}
		return out
	}
	refused := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err == nil {
			t.Errorf("atoll %v is not refused:\n%s", args, out)
		}
		return out
	}
	t.Cleanup(func() {
		atoll("rm", "--all", "--force")
		atoll("down")
		if left := processesOfUser(t, somebody); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})

	doctor, _, _ := strings.Cut(atoll("doctor"), "\n\n")
	for _, want := range []string{
		": available", "note     user: not root: sandboxes run as this user",
		"limit    pids: holds, by the sandbox's own kernel", "limit    disk: holds, by the sandbox's own kernel",
		"limit    lifetime: holds",
	} {
		if !strings.Contains(doctor, want) {
			t.Errorf("doctor does not say %q:\n%s", want, doctor)
		}
	}
	// The enforced limits depend on whether control groups are delegated to the
	// user.
	for _, limit := range []string{"cpus", "memory"} {
		holds := strings.Contains(doctor, "limit    "+limit+": holds, by cgroup v")
		named := strings.Contains(doctor, "limit    "+limit+": does not hold: no ") && strings.Contains(doctor, "fix: run as root, or let systemd delegate")
		if holds == named {
			t.Errorf("doctor does not report whether the limit of %s holds:\n%s", limit, doctor)
		}
	}

	if strings.Contains(doctor, "limit    memory: does not hold") {
		looseLimits(t, atoll, refused)
	}
	if got := atoll("run", "--", "sh", "-c", "echo $((6*7))"); got != "42" {
		t.Errorf("it said %q", got)
	}
	// Root inside is mapped to this user outside.
	if got := atoll("run", "-v", home+":/w", "--", "sh", "-c", "id -u; echo mine > /w/mine"); got != "0" {
		t.Errorf("inside it is user %q", got)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(home, "mine"), &st); err != nil || st.Uid != somebody {
		t.Errorf("what it wrote belongs to %d, %v", st.Uid, err)
	}
	atoll("run", "-d", "--name", "demo", "--", "sleep", "600")
	atoll("exec", "demo", "--", "sh", "-c", "echo kept > /root/file")
	atoll("cp", "demo:/root/file", "copy")
	atoll("pause", "demo")
	atoll("resume", "demo")
	atoll("snapshot", "create", "demo", "--name", "saved")
	atoll("run", "-d", "--name", "twin", "--snapshot", "saved", "--", "sleep", "600")
	for _, name := range []string{"demo", "twin"} {
		if got := atoll("exec", name, "--", "cat", "/root/file"); got != "kept" {
			t.Errorf("%s has %q", name, got)
		}
	}
	if copied, err := os.ReadFile(filepath.Join(home, "copy")); err != nil || string(copied) != "kept\n" {
		t.Errorf("copied %q, %v", copied, err)
	}
}

// looseLimits checks that a limit that is not enforced is never shown as
// enforced.
func looseLimits(t *testing.T, atoll, refused func(args ...string) string) {
	t.Helper()
	const note = "note: the limit of memory is not enforced: no memory control group can be made here"
	for _, args := range [][]string{
		{"run", "--memory", "256m", "--", "true"},
		{"create", "--memory", "256m", "--name", "limited"},
		{"update", "--memory", "300m", "limited"},
	} {
		if got := atoll(args...); !strings.Contains(got, note) {
			t.Errorf("atoll %v says %q", args, got)
		}
	}
	if got := atoll("inspect", "limited"); !strings.Contains(got, `"enforced": false`) || !strings.Contains(got, "314572800") {
		t.Errorf("inspect says %s", got)
	}
	if got := atoll("top", "--no-stream", "limited"); !strings.Contains(got, "MiB / -") {
		t.Errorf("top says %s", got)
	}
	for _, command := range []string{"run", "create"} {
		args := []string{command, "--memory", "256m", "--require-limits"}
		if command == "run" {
			args = append(args, "--", "true")
		}
		if got := refused(args...); !strings.Contains(got, "error: memory: the limit is not enforced here: no memory control group") {
			t.Errorf("atoll %v says %q", args, got)
		}
	}
	if got := refused("update", "--memory", "400m", "--require-limits", "limited"); !strings.Contains(got, "the limit is not enforced here") {
		t.Errorf("update says %q", got)
	}
	atoll("run", "--pids", "100", "--require-limits", "--", "true") // an enforced limit
	atoll("rm", "-f", "limited")
}

// processesOfUser lists the processes of a user of the machine.
func processesOfUser(t *testing.T, uid int) (left []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		var st syscall.Stat_t
		if syscall.Stat(dir, &st) == nil && int(st.Uid) == uid {
			// Zombies have no command line.
			if line, err := os.ReadFile(dir + "/cmdline"); err == nil && len(line) > 0 {
				left = append(left, fmt.Sprintf("%s %q", dir, line))
			}
		}
	}
	return left
}
