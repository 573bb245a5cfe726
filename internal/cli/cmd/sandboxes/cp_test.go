package sandboxes

import (
	"io"
	"io/fs"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/term"
)

func TestSplitPlace(t *testing.T) {
	for text, want := range map[string][2]string{
		"demo:/tmp": {"demo", "/tmp"}, "demo:": {"demo", ""}, "./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"},
		"file": {"", "file"}, "-": {"", "-"}, "Demo:/x": {"", "Demo:/x"}, "demo:a:b": {"demo", "a:b"},
	} {
		if sandbox, p := splitPlace(text); sandbox != want[0] || p != want[1] {
			t.Errorf("%s: %q %q", text, sandbox, p)
		}
	}
	for p, want := range map[string]string{"": "/", "..": "/", "/a/../../b": "/b", "a/b": "/a/b"} {
		if got := inside(p); got != want {
			t.Errorf("inside(%q) is %q", p, got)
		}
	}
}

// Errors name the file as the user did.
func TestUnread(t *testing.T) {
	denied := &fs.PathError{Op: "openat", Path: "shadow", Err: fs.ErrPermission}
	for from, want := range map[string]string{"/etc/shadow": "/etc/shadow: permission denied", "/etc": "/etc: shadow: permission denied"} {
		if text, _ := term.Explain(unread(from, denied)); text != want {
			t.Errorf("%q, want %q", text, want)
		}
	}
	if err := unread("x", io.ErrUnexpectedEOF); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
}
