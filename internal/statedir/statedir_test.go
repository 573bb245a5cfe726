package statedir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func env(vars ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(vars); i += 2 {
			if vars[i] == name {
				return vars[i+1], true
			}
		}
		return "", false
	}
}

func TestDefault(t *testing.T) {
	tests := []struct {
		name string
		uid  int
		env  []string
		want string // "" for a refusal
	}{
		{"root", 0, []string{"HOME", "/root"}, "/var/lib/atoll"},
		{"root with its own", 0, []string{"ATOLL_STATE_DIR", "/x"}, "/x"},
		{"a user", 7, []string{"HOME", "/home/u"}, "/home/u/.local/state/atoll"},
		{"a user with XDG", 7, []string{"HOME", "/home/u", "XDG_STATE_HOME", "/s"}, "/s/atoll"},
		{"a relative XDG is ignored", 7, []string{"HOME", "/home/u", "XDG_STATE_HOME", "s"}, "/home/u/.local/state/atoll"},
		{"nobody", 7, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := byDefault(tt.uid, env(tt.env...))
			if got != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	made := filepath.Join(dir, "a", "b")
	if got, err := Open(made, env()); err != nil || got != made {
		t.Fatalf("%q, %v", got, err)
	}
	if info, _ := os.Stat(made); info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(made, link); err != nil {
		t.Fatal(err)
	}
	if got, err := Open(link, env()); err != nil || got != made {
		t.Errorf("through a link: %q, %v", got, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() string{
		"a file":           func() string { return file },
		"group-writable":   func() string { _ = os.Chmod(made, 0o770); return made },
		"world-writable":   func() string { _ = os.Chmod(made, 0o707); return made },
		"through the link": func() string { _ = os.Chmod(made, 0o707); return link },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Open(change(), env()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("got %v", err)
			}
			_ = os.Chmod(made, 0o707)
		})
	}
	if err := CheckOwned(dir, uint32(os.Geteuid())+1); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("somebody else's: %v", err)
	}
}

// A state directory that was there before, and that others may look into, is
// theirs no longer once it is used.
func TestAttackReadableStateDir(t *testing.T) {
	for _, mode := range []os.FileMode{0o755, 0o711, 0o750, 0o704, os.ModeSetgid | 0o755, os.ModeSticky | 0o755} {
		made := filepath.Join(t.TempDir(), "state")
		if err := errors.Join(os.Mkdir(made, 0o700), os.Chmod(made, mode)); err != nil {
			t.Fatal(err)
		}
		link := made + "-link"
		if err := os.Symlink(made, link); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(link, env()); err != nil {
			t.Errorf("%v: %v", mode, err)
		}
		if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v became %v, %v", mode, info.Mode(), err)
		}
	}
}
