package request

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// volume parses HOST:GUEST[:ro|:rw]. The host's path may be relative to the
// working directory, and must exist: a typing error must not become an empty
// directory.
func volume(text string) (sandbox.Mount, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return sandbox.Mount{}, volumeError(text, "is not HOST:GUEST or HOST:GUEST:ro")
	}
	m := sandbox.Mount{Source: parts[0], Target: parts[1]}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			m.ReadOnly = true
		case "rw":
		default:
			return sandbox.Mount{}, volumeError(text, "ends in something other than ro or rw")
		}
	}
	if !strings.HasPrefix(m.Target, "/") {
		return sandbox.Mount{}, volumeError(text, "names a place inside that is not an absolute path")
	}
	if strings.IndexByte(m.Source, 0) >= 0 {
		return sandbox.Mount{}, volumeError(text, "contains a NUL byte")
	}
	source, err := filepath.Abs(m.Source)
	if err != nil {
		return sandbox.Mount{}, term.BadFlag("volume", "%v", err)
	}
	if _, err := os.Stat(source); err != nil {
		e := term.BadFlag("volume", "%v", err)
		e.Hint = "create it first; Atoll does not create host directories"
		return sandbox.Mount{}, e
	}
	m.Source = source
	return m, nil
}

func volumeError(text, problem string) error {
	e := term.BadFlag("volume", "%q %s", text, problem)
	e.Hint = "for example: --volume ./data:/data:ro"
	return e
}
