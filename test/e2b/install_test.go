//go:build e2b

package e2b

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The packages are pinned by hash in the directory locks, and installed into a
// cache directory whose name identifies them. The script lock updates the lock
// files.
const locks = "locks"

// npm installs the packages of locks/NAME/package-lock.json and returns the
// directory.
func npm(t *testing.T, name string) string {
	t.Helper()
	from := filepath.Join(locks, name)
	return install(t, name, []string{filepath.Join(from, "package.json"), filepath.Join(from, "package-lock.json")},
		[]string{"npm", "ci", "--no-fund", "--no-audit", "--ignore-scripts"})
}

// pip installs the packages of locks/NAME.txt into a virtual environment and
// returns its directory. packages.tar in it contains the packages for a
// sandbox.
func pip(t *testing.T, name string) string {
	t.Helper()
	file := name + ".txt"
	// Use the machine's pip, so that environments need none.
	pip := []string{
		python3, "-m", "pip", "--python", "bin/python", "install", "-q", "--disable-pip-version-check", "--no-compile", "--no-deps",
		"--only-binary=:all:", "--require-hashes", "-r", file,
	}
	steps := [][]string{{python3, "-m", "venv", "--without-pip", "."}, pip}
	if name == "matplotlib" {
		steps[1] = append(pip, "--target", "packages")
		steps = append(steps, []string{"tar", "-cf", "packages.tar", "-C", "packages", "."})
	}
	return install(t, name, []string{filepath.Join(locks, file)}, steps...)
}

// python3 is the machine's Python, which sandboxes of the image "host" have,
// too.
const python3 = "/usr/bin/python3"

var installing sync.Mutex

// install creates a directory of the cache atomically.
func install(t *testing.T, name string, files []string, steps ...[]string) string {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	sum := sha256.New()
	content := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		content[filepath.Base(file)] = text
		sum.Write(text)
	}
	dir := filepath.Join(cache(t), name+"-"+hex.EncodeToString(sum.Sum(nil)[:6]))
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

// cache returns the directory of the cache.
func cache(t *testing.T) string {
	t.Helper()
	if base := os.Getenv("ATOLL_E2B_CACHE"); base != "" {
		return base
	}
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(user, "atoll-e2b")
}
