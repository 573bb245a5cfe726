package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// A state directory that lost a part, or has one of elsewhere, is no first
// start: the daemon refuses it by name, changes nothing, and starts when the part
// is back or its loss was accepted.
func TestAttackStateThatContradictsItself(t *testing.T) {
	from := daemontest.New(t)
	ok(t, from.Start(t, nil).Close())
	for _, part := range []string{"atoll.db", "audit.key", "seal.key", "secret.key", "workspace.key", "anchors", "blobs"} {
		for what, change := range map[string]func(t *testing.T, path string){
			"missing": func(t *testing.T, path string) { ok(t, os.RemoveAll(path)) },
			"empty": func(t *testing.T, path string) {
				ok(t, os.RemoveAll(path))
				if strings.Contains(part, ".") {
					ok(t, os.WriteFile(path, nil, 0o600))
				} else {
					ok(t, os.Mkdir(path, 0o700))
				}
			},
			"another one": func(t *testing.T, path string) {
				ok(t, os.RemoveAll(path))
				if strings.Contains(part, ".") {
					content, err := os.ReadFile(filepath.Join(from.Dir, part))
					ok(t, err)
					ok(t, os.WriteFile(path, content, 0o600))
				} else {
					ok(t, os.CopyFS(path, os.DirFS(filepath.Join(from.Dir, part))))
				}
			},
		} {
			t.Run(part+" "+what, func(t *testing.T) {
				t.Parallel()
				m := daemontest.New(t)
				ok(t, m.Start(t, nil).Close())
				path := filepath.Join(m.Dir, part)
				kept := path + ".kept"
				ok(t, os.Rename(path, kept))
				change(t, path)
				for range 2 { // the first attempt must not make up what is missing
					_, err := daemon.Start(t.Context(), m.Options())
					wantCode(t, err, sandbox.CodeConflict)
					if !strings.Contains(err.Error(), part+" is ") {
						t.Fatalf("the refusal names another part: %v", err)
					}
				}
				ok(t, os.RemoveAll(path))
				ok(t, os.Rename(kept, path))
				ok(t, m.Start(t, nil).Close())
				ok(t, os.Rename(path, kept))
				change(t, path)
				if part != "atoll.db" || what != "another one" { // which only opening it shows
					lost, err := daemon.Accept(t.Context(), m.Dir)
					if err != nil || len(lost) != 1 || !strings.HasPrefix(lost[0], part+" is ") {
						t.Fatalf("%q, %v", lost, err)
					}
					ok(t, m.Start(t, nil).Close())
				}
			})
		}
	}
}
