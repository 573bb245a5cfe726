package code

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// service works on the files of the machine.
func service(sb *local) *Service {
	return New(Config{
		Find: func(context.Context, string) (sandbox.Sandbox, error) { return sandbox.Sandbox{ID: "sb-1"}, nil },
		Open: func(context.Context, string) (Sandbox, error) { return sb, nil },
	})
}

func TestPatches(t *testing.T) {
	t.Parallel()
	numbers := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	for _, c := range []struct {
		name, patch string
		files, want map[string]string // "" in want: missing
		code        sandbox.Code
	}{
		{"git", "diff --git a/n b/n\nindex 1..2 100644\n--- a/n\n+++ b/n\n@@ -1,3 +1,4 @@\n 1\n-2\n+two\n+more\n 3\n", map[string]string{"n": numbers}, map[string]string{"n": "1\ntwo\nmore\n3\n4\n5\n6\n7\n8\n9\n"}, ""},
		{"other lines", "--- a/n\n+++ b/n\n@@ -100,2 +100,2 @@\n 8\n-9\n+nine\n", map[string]string{"n": numbers}, map[string]string{"n": "1\n2\n3\n4\n5\n6\n7\n8\nnine\n"}, ""},
		{"two hunks", "--- n\n+++ n\n@@ -1,2 +1,1 @@\n-1\n 2\n@@ -8,2 +7,3 @@\n 8\n+8.5\n 9\n", map[string]string{"n": numbers}, map[string]string{"n": "2\n3\n4\n5\n6\n7\n8\n8.5\n9\n"}, ""},
		{"new and gone", "--- /dev/null\n+++ b/d/new\n@@ -0,0 +1,2 @@\n+a\n+b\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", map[string]string{"old": "x\n"}, map[string]string{"d/new": "a\nb\n", "old": ""}, ""},
		{"new below b", "diff --git a/b/x b/b/x\nnew file mode 100755\n--- /dev/null\n+++ b/b/x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n", nil, map[string]string{"b/x": "a"}, ""},
		{"rename", "diff --git a/old b/new\nsimilarity index 50%\nrename from old\nrename to new\n--- a/old\n+++ b/new\n@@ -1 +1 @@\n-x\n+y\n", map[string]string{"old": "x\n"}, map[string]string{"old": "", "new": "y\n"}, ""},
		{"no end", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n", map[string]string{"f": "x"}, map[string]string{"f": "y\n"}, ""},
		{"CRLF", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", map[string]string{"f": "a\r\nb\r\n"}, map[string]string{"f": "a\r\nc\r\n"}, ""},
		{"does not fit", "--- a/n\n+++ b/n\n@@ -1,2 +1,2 @@\n 1\n-3\n+x\n", map[string]string{"n": numbers}, map[string]string{"n": numbers}, sandbox.CodeConflict},
		{"all or nothing", "--- a/n\n+++ b/n\n@@ -1 +1 @@\n-1\n+x\n--- a/missing\n+++ b/missing\n@@ -1 +1 @@\n-1\n+x\n", map[string]string{"n": numbers}, map[string]string{"n": numbers}, sandbox.CodeConflict},
		{"exists", "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n", map[string]string{"f": "x"}, map[string]string{"f": "x"}, sandbox.CodeConflict},
		{"leads out", "--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-a\n+b\n", nil, nil, sandbox.CodeInvalid},
		{"absolute", "*** Begin Patch\n*** Delete File: /etc/passwd\n*** End Patch", nil, nil, sandbox.CodeInvalid},
		{"link", "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n", nil, nil, sandbox.CodeInvalid},
		{"counts", "--- a/n\n+++ b/n\n@@ -1,9 +1 @@\n-1\n+x\n", map[string]string{"n": numbers}, nil, sandbox.CodeInvalid},
		{"nothing", "hello", nil, nil, sandbox.CodeInvalid},
		{"envelope", "*** Begin Patch\n*** Update File: n\n@@\n 1\n-2\n+two\n*** Add File: d/new\n+a\n+\n+b\n*** Delete File: old\n*** Update File: moved\n*** Move to: to/here\n@@ f\n-  y\n+  z\n*** End Patch\n", map[string]string{"n": numbers, "old": "x", "moved": "y\nf\n  y\n"}, map[string]string{"n": "1\ntwo\n3\n4\n5\n6\n7\n8\n9\n", "d/new": "a\n\nb\n", "old": "", "moved": "", "to/here": "y\nf\n  z\n"}, ""},
		{"anchors", "*** Begin Patch\n*** Update File: f\n@@ class B\n@@   def x\n-    1\n+    2\n*** End Patch", map[string]string{"f": "class A\n  def x\n    1\nclass B\n  def x\n    1\n"}, map[string]string{"f": "class A\n  def x\n    1\nclass B\n  def x\n    2\n"}, ""},
		{"end of file", "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End of File\n*** End Patch", map[string]string{"f": "a\na\n"}, map[string]string{"f": "a\nb\n"}, ""},
		{"spaces", "*** Begin Patch\n*** Update File: f\n-a\n b\n+c\n*** End Patch", map[string]string{"f": "a \n\tb\n"}, map[string]string{"f": "\tb\nc\n"}, ""},
		{"only lines to add", "*** Begin Patch\n*** Update File: f\n@@ a\n+b\n@@\n+d\n*** End Patch", map[string]string{"f": "a\nc\n"}, map[string]string{"f": "a\nb\nc\nd\n"}, ""},
		{"no anchor", "*** Begin Patch\n*** Update File: f\n@@ none\n-a\n*** End Patch", map[string]string{"f": "a\n"}, map[string]string{"f": "a\n"}, sandbox.CodeConflict},
		{"no file", "*** Begin Patch\nhello\n*** End Patch", nil, nil, sandbox.CodeInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := project(t, c.files)
			s := service(&local{})
			_, dry := s.Patch(t.Context(), "x", coding.PatchRequest{Path: dir, Patch: c.patch, DryRun: true})
			for name, text := range c.files {
				if got := content(t, filepath.Join(dir, name)); got != text {
					t.Errorf("a dry run changed %s to %q", name, got)
				}
			}
			out, err := s.Patch(t.Context(), "x", coding.PatchRequest{Path: dir, Patch: c.patch})
			if sandbox.CodeOf(err) != c.code || sandbox.CodeOf(dry) != c.code {
				t.Fatalf("%v, dry %v, want %q", err, dry, c.code)
			}
			if c.code == "" && len(out.Files) == 0 {
				t.Error("no files in the result")
			}
			for name, text := range c.want {
				if text == "" {
					if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
						t.Errorf("%s is still there", name)
					}
				} else if got := content(t, filepath.Join(dir, name)); got != text {
					t.Errorf("%s is %q, want %q", name, got, text)
				}
			}
		})
	}
}

// If a write fails, the files that were written get their old content back.
func TestFailedPatchesAreTakenBack(t *testing.T) {
	t.Parallel()
	dir := project(t, map[string]string{"a": "1\n", "z": "1\n"})
	if err := os.Chmod(filepath.Join(dir, "a"), 0o600); err != nil {
		t.Fatal(err)
	}
	patch := "*** Begin Patch\n*** Update File: a\n-1\n+2\n*** Add File: b\n+x\n*** Update File: z\n-1\n+2\n*** End Patch"
	_, err := service(&local{full: "z"}).Patch(t.Context(), "x", coding.PatchRequest{Path: dir, Patch: patch})
	if sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || info.Mode().Perm() != 0o600 || content(t, filepath.Join(dir, "a")) != "1\n" {
		t.Error("a has not its old content and mode", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); !os.IsNotExist(err) {
		t.Error("b is there")
	}
}

// RB-84: a file is written only if it is as the caller thinks.
func TestWritesWithAnExpectedHash(t *testing.T) {
	t.Parallel()
	dir := project(t, map[string]string{"f": "hello\n"})
	s, name := service(&local{}), filepath.Join(dir, "f")
	const hash = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
	write := func(name, expect string) sandbox.Code {
		_, err := s.Write(t.Context(), "x", name, strings.NewReader("new"), driver.WriteOptions{}, expect)
		return sandbox.CodeOf(err)
	}
	if code := write(name, "5891"); code != sandbox.CodeInvalid {
		t.Errorf("no hash: %q", code)
	}
	if code := write(filepath.Join(dir, "none"), hash); code != sandbox.CodeConflict {
		t.Errorf("no file: %q", code)
	}
	if code := write(name, hash); code != "" || content(t, name) != "new" {
		t.Errorf("as expected: %q", code)
	}
	if code := write(name, hash); code != sandbox.CodeConflict {
		t.Errorf("changed: %q", code)
	}
}

func FuzzPatch(f *testing.F) {
	f.Add("--- a/n\n+++ b/n\n@@ -1,2 +1,2 @@\n 1\n-3\n+x\n", "1\n3\n")
	f.Add("*** Begin Patch\n*** Update File: f\n@@ a\n-b\n+c\n*** End of File\n*** End Patch", "a\nb\n")
	f.Fuzz(func(t *testing.T, patch, old string) {
		edits, err := parsePatch(patch)
		if err != nil {
			return
		}
		for _, e := range edits {
			if e.path == "" && e.from == "" && relative(patchOp, "patch", e.path) == nil {
				t.Error("an edit of no file")
			}
			_, _, _, _ = e.apply([]byte(old))
		}
	})
}
