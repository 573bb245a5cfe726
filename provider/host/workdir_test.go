package host_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
)

// A sandbox of a directory of the user outlives its process, and the directory
// outlives the sandbox.
func TestWorkdir(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	open := func() *host.Provider {
		p, err := host.New(host.Options{Dir: dir, Workdir: work})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	run := func(in driver.Instance, script string) string {
		t.Helper()
		proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"/bin/sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		defer proc.Close()
		out, _ := io.ReadAll(proc.Stdout())
		if _, err := proc.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	p := open()
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "box", Env: map[string]string{"A": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(in, "pwd; echo one >file"); got != work+"\n" {
		t.Errorf("it works in %q", got)
	}
	background, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"/bin/sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if x, err := background.Wait(t.Context()); err == nil && x.Code == 0 {
		t.Errorf("its command goes on: %+v", x)
	}
	_ = background.Close()
	p = open()
	if in, err = p.Attach(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if again, err := p.Attach(t.Context(), "box"); err != nil || again != in {
		t.Errorf("a second guest: %v", err)
	}
	if got := run(in, "cat file; echo $A $HOME"); got != "one\nb "+os.Getenv("HOME")+"\n" {
		t.Errorf("%q", got)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(work, "file")); err != nil {
		t.Error(err)
	}
	if _, err := p.Attach(t.Context(), "box"); sandbox.CodeOf(err) != sandbox.CodeGone {
		t.Errorf("after its end: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A sandbox of a directory of the user sees it as its workspace, too: in files, as
// the directory of commands, and in errors. Other paths stay as they are, and what
// leads out is refused as before (RB-113).
func TestWorkdirIsTheWorkspace(t *testing.T) {
	work := filepath.Join(t.TempDir(), "offered")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := host.New(host.Options{Dir: t.TempDir(), Workdir: work})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	made, err := p.Create(t.Context(), &sandbox.Spec{ID: "box", Workdir: "/workspace/at"})
	if err != nil {
		t.Fatal(err)
	}
	in := made.(*host.Instance)
	ctx := t.Context()
	for _, path := range []string{"/workspace/a", "/workspace//b/", "//workspace/c/../c", work + "/d"} {
		path, name := strings.TrimSuffix(path, "/"), filepath.Base(path)
		info, err := in.Write(ctx, path, strings.NewReader(name), driver.WriteOptions{})
		if text, failed := os.ReadFile(filepath.Join(work, name)); err != nil || failed != nil || string(text) != name || info.Path != path {
			t.Errorf("%s is %+v, %v; on the machine %q, %v", path, info, err, text, failed)
		}
		if info, err := in.Stat(ctx, path); err != nil || info.Path != path || info.Size != int64(len(name)) {
			t.Errorf("%s is %+v, %v", path, info, err)
		}
	}
	var names []string
	for info, err := range in.List(ctx, "/workspace", driver.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Path)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"a", "at", "b", "c", "d"}) {
		t.Errorf("the workspace has %q", names)
	}
	for dir, want := range map[string]string{"": work + "/at", "/workspace": work, "/workspace/at": work + "/at", "/": "/"} {
		proc, err := in.Exec(ctx, &sandbox.Command{Args: []string{"/bin/pwd"}, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := io.ReadAll(proc.Stdout()); err != nil || string(out) != want+"\n" {
			t.Errorf("a command in %q works in %q, %v; want %s", dir, out, err, want)
		}
		_ = proc.Close()
	}
	for path, want := range map[string]sandbox.Code{
		"/workspace/none/x": sandbox.CodeNotFound, "/workspaces/a": sandbox.CodeDenied, "/workspace/../etc/passwd": sandbox.CodeDenied, "/etc/passwd": sandbox.CodeDenied,
	} {
		_, _, err := in.Read(ctx, path, driver.ReadOptions{})
		inside := strings.HasPrefix(path, "/workspace/none")
		if p.ErrorCode(err) != want || !strings.Contains(err.Error(), path) || inside && strings.Contains(err.Error(), work) {
			t.Errorf("reading %s: %v, want %s", path, err, want)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(work, "out")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := in.Read(ctx, "/workspace/out/passwd", driver.ReadOptions{}); p.ErrorCode(err) != sandbox.CodeDenied || strings.Contains(err.Error(), work) {
		t.Errorf("reading through a link that leads out: %v", err)
	}
	if err := in.Move(ctx, "/workspace/a", work+"/e", false); err != nil {
		t.Error(err)
	}
	if err := in.Remove(ctx, "/workspace/e", false); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/workspace", "/workspace/", work} {
		if err := in.Remove(ctx, path, true); sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("removing %s: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(work, "b")); err != nil {
		t.Errorf("what the user has there is gone: %v", err)
	}
}

// The files of a workspace come from another sandbox and go to another one, under
// the same names. What the user has there besides stays.
func TestWorkdirTakesTrees(t *testing.T) {
	work := filepath.Join(t.TempDir(), "offered")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "mine"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := host.New(host.Options{Dir: t.TempDir(), Workdir: work})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	made, err := p.Create(t.Context(), &sandbox.Spec{ID: "box"})
	if err != nil {
		t.Fatal(err)
	}
	in := made.(*host.Instance)
	archive := func(members ...*tar.Header) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range members {
			h.Format = tar.FormatPAX
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(w, strings.NewReader("text"), h.Size); err != nil && h.Size > 0 {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	dir := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	file := func(name string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o640, Size: 4, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}
	}
	err = in.Import(t.Context(), "/", archive(dir("workspace/"), dir("workspace/sub/"), file("workspace/sub/file"), file("workspace/two"),
		&tar.Header{Name: "workspace/link", Typeflag: tar.TypeLink, Linkname: "workspace/two"}), driver.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"mine": "mine", "sub/file": "text", "two": "text", "link": "text"} {
		if got, err := os.ReadFile(filepath.Join(work, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	var b bytes.Buffer
	if err := in.Export(t.Context(), "/workspace", &b, driver.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimSuffix(h.Name, "/"))
		if h.Typeflag == tar.TypeLink {
			names = append(names, h.Linkname)
		}
	}
	slices.Sort(names)
	want := []string{"workspace", "workspace/link", "workspace/link", "workspace/mine", "workspace/sub", "workspace/sub/file", "workspace/two"}
	if got := slices.Compact(slices.Clone(names)); !slices.Equal(got, slices.Compact(want)) {
		t.Errorf("exported: %q", names)
	}
	for _, outside := range []string{"etc/passwd", "workspaces/x", "workspace/../x", "/workspace/x"} {
		if err := in.Import(t.Context(), "/", archive(file(outside)), driver.ImportOptions{}); err == nil || strings.Contains(err.Error(), work) {
			t.Errorf("%s is imported: %v", outside, err)
		}
	}
}
