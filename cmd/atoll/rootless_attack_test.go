package main

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// owner and neighbour are unprivileged users of the machine.
const (
	owner     = 54331
	neighbour = 54332
)

// TestAttackOtherLocalUser searches, as another user of the machine, for
// everything that a user's daemon and sandboxes leave accessible: files,
// sockets, and processes through /proc. Every user may enter the home
// directory.
func TestAttackOtherLocalUser(t *testing.T) {
	need.Root(t, "it is two other users")
	const canary = "canary-of-the-owner"
	home := filepath.Join(built.dir, "owner-"+rand.Text())
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, owner, owner); err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, env []string, args ...string) (string, error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = "/", append([]string{"HOME=" + home, "PATH=/usr/bin:/bin"}, env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	atoll := func(args ...string) {
		t.Helper()
		if out, err := as(owner, []string{"PASSWORD=" + canary}, append([]string{built.atoll}, args...)...); err != nil {
			t.Fatalf("atoll %v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() {
		atoll("rm", "--all", "--force")
		atoll("down")
		if left := processesOfUser(t, owner); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	atoll("run", "-d", "--name", "demo", "-e", "PASSWORD", "--", "sleep", "600")
	atoll("exec", "demo", "--", "sh", "-c", "echo "+canary+" > /root/file; echo "+canary+" > /tmp/file")

	found := 0
	for _, pid := range pidsOf(t, owner) {
		found++
		proc := "/proc/" + strconv.Itoa(pid)
		for _, what := range []string{
			": < " + proc + "/environ", ": < " + proc + "/mem", ": < " + proc + "/maps", ": > " + proc + "/mem", ": < " + proc + "/auxv", ": < " + proc + "/io", ": < " + proc + "/syscall",
			"ls " + proc + "/fd/", "ls " + proc + "/root/", "ls " + proc + "/cwd/", "ls " + proc + "/map_files/", "readlink " + proc + "/exe", "readlink " + proc + "/ns/user",
			"echo 1000 > " + proc + "/oom_score_adj", "kill -0 " + strconv.Itoa(pid),
		} {
			if out, err := as(neighbour, nil, "/bin/sh", "-c", what); err == nil {
				t.Errorf("%s: %s", what, out)
			}
		}
		line, _ := os.ReadFile(proc + "/cmdline") // everybody may read it
		if strings.Contains(string(line), canary) {
			t.Errorf("it is in an argument: %q", line)
		}
	}
	if found < 3 {
		t.Errorf("only %d processes of the owner were looked at", found)
	}
	// Except for files of the owner's shell, nothing is readable or writable.
	out, _ := as(neighbour, nil, "/usr/bin/find", home, "-mindepth", "1", "(", "-type", "f", "-readable", "-o", "-type", "s", "-writable", "-o", "-writable", "-not", "-type", "l", ")", "-not", "-path", "*/.cache/*")
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "Permission denied") && strings.TrimSpace(line) != "" {
			t.Errorf("within reach: %s", line)
		}
	}
	// The neighbour's commands reach the owner's daemon, which refuses them.
	for _, args := range [][]string{{"ls"}, {"exec", "demo", "--", "cat", "/root/file"}, {"rm", "-f", "demo"}} {
		if out, err := as(neighbour, nil, append([]string{built.atoll}, args...)...); err == nil || strings.Contains(out, canary) {
			t.Errorf("atoll %v of another user: %s", args, out)
		}
	}
	if out, err := as(owner, nil, built.atoll, "exec", "demo", "--", "cat", "/root/file"); err != nil || out != canary {
		t.Errorf("the owner has %q, %v", out, err)
	}
}

// pidsOf returns the processes of a user.
func pidsOf(t *testing.T, uid uint32) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if info, err := os.Stat("/proc/" + e.Name()); err == nil && info.Sys().(*syscall.Stat_t).Uid == uid {
			pids = append(pids, pid)
		}
	}
	return pids
}
