package scratch

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const childEnv = "ATOLL_TEST_SCRATCH"

// TestMain is the process that is killed, too.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		dir, _, err := Dir("kind-")
		if err != nil {
			panic(err)
		}
		os.Stdout.WriteString(dir)
		os.Stdout.Close()
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test kills it
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// age makes a directory look old.
func age(t *testing.T, dir string) {
	t.Helper()
	then := time.Now().Add(-2 * young)
	if err := os.Chtimes(dir, then, then); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestKilledMaker(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if _, err := cmd.StdinPipe(); err != nil { // it blocks on reading
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	name := make([]byte, 4096)
	n, _ := out.Read(name) // the test fails below if there is none
	dir := string(name[:n])
	if err := os.WriteFile(filepath.Join(dir, "content"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(filepath.Dir(dir), "other-1")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(dir), "kind-link")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	age(t, dir)
	age(t, other)
	sweep("kind-", time.Now())
	if !exists(dir) {
		t.Error("what is in use was removed")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	again, remove, err := Dir("kind-")
	if err != nil {
		t.Fatal(err)
	}
	if exists(dir) || !exists(other) || !exists(link) || !exists(again) {
		t.Errorf("left: %t, another's: %t, a link: %t, own: %t", exists(dir), exists(other), exists(link), exists(again))
	}
	if err := remove(); err != nil || exists(again) {
		t.Errorf("removing: %v, %t", err, exists(again))
	}
}

func TestYoungStays(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dir := filepath.Join(tmp, "kind-1") // another process is about to lock it
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sweep("kind-", time.Now())
	if !exists(dir) {
		t.Error("a directory that was just made is gone")
	}
}
