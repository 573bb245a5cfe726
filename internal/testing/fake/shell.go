package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"github.com/atoll-run/atoll/internal/testing/fake/internal/memfs"
	"github.com/atoll-run/atoll/sandbox"
)

// magic begins an executable file that holds the name of a program.
const magic = "\x7fFAKE\x00"

// program is a running program. Its function returns the exit status.
type program struct {
	*command
	ctx      context.Context
	args     []string
	env      []string
	dir      string
	in       io.Reader
	out, err io.Writer
}

// program returns a command's first program.
func (c *command) program(args []string) *program {
	p := &program{command: c, ctx: c.ctx, args: args, env: c.sandbox.environ(&c.cmd), dir: c.cmd.Dir, in: strings.NewReader("")}
	if p.dir == "" {
		p.dir = path.Join("/", c.sandbox.spec.Workdir)
	}
	if c.stdin != nil {
		p.in = boundReader{c.ctx, c.stdin.read}
	}
	p.out, p.err = boundWriter{c.ctx, c.write(1)}, boundWriter{c.ctx, c.write(2)}
	return p
}

// main runs a command's first program to its end.
func (p *program) main() int {
	if info, err := p.sandbox.files.Stat(p.dir, true); err != nil || info.Type != memfs.Dir {
		p.errorf("cannot change to directory %s: %v", p.dir, reason(err, syscall.ENOTDIR))
		return 126
	}
	return p.exec()
}

func (p *program) errorf(format string, args ...any) {
	fmt.Fprintf(p.err, path.Base(p.args[0])+": "+format+"\n", args...)
}

// path makes a path absolute.
func (p *program) path(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimSuffix(p.dir, "/") + "/" + name
}

func reason(err error, other syscall.Errno) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return other
}

// exec runs the program that the first argument names.
func (p *program) exec() int {
	if err := p.sandbox.gate(p.ctx); err != nil {
		return 128 + sigKill
	}
	name := p.args[0]
	file, err := p.look(name)
	for depth := 0; err == nil && depth < 4; depth++ {
		text, _ := p.sandbox.text(file)
		if name, ok := strings.CutPrefix(text, magic); ok {
			return programs()[name](p)
		}
		line, ok := strings.CutPrefix(text, "#!")
		if !ok {
			err = &fs.PathError{Err: syscall.ENOEXEC}
			break
		}
		line, _, _ = strings.Cut(line, "\n")
		interpreter, arg, has := strings.Cut(strings.TrimSpace(line), " ")
		args := []string{interpreter}
		if has {
			args = append(args, strings.TrimSpace(arg))
		}
		p.args = slices.Concat(args, []string{file}, p.args[1:])
		if file = interpreter; p.executable(file) != nil {
			err = &fs.PathError{Err: syscall.EACCES}
		}
	}
	fmt.Fprintf(p.err, "%s: %v\n", name, reason(err, syscall.ENOENT))
	if err == nil || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return 127
	}
	return 126
}

// text returns the content of a file.
func (s *fakeSandbox) text(name string) (string, error) {
	f, err := s.files.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	return string(text), err
}

// look finds a program as execvp does.
func (p *program) look(name string) (string, error) {
	if strings.Contains(name, "/") {
		return p.path(name), p.executable(p.path(name))
	}
	var search string
	for _, kv := range p.env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	err := error(syscall.ENOENT)
	for dir := range strings.SplitSeq(search, ":") {
		file := path.Join(p.path(dir), name)
		switch e := p.executable(file); {
		case e == nil:
			return file, nil
		case errors.Is(e, syscall.EACCES):
			err = e
		}
	}
	return "", err
}

func (p *program) executable(file string) error {
	info, err := p.sandbox.files.Stat(file, true)
	if err == nil && (info.Type != memfs.File || info.Mode&0o111 == 0) {
		err = &fs.PathError{Op: "exec", Path: file, Err: syscall.EACCES}
	}
	return err
}

// sh is the shell.
func sh(p *program) int {
	args := p.args[1:]
	script, name := "", "sh"
	switch {
	case len(args) > 1 && args[0] == "-c":
		script, args = args[1], args[2:]
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	case len(args) > 0 && !strings.HasPrefix(args[0], "-"):
		text, err := p.sandbox.text(p.path(args[0]))
		if err != nil {
			p.errorf("%s: %v", args[0], reason(err, syscall.ENOENT))
			return 127
		}
		script, name, args = text, args[0], args[1:]
	case len(args) == 0:
		text, err := io.ReadAll(p.in)
		if err != nil {
			return 1
		}
		script = string(text)
	default:
		p.errorf("invalid option %s", args[0])
		return 2
	}
	return p.script(script, name, args)
}

// builtin runs a shell builtin as a separate program.
func builtin(p *program) int {
	return p.script(`"$@"`, "sh", append([]string{path.Base(p.args[0])}, p.args[1:]...))
}

// The names that prepare gives to what the interpreter does not know itself.
const (
	pidVar   = "__pid"
	lastVar  = "__last"
	jobVar   = "__job"
	beginJob = "__begin"
	endJob   = "__end"
)

// script interprets a script.
func (p *program) script(script, name string, args []string) int {
	parser := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
	file, err := parser.Parse(strings.NewReader(script), name)
	if err != nil {
		fmt.Fprintln(p.err, err)
		return 2
	}
	prepare(file, p.info.PID)
	in := p.in
	if r, ok := in.(*strings.Reader); ok && r.Len() == 0 {
		in = nil
	}
	r, err := interp.New(
		interp.Env(expand.ListEnviron(p.env...)), interp.StdIO(in, p.out, p.err), interp.Params(append([]string{"--"}, args...)...),
		interp.CallHandler(p.call), interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return p.run }),
		interp.OpenHandler(p.open), interp.ReadDirHandler2(p.readDir), interp.StatHandler(p.stat), interp.AccessHandler(p.access),
	)
	if err != nil {
		p.errorf("%v", err)
		return 2
	}
	r.Dir = p.dir
	err = r.Run(p.ctx, file)
	if code, ok := errors.AsType[interp.ExitStatus](err); ok {
		return int(code)
	}
	if err != nil && p.ctx.Err() == nil {
		p.errorf("%v", err)
		return 2
	}
	return 0
}

// prepare changes a script so that its processes are those of the sandbox: $$
// and $! are numbers of commands there, and what runs in the background is one.
func prepare(file *syntax.File, pid int) {
	var seen []*syntax.Stmt
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.ParamExp:
			if v, ok := map[string]string{"$": pidVar, "!": lastVar}[n.Param.Value]; ok && n.Param != nil {
				n.Param.Value, n.Short = v, false
			}
		case *syntax.Stmt:
			if n.Background {
				seen = append(seen, n)
			}
		}
		return true
	})
	for _, s := range slices.Backward(seen) {
		background(s)
	}
	file.Stmts = append(parse(fmt.Sprintf("%s=%d", pidVar, pid)), file.Stmts...)
}

// parse parses a script of this package.
func parse(script string) []*syntax.Stmt {
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil
	}
	return file.Stmts
}

// background makes `X &` start a job of the sandbox.
func background(s *syntax.Stmt) {
	inner := *s
	inner.Background = false
	var text bytes.Buffer
	_ = syntax.NewPrinter(syntax.SingleLine(true)).Print(&text, &inner) // To a buffer, of what was parsed.
	args := []string{"/bin/sh", "-c", strings.TrimSpace(text.String())}
	if _, simple := inner.Cmd.(*syntax.CallExpr); simple {
		args = strings.Fields(text.String())
	}
	var quoted []string
	for _, a := range args {
		q, err := syntax.Quote(a, syntax.LangPOSIX)
		if err != nil {
			q = "?" // It cannot be written in a script, and is only shown.
		}
		quoted = append(quoted, q)
	}
	wrapped := parse(fmt.Sprintf("{ %[1]s=$(%[2]s %[3]s); { %[4]s=$%[1]s; (:); %[5]s $%[1]s; } & }", lastVar, beginJob, strings.Join(quoted, " "), jobVar, endJob))[0]
	syntax.Walk(wrapped, func(n syntax.Node) bool {
		if sub, ok := n.(*syntax.Subshell); ok {
			sub.Stmts = []*syntax.Stmt{&inner}
			return false
		}
		return true
	})
	s.Background, s.Redirs, s.Cmd = false, nil, wrapped.Cmd
}

// call stands before everything that a script calls, builtins too.
func (p *program) call(ctx context.Context, args []string) ([]string, error) {
	if err := p.sandbox.gate(ctx); err != nil {
		return nil, err
	}
	switch {
	case args[0] == "wait":
		return args[:1], nil // for all arguments
	case args[0] == "kill": // The interpreter knows it, as something that it does not do.
		return append([]string{"/bin/kill"}, args[1:]...), nil
	case args[0] == "umask":
		return []string{"true"}, nil
	}
	return args, nil
}

// run runs a program for a script.
func (p *program) run(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	job := p.sandbox.job(hc.Env.Get(jobVar).String())
	switch args[0] {
	case beginJob:
		if !p.sandbox.enter() {
			return p.cannotFork(hc)
		}
		c := p.sandbox.newCommand(p.command, &sandbox.Command{Background: true}, args[1:])
		p.hold()
		context.AfterFunc(c.ctx, func() {
			c.finish(0)
			p.release()
			p.sandbox.leave()
		})
		fmt.Fprintln(hc.Stdout, c.info.PID)
		return nil
	case endJob:
		if job != nil {
			job.finish(0)
			job.cancel()
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if job != nil {
		defer context.AfterFunc(job.ctx, cancel)()
	}
	if !p.sandbox.enter() {
		return p.cannotFork(hc)
	}
	defer p.sandbox.leave()
	child := &program{command: p.command, ctx: ctx, args: args, dir: hc.Dir, in: strings.NewReader(""), out: hc.Stdout, err: hc.Stderr}
	if f, ok := hc.Stdin.(*os.File); ok && f != nil {
		child.in = f
		defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })() // It is a pipe, and the script ends too.
	}
	for name, v := range hc.Env.Each {
		if v.Exported && v.Kind == expand.String {
			child.env = append(child.env, name+"="+v.Str)
		}
	}
	code := child.exec()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return exitStatus(code)
}

// exitStatus is the error with which a handler reports an exit status; 0 is no error.
func exitStatus(code int) error {
	if code == 0 {
		return nil
	}
	return interp.ExitStatus(uint8(code))
}

func (p *program) cannotFork(hc interp.HandlerContext) error {
	fmt.Fprintln(hc.Stderr, "sh: cannot fork: too many processes")
	return exitStatus(254)
}

// job finds what a shell runs in the background by its number.
func (s *fakeSandbox) job(pid string) *command {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		if c.parent != nil && strconv.Itoa(c.info.PID) == pid {
			return c
		}
	}
	return nil
}

// The handlers through which a script reaches files.

type shellFile struct{ *memfs.Handle }

func (shellFile) Close() error { return nil }

func (p *program) open(ctx context.Context, name string, flags int, mode os.FileMode) (io.ReadWriteCloser, error) {
	f, err := p.sandbox.files.Open(in(ctx, name), flags, uint32(mode)&0o644)
	if err != nil {
		return nil, err
	}
	return shellFile{f}, nil
}

func in(ctx context.Context, name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(interp.HandlerCtx(ctx).Dir, name)
}

func (p *program) stat(ctx context.Context, name string, follow bool) (fs.FileInfo, error) {
	info, err := p.sandbox.files.Stat(in(ctx, name), follow)
	return shellInfo{path.Base(name), info}, err
}

func (p *program) access(ctx context.Context, name string, mode interp.AccessMode) error {
	info, err := p.sandbox.files.Stat(in(ctx, name), true)
	if err == nil && mode&1 != 0 && info.Mode&0o111 == 0 {
		err = syscall.EACCES
	}
	return err
}

func (p *program) readDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	names, err := p.sandbox.files.Names(in(ctx, name))
	var list []fs.DirEntry
	for _, n := range names {
		if info, err := p.sandbox.files.Stat(path.Join(in(ctx, name), n), false); err == nil {
			list = append(list, fs.FileInfoToDirEntry(shellInfo{n, info}))
		}
	}
	return list, err
}

// shellInfo describes a file as package io/fs does.
type shellInfo struct {
	name string
	memfs.Info
}

func (i shellInfo) Name() string       { return i.name }
func (i shellInfo) Size() int64        { return i.Info.Size }
func (i shellInfo) ModTime() time.Time { return i.Info.ModTime }
func (i shellInfo) IsDir() bool        { return i.Type == memfs.Dir }
func (i shellInfo) Sys() any           { return nil }
func (i shellInfo) Mode() fs.FileMode {
	return fs.FileMode(i.Info.Mode&0o777) | map[memfs.Type]fs.FileMode{
		memfs.Dir: fs.ModeDir, memfs.Symlink: fs.ModeSymlink, memfs.FIFO: fs.ModeNamedPipe, memfs.Device: fs.ModeDevice,
	}[i.Type]
}
