package drivertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// managerInstance wraps the process manager.
type managerInstance struct {
	driver.Instance
	driver.ProcessManager
	change func([]sandbox.ProcessInfo) []sandbox.ProcessInfo
	logs   func(driver.LogReader) driver.LogReader
	opts   func(driver.LogOptions) driver.LogOptions
}

func (i managerInstance) Unwrap() any { return i.Instance }

func (i managerInstance) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	list, err := i.ProcessManager.Processes(ctx)
	if i.change != nil {
		list = i.change(list)
	}
	return list, err
}

func (i managerInstance) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	if i.opts != nil {
		opts = i.opts(opts)
	}
	r, err := i.ProcessManager.Logs(ctx, id, opts)
	if err == nil && i.logs != nil {
		r = i.logs(r)
	}
	return r, err
}

func withManager(m managerInstance) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance {
		own := m
		own.Instance = inst
		own.ProcessManager, _ = driver.As[driver.ProcessManager](inst)
		return own
	})
}

// hookedLog changes the pieces of a log.
type hookedLog struct {
	driver.LogReader
	change func(*sandbox.LogChunk)
}

func (l hookedLog) Next() (sandbox.LogChunk, error) {
	c, err := l.LogReader.Next()
	if err == nil {
		l.change(&c)
	}
	return c, err
}

func withLogs(change func(*sandbox.LogChunk)) func(driver.Provider) driver.Provider {
	return withManager(managerInstance{logs: func(r driver.LogReader) driver.LogReader { return hookedLog{r, change} }})
}

var brokenManagers = []sabotage{
	{"kills background commands", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, close: func() error { _ = p.Signal(context.Background(), 9); return p.Close() }}
	}), []string{"background/survives-close"}},
	{"lists newest first", false, withManager(managerInstance{change: func(l []sandbox.ProcessInfo) []sandbox.ProcessInfo { slices.Reverse(l); return l }}), []string{"background/list-order"}},
	{"forgets the ended", false, withManager(managerInstance{change: func(l []sandbox.ProcessInfo) []sandbox.ProcessInfo {
		return slices.DeleteFunc(l, func(i sandbox.ProcessInfo) bool { return !i.Running })
	}}), []string{"background/survives-close", "background/foreground-listed"}},
	{"hides what commands left behind", false, withManager(managerInstance{change: func(l []sandbox.ProcessInfo) []sandbox.ProcessInfo {
		return slices.DeleteFunc(l, func(i sandbox.ProcessInfo) bool { return len(i.Args) > 0 && i.Args[0] == "sleep" })
	}}), []string{"left/listed"}},
	{"mixes the streams of a log", false, withLogs(func(c *sandbox.LogChunk) { c.Stream = 1 }), []string{"logs/streams"}},
	{"does not count what it lost", false, withLogs(func(c *sandbox.LogChunk) { c.Dropped = 0 }), []string{"logs/bounded"}},
	{"has no tail", false, withManager(managerInstance{opts: func(o driver.LogOptions) driver.LogOptions { o.Tail = 0; return o }}), []string{"logs/tail"}},
	{"does not follow", false, withManager(managerInstance{opts: func(o driver.LogOptions) driver.LogOptions { o.Follow = false; return o }}), []string{"logs/follow"}},
	{"shares its log", false, func(p driver.Provider) driver.Provider {
		var kept []byte
		return withLogs(func(c *sandbox.LogChunk) {
			if kept == nil {
				kept = c.Data
			}
			c.Data = kept
		})(p)
	}, []string{"aliasing/logs"}},
}

// naiveFiles is a file system with several faults.
type naiveFiles struct {
	driver.FileSystem
	write  func(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error)
	read   func(ctx context.Context, p string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error)
	list   func([]sandbox.FileInfo)
	remove func(ctx context.Context, p string, recursive bool) error
	move   func(ctx context.Context, from, to string) error
	stat   func(*sandbox.FileInfo)
}

func (f naiveFiles) Write(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	if f.write != nil {
		return f.write(ctx, p, r, opts)
	}
	return f.FileSystem.Write(ctx, p, r, opts)
}

func (f naiveFiles) Read(ctx context.Context, p string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	if f.read != nil {
		return f.read(ctx, p, opts)
	}
	return f.FileSystem.Read(ctx, p, opts)
}

func (f naiveFiles) List(ctx context.Context, p string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	if f.list == nil {
		return f.FileSystem.List(ctx, p, opts)
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		var all []sandbox.FileInfo
		for info, err := range f.FileSystem.List(ctx, p, opts) {
			if err != nil {
				yield(info, err)
				return
			}
			all = append(all, info)
		}
		f.list(all)
		for _, info := range all {
			if !yield(info, nil) {
				return
			}
		}
	}
}

func (f naiveFiles) Remove(ctx context.Context, p string, recursive bool) error {
	if f.remove != nil {
		return f.remove(ctx, p, recursive)
	}
	return f.FileSystem.Remove(ctx, p, recursive)
}

func (f naiveFiles) Move(ctx context.Context, from, to string, overwrite bool) error {
	if f.move != nil {
		return f.move(ctx, from, to)
	}
	return f.FileSystem.Move(ctx, from, to, overwrite)
}

func (f naiveFiles) Stat(ctx context.Context, p string) (sandbox.FileInfo, error) {
	info, err := f.FileSystem.Stat(ctx, p)
	if f.stat != nil {
		f.stat(&info)
	}
	return info, err
}

func naive(change func(sound driver.FileSystem, f *naiveFiles)) func(driver.Provider) driver.Provider {
	return withFiles(func(fs driver.FileSystem) driver.FileSystem {
		f := &naiveFiles{FileSystem: fs}
		change(fs, f)
		return *f
	})
}

// naiveArchiver unpacks without checks.
type naiveArchiver struct {
	driver.Instance
	driver.Archiver
	files driver.FileSystem
}

func (i naiveArchiver) Unwrap() any { return i.Instance }

func (i naiveArchiver) Import(ctx context.Context, p string, r io.Reader, _ driver.ImportOptions) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errSabotage
		}
		at := path.Join(p, h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			_, err = i.files.Write(ctx, at, tr, driver.WriteOptions{})
		case tar.TypeDir:
			err = i.files.Mkdir(ctx, at, driver.MkdirOptions{Parents: true})
		case tar.TypeSymlink:
			var proc driver.Process
			if proc, err = i.Exec(ctx, &sandbox.Command{Args: []string{"ln", "-s", h.Linkname, at}}); err == nil {
				_, err = proc.Wait(ctx)
				_ = proc.Close()
			}
		}
		if err != nil {
			return err
		}
	}
}

// plainExporter exports without support for holes, and records what it is told
// to record.
type plainExporter struct {
	driver.Instance
	driver.Archiver
	keep func(*tar.Header) bool
}

func (i plainExporter) Unwrap() any { return i.Instance }

func (i plainExporter) Export(ctx context.Context, p string, w io.Writer, opts driver.ExportOptions) error {
	r, pipe := io.Pipe()
	go func() { pipe.CloseWithError(i.Archiver.Export(ctx, p, pipe, opts)) }()
	defer r.Close()
	tw := tar.NewWriter(w)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !i.keep(h) {
			continue
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
	_, _ = io.Copy(io.Discard, r) // the data after the archive
	return tw.Close()
}

func withExport(keep func(*tar.Header) bool) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance {
		a, _ := driver.As[driver.Archiver](inst)
		return plainExporter{inst, a, keep}
	})
}

// naiveWatcher never closes its channel.
type naiveWatcher struct {
	driver.Instance
	driver.Watcher
	recursive bool
	keepOpen  bool
}

func (i naiveWatcher) Unwrap() any { return i.Instance }

func (i naiveWatcher) Watch(ctx context.Context, p string, recursive bool) (<-chan sandbox.FileEvent, error) {
	events, err := i.Watcher.Watch(ctx, p, recursive && i.recursive)
	if err != nil || !i.keepOpen {
		return events, err
	}
	out := make(chan sandbox.FileEvent)
	go func() {
		for e := range events {
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func withWatcher(recursive, keepOpen bool) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance {
		w, _ := driver.As[driver.Watcher](inst)
		return naiveWatcher{inst, w, recursive, keepOpen}
	})
}

var brokenFiles = []sabotage{
	{"writes in place", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.write = func(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
			data, rerr := io.ReadAll(r)
			info, err := sound.Write(ctx, p, bytes.NewReader(data), opts)
			return info, errors.Join(rerr, err)
		}
	}), []string{"files/write-reader-fails"}},
	{"leaves temporary files", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.write = func(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
			info, err := sound.Write(ctx, p, r, opts)
			if err != nil {
				_, _ = sound.Write(ctx, p+".tmp", strings.NewReader("x"), driver.WriteOptions{NoParents: true})
			}
			return info, err
		}
	}), []string{"files/write-reader-fails", "files/write-no-replace"}},
	{"always replaces", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.write = func(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
			opts.NoReplace, opts.NoParents = false, false
			return sound.Write(ctx, p, r, opts)
		}
	}), []string{"files/write-no-replace", "files/write-parents"}},
	{"forgets modes", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.write = func(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
			opts.Mode = 0o644
			return sound.Write(ctx, p, r, opts)
		}
	}), []string{"files/write-mode"}},
	{"reads from the start", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.read = func(ctx context.Context, p string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
			opts.Offset = 0
			return sound.Read(ctx, p, opts)
		}
	}), []string{"files/read-parts", "files/sparse"}},
	{"reads directories and fifos as empty", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.read = func(ctx context.Context, p string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
			r, info, err := sound.Read(ctx, p, opts)
			var e *sandbox.Error
			if errors.As(err, &e) && e.Code == sandbox.CodeInvalid {
				return io.NopCloser(strings.NewReader("")), info, nil
			}
			return r, info, err
		}
	}), []string{"files/not-regular", "files/bad-paths"}},
	{"lists in disorder", false, naive(func(_ driver.FileSystem, f *naiveFiles) {
		f.list = func(all []sandbox.FileInfo) { slices.Reverse(all) }
	}), []string{"files/list", "files/odd-names"}},
	{"mangles names", false, naive(func(_ driver.FileSystem, f *naiveFiles) {
		f.list = func(all []sandbox.FileInfo) {
			for i := range all {
				all[i].Path = strings.ToValidUTF8(all[i].Path, "?")
			}
		}
	}), []string{"files/odd-names"}},
	{"removes trees unasked", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.remove = func(ctx context.Context, p string, _ bool) error { return sound.Remove(ctx, p, true) }
	}), []string{"files/remove"}},
	{"removes what is missing", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.remove = func(ctx context.Context, p string, recursive bool) error {
			_ = sound.Remove(ctx, p, recursive)
			return nil
		}
	}), []string{"files/missing", "files/remove"}},
	{"moves over everything", false, naive(func(sound driver.FileSystem, f *naiveFiles) {
		f.move = func(ctx context.Context, from, to string) error { return sound.Move(ctx, from, to, true) }
	}), []string{"files/move"}},
	{"follows links in Stat", false, naive(func(_ driver.FileSystem, f *naiveFiles) {
		f.stat = func(i *sandbox.FileInfo) {
			if i.Type == sandbox.TypeSymlink {
				i.Type = sandbox.TypeFile
			}
		}
	}), []string{"files/stat", "files/move"}},
	{"unpacks without looking", false, withInstance(func(inst driver.Instance) driver.Instance {
		a, _ := driver.As[driver.Archiver](inst)
		fs, _ := driver.As[driver.FileSystem](inst)
		return naiveArchiver{inst, a, fs}
	}), []string{
		"archive/hostile/parent", "archive/hostile/parent-inside", "archive/hostile/through-link", "archive/hostile/through-two-links",
		"archive/hostile/hard-link-out", "archive/hostile/char-device", "archive/hostile/file-over-link", "archive/import",
		"archive/all-or-nothing",
	}},
	{"exports holes as zeros", false, withExport(func(h *tar.Header) bool { return true }), []string{"archive/sparse"}},
	{"hides what looks like its own", false, withExport(func(h *tar.Header) bool {
		return !strings.HasPrefix(path.Base(h.Name), ".atoll-tmp-")
	}), []string{"archive/odd-names"}},
	{"does not watch below", false, withWatcher(false, false), []string{"watch/recursive"}},
	{"never ends a watch", false, withWatcher(true, true), []string{"watch/ends-with-context"}},
}
