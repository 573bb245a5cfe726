//go:build bridge

package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// npm installs the packages of locks/package-lock.json, copies the program
// beside them so that node finds its imports, and returns the directory.
func npm(t *testing.T) string {
	t.Helper()
	dir := install(t, "js", []string{"locks/package.json", "locks/package-lock.json"},
		[]string{"npm", "ci", "--no-fund", "--no-audit", "--ignore-scripts", "--legacy-peer-deps"})
	text, err := os.ReadFile("js/main.mjs")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.mjs"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// pip installs the packages of locks/requirements.txt into a virtual
// environment and returns its directory.
func pip(t *testing.T) string {
	t.Helper()
	return install(t, "py", []string{"locks/requirements.txt"},
		[]string{"python3", "-m", "venv", "--without-pip", "."},
		[]string{
			"python3", "-m", "pip", "--python", "bin/python", "install", "-q", "--disable-pip-version-check", "--no-compile", "--no-deps",
			"--only-binary=:all:", "--require-hashes", "-r", "requirements.txt",
		})
}

// install creates a directory of the cache atomically. Its name identifies its
// contents.
func install(t *testing.T, name string, files []string, steps ...[]string) string {
	t.Helper()
	base := os.Getenv("ATOLL_BRIDGE_CACHE")
	if base == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		base = filepath.Join(user, "atoll-bridge")
	}
	sum, content := sha256.New(), map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		content[filepath.Base(file)] = text
		sum.Write(text)
	}
	dir := filepath.Join(base, name+"-"+hex.EncodeToString(sum.Sum(nil)[:6]))
	done := filepath.Join(dir, ".complete")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range content {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range steps {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(step, " "), err, out)
		}
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
