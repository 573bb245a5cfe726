package agent

import (
	"cmp"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/internal/guest/spawn"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// startError says why a command could not start, in the words of a shell.
type startError struct {
	code    int
	message string
}

func (e *startError) Error() string { return e.message }

// launch starts a command. If that fails, the command has already ended when
// launch returns, and launch returns the reason.
func (a *agent) launch(c *sandbox.Command) (*proc, *startError) {
	p := newProc(c)
	a.procs.add(p)
	if c.Background || c.Hold > 0 {
		p.seat = newSeat(&a.procs.logs, c)
		p.log = p.seat.shared
	}
	err := a.spawn(p)
	if err == nil {
		return p, nil
	}
	var se *startError
	if !errors.As(err, &se) {
		se = &startError{code: 126, message: err.Error()}
	}
	p.mu.Lock()
	p.alone = true
	p.finish(sandbox.Exit{Code: se.code, Reason: sandbox.ReasonExited, Detail: se.message})
	p.mu.Unlock()
	a.procs.retire(p)
	return p, se
}

// spawn creates the process.
func (a *agent) spawn(p *proc) error {
	p.within = &a.bounds
	c, def := p.cmd, a.getDefaults()
	user := c.User
	if user == "" {
		user = def.User
	}
	acc, err := a.users.lookup(user)
	if err != nil {
		return &startError{code: 126, message: err.Error()}
	}
	dir := c.Dir
	if dir == "" {
		dir = def.Workdir
	}
	if dir == "" {
		dir = "/"
	}
	env := environment(def.Env, c, acc)
	argv := c.Args
	if c.Shell != "" {
		argv = []string{"/bin/sh", "-c", c.Shell}
	}
	program, err := findProgram(argv[0], env["PATH"], dir)
	if err != nil {
		return cmp.Or(checkDir(dir), err)
	}
	cred, err := a.self.credential(acc)
	if err != nil {
		return err
	}
	fds, err := a.openStdio(&p.io, c, acc)
	if err != nil {
		return err
	}
	attr := &spawn.Attr{Dir: dir, Env: envList(env), Files: fds.files, Close: fds.own, Credential: cred, TTY: c.TTY != nil, Follow: c.TTY == nil}
	if fastPath(c) {
		attr.Pidfd, attr.Await = &p.pidfd, p.moment()
	}
	// The end of the process needs its number and its timer, so it waits for mu.
	p.mu.Lock()
	pid, err := a.bounds.start(attr, func() (int, error) {
		return a.reaper.start(program, argv, attr, func(e ending) {
			p.exited(e)
			a.procs.retire(p)
		})
	})
	if err == nil {
		p.pid, p.group, p.info.PID, p.ended = pid, attr.Group, pid, attr.Ended
	}
	if err == nil && p.pidfd < 0 {
		p.io.open()
		p.setTimer()
	}
	p.mu.Unlock()
	if err != nil {
		closeFDs(fds.own)
		p.io.close()
		return cmp.Or(checkDir(dir), explain(err, argv[0], dir))
	}
	if c.TTY != nil && !c.Stdin {
		p.io.endInput() // readers see the end at once
	}
	return nil
}

// environment returns a command's environment: the login variables, overridden
// by the sandbox's, overridden by the command's own.
func environment(def map[string]string, c *sandbox.Command, acc account) map[string]string {
	env := make(map[string]string, len(def)+len(c.Env)+6)
	env["PATH"] = defaultPath
	env["HOME"] = acc.home
	if acc.name != "" {
		env["USER"], env["LOGNAME"] = acc.name, acc.name
	}
	if c.TTY != nil {
		env["TERM"] = "xterm-256color"
	}
	for k, v := range def {
		env[k] = v
	}
	for k, v := range c.Env {
		env[k] = v
	}
	return env
}

func envList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// checkDir says what is wrong with a working directory. It is called after a
// failed exec, which does not tell.
func checkDir(dir string) error {
	var st syscall.Stat_t
	switch err := syscall.Stat(dir, &st); {
	case err != nil:
		return &startError{code: 126, message: "working directory " + quote(dir) + ": " + err.Error()}
	case st.Mode&syscall.S_IFMT != syscall.S_IFDIR:
		return &startError{code: 126, message: "working directory " + quote(dir) + ": not a directory"}
	}
	return nil
}

// findProgram searches PATH like a shell.
func findProgram(name, searchPath, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var st syscall.Stat_t
	denied := false
	for _, d := range strings.Split(searchPath, ":") {
		file := path.Join(d, name)
		if !path.IsAbs(d) {
			file = path.Join(dir, d, name)
		}
		if syscall.Stat(file, &st) != nil || st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			continue
		}
		if st.Mode&0o111 != 0 {
			return file, nil
		}
		denied = true
	}
	if denied {
		return "", &startError{code: 126, message: quote(name) + ": permission denied"}
	}
	return "", &startError{code: 127, message: quote(name) + ": not found in PATH"}
}

// explain converts a failed exec to a shell's message.
func explain(err error, name, dir string) error {
	se := &startError{code: 126, message: quote(name) + ": " + err.Error()}
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		se.code = 127
	case errors.Is(err, syscall.EAGAIN):
		se.message = quote(name) + ": the sandbox has as many processes as it may have"
	case errors.Is(err, syscall.EACCES):
		var st syscall.Stat_t
		if syscall.Stat(name, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			se.message = quote(name) + ": is a directory"
		} else {
			se.message += ", or no access to " + quote(dir)
		}
	}
	return se
}

// exec starts a command and serves it until the client leaves or it ends.
func (a *agent) exec(op *wire.Op, d *wire.Decoder) error {
	c := wire.TakeCommand(d)
	if err := d.End(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return fail(sandbox.CodeInvalid, "", err.Error())
	}
	p, se := a.launch(c)
	var who *caller
	if c.Background {
		who = p.seat.take(p)
		defer a.left(p, who)
	}
	over, err := a.introduce(op, p, who, se, func() error { return sayStarted(op, p) })
	switch {
	case over:
		return nil
	case c.Background:
		return a.follow(op, p, who, view{})
	case se != nil:
		return a.sayExit(op, p)
	case err != nil:
		a.discard(p)
		return err
	}
	return a.foreground(op, p)
}

// introduce tells a client that its command has started, or why it has not. If
// the command has a seat, introduce starts keeping its output. It reports
// whether the command has ended and everything was sent.
func (a *agent) introduce(op *wire.Op, p *proc, who *caller, failed *startError, say func() error) (over bool, err error) {
	switch {
	case failed != nil:
		a.complain(op, p, failed)
		err = say()
	case p.pidfd < 0:
		err = say()
	default:
		over = a.begin(op, p, who, say)
	}
	if failed == nil && !over && p.seat != nil {
		a.keepLog(p)
	}
	return over, err
}

// complain sends the reason why a command could not start on its standard
// error, as a shell would.
func (a *agent) complain(op *wire.Op, p *proc, se *startError) {
	text := []byte("atoll: " + se.message + "\n")
	lane := 1
	if p.cmd.TTY != nil {
		lane, text = 0, append(text[:len(text)-1], "\r\n"...)
	}
	if p.seat != nil {
		p.seat.log(byte(lane+1)).write(byte(lane+1), text)
		p.seat.ended()
		return
	}
	_, _ = op.Write(lane, text)
}

// foreground connects a command to the client that started it. It returns when
// the command has ended and its output was sent, or when the client leaves.
func (a *agent) foreground(op *wire.Op, p *proc) error {
	var pumps sync.WaitGroup
	pumpLane := func(lane int, f *os.File) {
		defer f.Close()
		err := pump(f, func(frame []byte) error { return op.SendFrame(lane, frame) })
		select {
		case <-op.Over():
			if err != nil {
				// A command that is hung up may write until it has ended, and so may the
				// orphans of one that ended by itself. Discard their output.
				_ = pump(f, func(frame []byte) error { wire.PutFrame(frame); return nil })
			}
		default:
			_ = op.CloseWrite(lane)
		}
	}
	pumps.Go(func() { pumpLane(0, p.io.out) })
	if p.io.err != nil {
		pumps.Go(func() { pumpLane(1, p.io.err) })
	} else {
		_ = op.CloseWrite(1) // whatever lives beside it
	}
	if p.cmd.Stdin {
		go p.io.feed(op, nil)
	}
	select {
	case <-p.done:
	case <-op.Over():
		p.hangUp()
		<-p.done
	}
	err := a.sayExit(op, p)
	op.Drop(0, os.ErrClosed) // nothing reads the input any more
	p.io.closeInput()
	if !p.endedItself() {
		p.io.close()
	}
	all := make(chan struct{})
	go func() {
		pumps.Wait()
		p.io.close()
		close(all)
	}()
	select {
	case <-all: // send all output first
	case <-op.Over():
	}
	return err
}

// discard ends a command that the client was never told about.
func (a *agent) discard(p *proc) {
	p.drop()
	<-p.done
	p.io.close()
}

// sayStarted sends the command's description to the client.
func sayStarted(op *wire.Op, p *proc) error {
	e := wire.Encoder{B: []byte{wire.MsgStarted}}
	info := p.snapshot()
	info.Args = nil // the client has them
	wire.PutProcess(&e, &info)
	return op.Message(e.B)
}

// sayExit sends the command's exit status to the client.
func (a *agent) sayExit(op *wire.Op, p *proc) error {
	e := wire.Encoder{B: []byte{wire.MsgExit}}
	wire.PutExit(&e, *p.snapshot().Exit)
	return op.Message(e.B)
}
