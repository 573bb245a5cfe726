package workspaces

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// No directory above a protected path can be renamed: each is a mount or below
// a read-only one.
func TestMountsOfWorkspace(t *testing.T) {
	for _, tt := range []struct {
		writable, readOnly []string
		want               string
	}{
		{nil, nil, "/workspace"},
		{nil, []string{"lib"}, "/workspace /workspace/lib:ro"},
		{nil, []string{"a/b/lib"}, "/workspace /workspace/a /workspace/a/b /workspace/a/b/lib:ro"},
		{nil, []string{"a/b/lib", "a/c"}, "/workspace /workspace/a /workspace/a/b /workspace/a/b/lib:ro /workspace/a/c:ro"},
		{[]string{"a/out"}, nil, "/workspace:ro /workspace/a/out"},
		{[]string{"a"}, []string{"a/b/c"}, "/workspace:ro /workspace/a /workspace/a/b /workspace/a/b/c:ro"},
		{[]string{"a/b/c"}, []string{"a"}, "/workspace:ro /workspace/a:ro /workspace/a/b/c"},
		{[]string{"a/b/c/d/e"}, []string{"a/b/c/d/e/f/g"}, "/workspace:ro /workspace/a/b/c/d/e /workspace/a/b/c/d/e/f /workspace/a/b/c/d/e/f/g:ro"},
	} {
		var got string
		for i, m := range mountsOf("/host/tree", &sandbox.WorkspaceMount{Writable: tt.writable, ReadOnly: tt.readOnly}) {
			if i > 0 {
				got += " "
			}
			if got += m.Target; m.ReadOnly {
				got += ":ro"
			}
			if want := "/host/tree" + m.Target[len("/workspace"):]; m.Source != want {
				t.Errorf("%s is %s", m.Target, m.Source)
			}
		}
		if got != tt.want {
			t.Errorf("%v %v: %s, want %s", tt.writable, tt.readOnly, got, tt.want)
		}
	}
}
