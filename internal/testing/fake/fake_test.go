package fake_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

func harness(t *testing.T, opts fake.Options) drivertest.Harness {
	opts.World, opts.SnapshotDir = &fake.World{}, t.TempDir()
	return drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return fake.New(opts), nil },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Echo: []string{"echod"},

		SnapshotFiles: func(ref driver.SnapshotRef) string { return filepath.Join(opts.SnapshotDir, ref.Data, "files") },

		Parallel: true,
	}
}

// gaps are the promises that the fake's shell cannot keep: no program in it
// handles a signal.
var gaps = []string{"signal/trap", "signal/ignored"}

func TestConformance(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprintf("bare=%v", bare), func(t *testing.T) {
			var failed []string
			h := harness(t, fake.Options{Bare: bare})
			h.Observe = func(r drivertest.Result) {
				if r.Status != drivertest.Fail {
					return
				}
				if failed = append(failed, r.Name); !slices.Contains(gaps, r.Name) {
					t.Errorf("%s: %s", r.Name, strings.Join(r.Messages, "\n"))
				}
			}
			if err := drivertest.Check(t.Context(), h).Err(); err == nil || len(failed) < len(gaps) {
				t.Errorf("the fake keeps more promises than it says: only %q failed", failed)
			}
		})
	}
}

// TestConformanceWithFault: a fault that never strikes changes nothing.
func TestConformanceWithFault(t *testing.T) {
	h := harness(t, fake.Options{Fault: func(string) error { return nil }})
	h.Only = []string{"lifecycle/", "exec/", "errors/", "leaks/"}
	drivertest.Run(t, h)
}

// instance makes a sandbox that is removed at the end of the test.
func instance(t testing.TB, p driver.Provider) driver.Instance {
	t.Helper()
	inst, err := p.Create(context.Background(), &sandbox.Spec{ID: "box", Name: "box", Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inst.Destroy(context.Background()) })
	return inst
}

// run runs a script and returns its standard output and exit.
func run(t testing.TB, inst driver.Instance, script string) (string, sandbox.Exit) {
	t.Helper()
	p, err := inst.Exec(context.Background(), &sandbox.Command{Shell: script})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return string(out), exit
}

// operations does everything once; the errors are by operation.
func operations(ctx context.Context, p driver.Provider, inst driver.Instance, proc driver.Process, id string) map[string]error {
	fs, _ := driver.As[driver.FileSystem](inst)
	pm, _ := driver.As[driver.ProcessManager](inst)
	ar, _ := driver.As[driver.Archiver](inst)
	wa, _ := driver.As[driver.Watcher](inst)
	e := map[string]error{}
	_, e["probe"] = p.Probe(ctx)
	_, e["create"] = p.Create(ctx, &sandbox.Spec{ID: "other"})
	_, e["attach"] = p.Attach(ctx, inst.ID())
	for _, err := range p.List(ctx) {
		e["list"] = err
	}
	_, e["exec"] = inst.Exec(ctx, &sandbox.Command{Args: []string{"true"}})
	_, e["wait"] = inst.Wait(ctx)
	e["destroy"] = inst.Destroy(ctx)
	_, e["process.wait"] = proc.Wait(ctx)
	e["process.signal"] = proc.Signal(ctx, 15)
	e["process.resize"] = proc.Resize(ctx, sandbox.WindowSize{})
	_, e["processes.list"] = pm.Processes(ctx)
	_, e["processes.reconnect"] = pm.Reconnect(ctx, id)
	_, e["processes.logs"] = pm.Logs(ctx, id, driver.LogOptions{})
	e["processes.kill"] = pm.Kill(ctx, id, 15)
	_, e["files.stat"] = fs.Stat(ctx, "/")
	for _, err := range fs.List(ctx, "/", driver.ListOptions{}) {
		e["files.list"] = err
	}
	_, _, e["files.read"] = fs.Read(ctx, "/etc/passwd", driver.ReadOptions{})
	_, e["files.write"] = fs.Write(ctx, "/tmp/f", strings.NewReader("x"), driver.WriteOptions{})
	e["files.mkdir"] = fs.Mkdir(ctx, "/tmp/d", driver.MkdirOptions{})
	e["files.remove"] = fs.Remove(ctx, "/etc/passwd", false)
	e["files.move"] = fs.Move(ctx, "/etc/passwd", "/etc/p", false)
	e["archive.export"] = ar.Export(ctx, "/etc", io.Discard, driver.ExportOptions{})
	e["archive.import"] = ar.Import(ctx, "/tmp", bytes.NewReader(nil), driver.ImportOptions{})
	_, e["watch"] = wa.Watch(ctx, "/tmp", false)
	pa, _ := driver.As[driver.Pauser](inst)
	sn, _ := driver.As[driver.Snapshotter](inst)
	re, _ := driver.As[driver.Restorer](p)
	e["pause"] = pa.Pause(ctx)
	e["resume"] = pa.Resume(ctx)
	_, e["snapshot"] = sn.Snapshot(ctx, driver.SnapshotOptions{ID: "one"})
	_, _, e["restore"] = re.Restore(ctx, &sandbox.Spec{ID: "other"}, driver.SnapshotRef{})
	return e
}

// TestFaults: every operation can be made to fail, with the very error, and to
// hang until its context ends; Operations lists them all.
func TestFaults(t *testing.T) {
	boom := errors.New("boom")
	release := make(chan struct{})
	defer close(release)
	var mu sync.Mutex
	armed, hang := false, false
	p := fake.New(fake.Options{Fault: func(string) error {
		mu.Lock()
		fails, hangs := armed, hang
		mu.Unlock()
		if hangs {
			<-release
		}
		if fails {
			return boom
		}
		return nil
	}})
	inst := instance(t, p)
	proc, err := inst.Exec(t.Context(), &sandbox.Command{Args: []string{"sleep", "1000"}, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	set := func(a, h bool) {
		mu.Lock()
		defer mu.Unlock()
		armed, hang = a, h
	}
	set(true, false)
	failed := operations(t.Context(), p, inst, proc, proc.Info().ID)
	for op, err := range failed {
		if !errors.Is(err, boom) {
			t.Errorf("%s: error %v, want the injected one", op, err)
		}
	}
	if len(failed) != len(fake.Operations()) {
		t.Errorf("%d operations are listed, %d exist", len(fake.Operations()), len(failed))
	}
	for op := range failed {
		if !slices.Contains(fake.Operations(), op) {
			t.Errorf("%s is not listed", op)
		}
	}
	set(false, true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for op, err := range operations(ctx, p, inst, proc, proc.Info().ID) {
		if p.ErrorCode(err) != sandbox.CodeTimeout {
			t.Errorf("%s hangs: error %v, want a timeout", op, err)
		}
	}
	set(false, false)
	if out, _ := run(t, inst, "echo alive"); out != "alive\n" {
		t.Errorf("after all faults: %q", out)
	}
}

func TestWorldsAreApart(t *testing.T) {
	a, b := fake.New(fake.Options{}), fake.New(fake.Options{})
	inst := instance(t, a)
	if _, err := b.Attach(t.Context(), inst.ID()); b.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("one world sees the sandboxes of another: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, inst, "echo alive"); out != "alive\n" {
		t.Errorf("Close ended a sandbox: %q", out)
	}
}

// TestEndedCommandsAreForgotten: the list of commands is bounded.
func TestEndedCommandsAreForgotten(t *testing.T) {
	inst := instance(t, fake.New(fake.Options{}))
	for range 300 {
		run(t, inst, ":")
	}
	pm, _ := driver.As[driver.ProcessManager](inst)
	list, err := pm.Processes(t.Context())
	if err != nil || len(list) > 150 {
		t.Errorf("%d commands are listed, %v", len(list), err)
	}
}

// FuzzImport: no stream changes anything outside of the directory it is
// unpacked into.
func FuzzImport(f *testing.F) {
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "f"},
		{Typeflag: tar.TypeReg, Name: "../x"},
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/"},
		{Typeflag: tar.TypeReg, Name: "l/etc/passwd"},
		{Typeflag: tar.TypeLink, Name: "h", Linkname: "l/etc/passwd"},
		{Typeflag: tar.TypeDir, Name: "."},
		{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."},
		{Typeflag: tar.TypeDir, Name: "a/b/"},
		{Typeflag: tar.TypeFifo, Name: "a"},
	} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"})
		_ = w.WriteHeader(&h)
		_ = w.Close()
		f.Add(buf.Bytes())
	}
	p := fake.New(fake.Options{})
	inst, err := p.Create(context.Background(), &sandbox.Spec{ID: "box"})
	if err != nil {
		f.Fatal(err)
	}
	fs, _ := driver.As[driver.FileSystem](inst)
	ar, _ := driver.As[driver.Archiver](inst)
	ctx := context.Background()
	f.Fuzz(func(t *testing.T, stream []byte) {
		_ = fs.Remove(ctx, "/tmp/in", true)
		_ = fs.Remove(ctx, "/tmp/outside", true)
		if _, err := fs.Write(ctx, "/tmp/outside/victim", strings.NewReader("x"), driver.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		before := tree(t, fs)
		err := ar.Import(ctx, "/tmp/in", bytes.NewReader(stream), driver.ImportOptions{})
		if err != nil && p.ErrorCode(err) == "" {
			t.Errorf("an error without a code: %v", err)
		}
		if after := tree(t, fs); !slices.Equal(before, after) {
			t.Errorf("outside has changed:\n%q\n%q", before, after)
		}
	})
}

// tree describes everything but /tmp/in, where an import may do as it likes.
func tree(t *testing.T, fs driver.FileSystem) []string {
	var all []string
	for info, err := range fs.List(context.Background(), "/", driver.ListOptions{Depth: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		if info.Path == "tmp" || info.Path == "tmp/in" || strings.HasPrefix(info.Path, "tmp/in/") {
			continue
		}
		all = append(all, strings.Join([]string{info.Path, string(info.Type), info.Target, info.ModTime.String()}, " "))
	}
	return all
}

func BenchmarkCreate(b *testing.B) {
	p := fake.New(fake.Options{})
	for b.Loop() {
		inst, err := p.Create(context.Background(), &sandbox.Spec{ID: "box"})
		if err != nil {
			b.Fatal(err)
		}
		if err := inst.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExec(b *testing.B) {
	inst := instance(b, fake.New(fake.Options{}))
	for b.Loop() {
		run(b, inst, "echo x")
	}
}

func BenchmarkOutput(b *testing.B) {
	inst := instance(b, fake.New(fake.Options{}))
	b.SetBytes(64 << 20)
	for b.Loop() {
		p, err := inst.Exec(context.Background(), &sandbox.Command{Args: []string{"dd", "if=/dev/zero", "bs=65536", "count=1024"}})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, p.Stdout()); n != 64<<20 || err != nil {
			b.Fatal(n, err)
		}
		_ = p.Close()
	}
}
