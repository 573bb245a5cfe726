package code

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// local is a Sandbox whose files and commands are those of the machine.
type local struct {
	driver.FileSystem
	driver.Archiver
	full string // a file that cannot be written
}

func (l *local) Files() Files { return l }

func (*local) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	c := exec.CommandContext(ctx, cmd.Args[0], cmd.Args[1:]...)
	c.Dir, c.Env = cmd.Dir, append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1")
	for k, v := range cmd.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	var p process
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	complaint, err3 := c.StderrPipe()
	p.cmd, p.in, p.out, p.complaint = c, in, out, complaint
	if !cmd.Stdin {
		_ = in.Close()
	}
	return &p, errors.Join(err1, err2, err3, c.Start())
}

type process struct {
	driver.Process
	cmd            *exec.Cmd
	in             io.WriteCloser
	out, complaint io.Reader
}

func (p *process) Stdin() io.WriteCloser { return p.in }
func (p *process) Stdout() io.Reader     { return p.out }
func (p *process) Stderr() io.Reader     { return p.complaint }
func (p *process) Close() error          { return p.cmd.Process.Kill() }

func (p *process) Wait(context.Context) (sandbox.Exit, error) {
	_ = p.cmd.Wait()
	return sandbox.Exit{Code: p.cmd.ProcessState.ExitCode(), Reason: sandbox.ReasonExited}, nil
}

func coded(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &sandbox.Error{Code: sandbox.CodeNotFound, Cause: err}
	case err != nil:
		return &sandbox.Error{Code: sandbox.CodeInvalid, Cause: err}
	}
	return nil
}

func (*local) Read(_ context.Context, name string, _ driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, sandbox.FileInfo{}, coded(err)
	}
	info, err := f.Stat()
	return f, sandbox.FileInfo{Mode: uint32(info.Mode().Perm())}, coded(err)
}

func (l *local) Write(_ context.Context, name string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	if l.full != "" && filepath.Base(name) == l.full {
		return sandbox.FileInfo{}, &sandbox.Error{Code: sandbox.CodeExhausted}
	}
	data, err := io.ReadAll(r)
	if opts.Mode == 0 {
		opts.Mode = 0o644
	}
	return sandbox.FileInfo{}, coded(errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, fs.FileMode(opts.Mode)), os.Chmod(name, fs.FileMode(opts.Mode))))
}

func (*local) Remove(_ context.Context, name string, _ bool) error { return coded(os.Remove(name)) }

func (*local) List(_ context.Context, dir string, _ driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		_ = filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, name)
			if rel != "." && !yield(sandbox.FileInfo{Path: rel}, coded(err)) {
				return fs.SkipAll
			}
			return nil
		})
	}
}

func (*local) Export(_ context.Context, dir string, w io.Writer, _ driver.ExportOptions) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, _ := filepath.Rel(filepath.Dir(dir), name)
		data, err := os.ReadFile(name)
		if err == nil {
			err = out.WriteHeader(&tar.Header{Name: rel, Size: int64(len(data)), Mode: 0o644, Typeflag: tar.TypeReg})
		}
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	})
	return errors.Join(coded(err), out.Close())
}

// project is a directory with files, by name.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		put(t, filepath.Join(dir, name), content)
	}
	return dir
}

func put(t *testing.T, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// repository runs a script in a new directory with a git repository.
func repository(t *testing.T, script string) *repo {
	t.Helper()
	need.Program(t, "git")
	dir := t.TempDir()
	inside(t, dir, "git init -q -b main . && git config user.name Ada && git config user.email ada@example.com && git config commit.gpgSign false\n"+script)
	return &repo{sandbox: &local{}, dir: dir}
}

func inside(t *testing.T, dir, script string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/bin/sh", "-ec", script)
	c.Dir, c.Env = dir, append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatal(strings.TrimSpace(string(out)), err)
	}
}
