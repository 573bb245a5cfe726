package sandboxes

import "testing"

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
