package stack_test

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/internal/image/stack"
)

func dir(children map[string]*mkfs.Node) *mkfs.Node {
	if children == nil {
		children = map[string]*mkfs.Node{}
	}
	return &mkfs.Node{Mode: unix.S_IFDIR | 0o755, Children: children}
}

func file() *mkfs.Node { return &mkfs.Node{Mode: unix.S_IFREG | 0o644} }

// shown lists the names of a tree in order: NAME/ is a directory, -NAME a whiteout.
func shown(n *mkfs.Node, prefix string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(n.Children)) {
		c := n.Children[name]
		switch {
		case c.IsDir():
			all = append(all, prefix+name+"/")
			all = append(all, shown(c, prefix+name+"/")...)
		case c.Mode&unix.S_IFMT == unix.S_IFCHR:
			all = append(all, prefix+"-"+name)
		default:
			all = append(all, prefix+name)
		}
	}
	return all
}

// The layer between two trees has what changed and nothing else. A file with several names
// is in it with all of them, because a hard link does not reach into another layer.
func TestDelta(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(root *mkfs.Node)
		want   string
	}{
		{"nothing", func(*mkfs.Node) {}, ""},
		{"a new file", func(r *mkfs.Node) { r.Children["etc"].Children["new"] = file() }, "etc/ etc/new"},
		{"a changed file", func(r *mkfs.Node) { r.Children["etc"].Children["passwd"] = file() }, "etc/ etc/passwd"},
		{"a removed file", func(r *mkfs.Node) { delete(r.Children["etc"].Children, "passwd") }, "etc/ etc/-passwd"},
		{"a removed directory", func(r *mkfs.Node) { delete(r.Children, "etc") }, "-etc"},
		{"a new empty directory", func(r *mkfs.Node) { r.Children["new"] = dir(nil) }, "new/"},
		{"a new directory with a file", func(r *mkfs.Node) { r.Children["new"] = dir(map[string]*mkfs.Node{"x": file()}) }, "new/ new/x"},
		{"another mode of a directory", func(r *mkfs.Node) { r.Children["etc"].Mode = unix.S_IFDIR | 0o700 }, "etc/"},
		{"another owner of a directory", func(r *mkfs.Node) { r.Children["etc"].GID = 7 }, "etc/"},
		{"another time of a directory", func(r *mkfs.Node) { r.Children["etc"].MTimeNsec = 7 }, "etc/"},
		{"a file in place of a directory", func(r *mkfs.Node) { r.Children["etc"] = file() }, "etc"},
		{"a directory in place of a file", func(r *mkfs.Node) { r.Children["etc"].Children["passwd"] = dir(map[string]*mkfs.Node{"x": file()}) }, "etc/ etc/passwd/ etc/passwd/x"},
		{"another name of a file", func(r *mkfs.Node) { r.Children["copy"] = r.Children["etc"].Children["passwd"] }, "copy etc/ etc/passwd"},
		{"one name less of a file with two", func(r *mkfs.Node) { delete(r.Children, "two") }, "one -two"},
		{"another directory above a file with two names", func(r *mkfs.Node) {
			r.Children["sub"] = dir(map[string]*mkfs.Node{"two": r.Children["two"]})
			delete(r.Children, "two")
		}, "one sub/ sub/two -two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both := file()
			below := dir(map[string]*mkfs.Node{"etc": dir(map[string]*mkfs.Node{"passwd": file(), "group": file()}), "one": both, "two": both})
			top := stack.Directories(below)
			tt.change(top)
			layer := stack.Delta(below, top)
			got := shown(layer, "")
			want := strings.Fields(tt.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("the layer has %q, want %q", got, want)
			}
			if n := len(below.Children["etc"].Children); n != 2 || len(below.Children) != 3 {
				t.Errorf("the tree below has %d names and %d in etc, want 3 and 2 as before", len(below.Children), n)
			}
		})
	}
}

// The bits of a mode are those of chmod.
func TestModeBits(t *testing.T) {
	for mode, want := range map[fs.FileMode]uint16{
		0o644:                                 0o644,
		fs.ModeDir | 0o755:                    0o755,
		fs.ModeSetuid | 0o755:                 0o4755,
		fs.ModeSetgid | 0o755:                 0o2755,
		fs.ModeSticky | 0o777:                 0o1777,
		fs.ModeSymlink | 0o777:                0o777,
		fs.ModeNamedPipe | 0o600:              0o600,
		fs.ModeSetuid | fs.ModeSetgid | 0o711: 0o6711,
	} {
		if got := stack.ModeBits(mode); got != want {
			t.Errorf("the bits of %v are %o, want %o", mode, got, want)
		}
	}
}
