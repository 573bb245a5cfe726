package servicetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrUnavailable says that packages cannot be installed here: there is no Python,
// or no package index can be reached.
var ErrUnavailable = errors.New("no packages of Python can be installed here")

// unreachable is what pip says when it reaches no index.
var unreachable = regexp.MustCompile(`NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|Temporary failure in name resolution|Network is unreachable`)

// Python installs what a lock file says, with the hashes of all packages, into a
// virtual environment in the user's cache, and returns its interpreter.
func Python(ctx context.Context, lock string) (interpreter string, err error) {
	text, err := os.ReadFile(lock)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	sum := sha256.Sum256(append(text, python...))
	dir := filepath.Join(cache, "atoll-sdk", hex.EncodeToString(sum[:8]))
	interpreter = filepath.Join(dir, "bin", "python")
	done := filepath.Join(dir, ".complete")
	if _, err := os.Stat(done); err == nil {
		return interpreter, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	steps := [][]string{
		{python, "-m", "venv", dir},
		{interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", lock},
	}
	for _, step := range steps {
		out, err := exec.CommandContext(ctx, step[0], step[1:]...).CombinedOutput()
		if err != nil && unreachable.Match(out) {
			return "", fmt.Errorf("%w: no package index can be reached", ErrUnavailable)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(step, " "), err, out)
		}
	}
	return interpreter, os.WriteFile(done, nil, 0o600)
}
