// Package shell is the fake provider's /bin/sh. Parsing and word expansion are
// those of mvdan.cc/sh; running is done here, because that module's
// interpreter starts real processes' pipes and knows neither process ids nor
// signals, and the fake has processes of its own.
package shell

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
)

// Builtins are the programs that the shell runs in its own process.
type Builtins map[string]kernel.Program

// Shell is the state of one shell process. It belongs to that process's
// goroutine.
type Shell struct {
	p        *kernel.Proc
	programs Builtins
	name     string
	params   []string
	vars     map[string]expand.Variable
	funcs    map[string]*syntax.Stmt
	traps    map[int]string // by signal, 0 is the end of the shell
	jobs     []*kernel.Proc // background children not yet waited for
	lastJob  int            // their last PID
	pid      int            // $$, the same in subshells

	errExit, noUnset, trace, noGlob bool
	keepRedirections                bool // exec without arguments was run
	inPlace                         bool // a program is run as this very process: nothing comes after it

	status    int // of the last command
	substExit int // of the last command substitution
	inTrap    bool
	guarded   int // depth of conditions, where a failure does not exit
	loops     int // depth of loops
	depth     int // of functions and scripts
	breaks    int // loops left to break out of
	continues int
	locals    map[string]expand.Variable // of the running function: what to restore
	returning bool
	exiting   bool
	expandErr error
}

// Main returns the program sh.
func Main(programs Builtins) kernel.Program {
	return func(p *kernel.Proc) int {
		s := &Shell{
			p: p, programs: programs, name: p.Args[0], pid: p.PID,
			vars: map[string]expand.Variable{}, funcs: map[string]*syntax.Stmt{}, traps: map[int]string{},
		}
		return s.main()
	}
}

func (s *Shell) main() int {
	for _, kv := range s.p.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if syntax.ValidName(name) {
			s.vars[name] = expand.Variable{Set: true, Exported: true, Kind: expand.String, Str: value}
		}
	}
	s.setVar("IFS", " \t\n")
	s.setVar("PWD", s.p.Dir)
	args, command := s.p.Args[1:], false
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		if args[0] == "--" {
			args = args[1:]
			break
		}
		on := args[0][0] == '-'
		for _, c := range args[0][1:] {
			if c == 'c' {
				command = true
			} else if !s.setOption(byte(c), on) {
				s.p.Errorf("illegal option -%c", c)
				return 2
			}
		}
		args = args[1:]
	}
	return s.runInput(args, command)
}

// runInput runs what the arguments after the options say: a script, a file or
// the standard input.
func (s *Shell) runInput(args []string, command bool) int {
	switch {
	case command && len(args) == 0:
		s.p.Errorf("-c requires an argument")
		return 2
	case command:
		if len(args) > 1 {
			s.name, s.params = args[1], args[2:]
		}
		return s.finish(s.runText(args[0]))
	case len(args) > 0:
		s.name, s.params = args[0], args[1:]
		text, err := s.readFile(args[0])
		if err != nil {
			s.p.Errorf("%s: %v", args[0], err)
			return 127
		}
		return s.finish(s.runText(text))
	}
	text, err := io.ReadAll(s.p.Stream(0))
	if err != nil {
		return 2
	}
	return s.finish(s.runText(string(text)))
}

func (s *Shell) readFile(name string) (string, error) {
	f, err := s.p.Open(name, 0, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(s.p.File(f))
	return string(text), err
}

// maxDepth bounds how deep functions and evals call each other: a shell that
// runs out of its stack must not take the machine's along.
const maxDepth = 500

func (s *Shell) deeper() bool {
	if s.depth >= maxDepth {
		s.p.Errorf("the recursion is too deep")
		s.status, s.exiting = 2, true
		return false
	}
	s.depth++
	return true
}

// runText runs a script, all of it or, if it has a syntax error, nothing.
func (s *Shell) runText(text string) int {
	if !s.deeper() {
		return s.status
	}
	defer func() { s.depth-- }()
	parser := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
	file, err := parser.Parse(strings.NewReader(text), s.name)
	if file != nil && err == nil {
		s.stmts(file.Stmts)
		return s.status
	}
	s.p.Errorf("%v", err)
	s.status = 2
	return 2
}

// finish runs the trap for the end of the shell.
func (s *Shell) finish(status int) int {
	s.runTraps()
	if text, ok := s.traps[0]; ok && !s.p.Dead() {
		delete(s.traps, 0)
		s.exiting, s.returning, s.status = false, false, status
		s.runText(text)
		if s.exiting {
			return s.status
		}
	}
	return status
}

// subshell returns a copy of the shell for a child process.
func (s *Shell) subshell(p *kernel.Proc) *Shell {
	c := *s
	c.p = p
	c.vars, c.funcs = maps.Clone(s.vars), maps.Clone(s.funcs)
	c.params = slices.Clone(s.params)
	c.jobs, c.loops, c.inTrap, c.inPlace = nil, 0, false, false
	c.traps = map[int]string{}
	for sig, text := range s.traps {
		if text == "" && sig != 0 {
			c.traps[sig] = "" // Ignored signals stay ignored.
		}
	}
	return &c
}

// fork runs f in a subshell of its own process.
func (s *Shell) fork(f func(c *Shell) int) *kernel.Proc {
	// The copy is made here: the child must not look at a shell that goes on.
	c := s.subshell(nil)
	return s.p.Fork(func(p *kernel.Proc) int {
		c.p = p
		return c.finish(f(c))
	})
}

// wait waits for a child in the foreground. Traps run after it, not during it.
func (s *Shell) wait(c *kernel.Proc) int {
	if c == nil {
		return 128 + kernel.SIGKILL
	}
	status, err := s.p.Wait(c, false)
	if err != nil {
		s.exiting = true
		return 128 + kernel.SIGKILL
	}
	return status
}

// stopped reports whether nothing more of the current list is to be run.
func (s *Shell) stopped() bool {
	return s.exiting || s.returning || s.breaks > 0 || s.continues > 0 || s.p.Dead()
}

func (s *Shell) stmts(list []*syntax.Stmt) {
	for _, st := range list {
		if s.runTraps(); s.stopped() {
			return
		}
		s.stmt(st)
	}
	s.runTraps()
}

// runTraps runs the traps for the signals that have arrived.
func (s *Shell) runTraps() {
	if s.inTrap {
		return
	}
	for _, sig := range s.p.Pending() {
		text := s.traps[sig]
		if text == "" || s.exiting {
			continue
		}
		status := s.status
		s.inTrap = true
		s.runText(text)
		s.inTrap = false
		if !s.exiting {
			s.status = status
		}
	}
}

func (s *Shell) stmt(st *syntax.Stmt) {
	if st.Background {
		s.background(st)
		return
	}
	if st.Negated {
		s.guarded++
	}
	s.redirected(st.Redirs, func() { s.cmd(st.Cmd) })
	if st.Negated {
		s.guarded--
		if !s.exiting {
			s.status = 1 - min(s.status, 1)
		}
		return
	}
	if _, compound := st.Cmd.(*syntax.BinaryCmd); s.errExit && s.status != 0 && s.guarded == 0 && (!compound || st.Cmd.(*syntax.BinaryCmd).Op == syntax.Pipe) {
		s.exiting = true
	}
}

// background starts a statement without waiting for it. As in any shell
// without job control, the child ignores interrupts and has an empty input.
func (s *Shell) background(st *syntax.Stmt) {
	copied := *st
	copied.Background = false
	c := s.fork(func(c *Shell) int {
		c.p.Handle(kernel.SIGINT, kernel.Ignore)
		c.p.Handle(kernel.SIGQUIT, kernel.Ignore)
		c.p.SetFD(0, kernel.Null())
		_, simple := copied.Cmd.(*syntax.CallExpr)
		c.inPlace = simple && !copied.Negated // so that $! is the program, as in any shell
		c.stmts([]*syntax.Stmt{&copied})
		return c.status
	})
	s.status = 0
	if c != nil {
		s.jobs = append(s.jobs, c)
		s.lastJob = c.PID
	}
}

func (s *Shell) cmd(cmd syntax.Command) {
	switch cmd := cmd.(type) {
	case nil:
		if s.expandErr == nil {
			s.status = 0
		}
	case *syntax.CallExpr:
		s.call(cmd)
	case *syntax.BinaryCmd:
		s.binary(cmd)
	case *syntax.Block:
		s.stmts(cmd.Stmts)
	case *syntax.Subshell:
		s.status = s.wait(s.fork(func(c *Shell) int { c.stmts(cmd.Stmts); return c.status }))
	case *syntax.IfClause:
		s.ifClause(cmd)
	case *syntax.WhileClause:
		s.while(cmd)
	case *syntax.ForClause:
		s.forClause(cmd)
	case *syntax.CaseClause:
		s.caseClause(cmd)
	case *syntax.FuncDecl:
		if cmd.Name == nil {
			s.p.Errorf("a function without a name")
			s.status = 2
			return
		}
		s.funcs[cmd.Name.Value] = cmd.Body
		s.status = 0
	default:
		s.p.Errorf("%T is not supported", cmd)
		s.status = 2
	}
}

// condition runs a list whose failure is no reason to exit.
func (s *Shell) condition(list []*syntax.Stmt) bool {
	s.guarded++
	s.stmts(list)
	s.guarded--
	return s.status == 0
}

func (s *Shell) ifClause(c *syntax.IfClause) {
	for ; c != nil; c = c.Else {
		if len(c.Cond) == 0 { // else
			s.stmts(c.Then)
			return
		}
		ok := s.condition(c.Cond)
		if s.stopped() {
			return
		}
		if ok {
			s.stmts(c.Then)
			return
		}
	}
	s.status = 0
}

func (s *Shell) while(c *syntax.WhileClause) {
	s.loops++
	defer func() { s.loops-- }()
	status := 0
	for {
		ok := s.condition(c.Cond)
		if s.stopped() || ok == c.Until {
			if s.exiting || s.returning {
				return
			}
			s.leaveLoop()
			break
		}
		s.stmts(c.Do)
		status = s.status
		if s.leaveLoop() {
			break
		}
	}
	if !s.exiting && !s.returning {
		s.status = status
	}
}

// leaveLoop accounts for break and continue at the end of a round, and
// reports whether the loop ends.
func (s *Shell) leaveLoop() bool {
	switch {
	case s.breaks > 0:
		s.breaks--
		return true
	case s.continues > 0:
		s.continues--
		return s.continues > 0
	}
	return s.stopped()
}

func (s *Shell) forClause(c *syntax.ForClause) {
	words, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		s.p.Errorf("this kind of for is not supported")
		s.status = 2
		return
	}
	items := s.params
	if words.InPos.IsValid() {
		items = s.fields(words.Items...)
	}
	s.loops++
	defer func() { s.loops-- }()
	s.status = 0
	for _, item := range items {
		s.setVar(words.Name.Value, item)
		s.stmts(c.Do)
		if s.leaveLoop() {
			return
		}
	}
}

func (s *Shell) caseClause(c *syntax.CaseClause) {
	word := s.literal(c.Word)
	s.status = 0
	for _, item := range c.Items {
		for _, pattern := range item.Patterns {
			if s.matches(pattern, word) {
				s.stmts(item.Stmts)
				return
			}
		}
	}
}

func (s *Shell) binary(c *syntax.BinaryCmd) {
	if c.Op == syntax.Pipe {
		s.pipeline(c)
		return
	}
	s.guarded++
	s.stmt(c.X)
	s.guarded--
	if s.stopped() || (s.status == 0) != (c.Op == syntax.AndStmt) {
		return
	}
	s.stmt(c.Y)
}

// pipeline runs both sides in children, joined by a pipe. Its status is that
// of the last command.
func (s *Shell) pipeline(c *syntax.BinaryCmd) {
	pipe := kernel.NewPipe()
	r, w := pipe.Reader(), pipe.Writer()
	saved := s.p.Save(1)
	s.p.SetFD(1, w)
	left := s.fork(func(c2 *Shell) int { c2.stmt(c.X); return c2.status })
	s.p.Restore(saved)
	saved = s.p.Save(0)
	s.p.SetFD(0, r)
	right := s.fork(func(c2 *Shell) int { c2.stmt(c.Y); return c2.status })
	s.p.Restore(saved)
	status := s.wait(right)
	s.wait(left)
	s.status = status
}

// substitute runs a command substitution.
func (s *Shell) substitute(w io.Writer, cs *syntax.CmdSubst) error {
	pipe := kernel.NewPipe()
	r := pipe.Reader()
	defer r.Close()
	saved := s.p.Save(1)
	s.p.SetFD(1, pipe.Writer())
	c := s.fork(func(c *Shell) int { c.stmts(cs.Stmts); return c.status })
	s.p.Restore(saved)
	_, err := io.Copy(w, s.p.File(r))
	s.substExit = s.wait(c)
	if errors.Is(err, kernel.ErrKilled) {
		s.exiting = true
		return err
	}
	return nil
}

// call runs a simple command.
func (s *Shell) call(c *syntax.CallExpr) {
	s.substExit, s.expandErr = 0, nil
	args := s.fields(c.Args...)
	if len(args) == 0 {
		for _, a := range c.Assigns {
			s.assign(a, false)
		}
		s.status = s.substExit
		if s.expandErr != nil {
			s.status = 2
		}
		return
	}
	if s.expandErr != nil {
		s.status = 2
		return
	}
	restore := s.assignFor(c.Assigns)
	if s.trace {
		fmt.Fprintf(s.p.Stream(2), "+ %s\n", strings.Join(args, " "))
	}
	s.runArgs(args)
	restore()
}

// assignFor makes assignments that hold for one command and returns how to
// undo them.
func (s *Shell) assignFor(assigns []*syntax.Assign) func() {
	if len(assigns) == 0 {
		return func() {}
	}
	before := maps.Clone(s.vars)
	for _, a := range assigns {
		s.assign(a, true)
	}
	return func() {
		for _, a := range assigns {
			name := a.Name.Value
			if old, ok := before[name]; ok {
				s.vars[name] = old
			} else {
				delete(s.vars, name)
			}
		}
	}
}

// function runs a function with its own parameters and local variables.
func (s *Shell) function(body *syntax.Stmt, args []string) {
	if !s.deeper() {
		return
	}
	defer func() { s.depth-- }()
	params, locals := s.params, s.locals
	s.params, s.locals = args, map[string]expand.Variable{}
	s.stmt(body)
	for name, old := range s.locals {
		if old.IsSet() {
			s.vars[name] = old
		} else {
			delete(s.vars, name)
		}
	}
	s.params, s.locals, s.returning = params, locals, false
}

// runArgs runs a function, a builtin or a program.
func (s *Shell) runArgs(args []string) {
	inPlace := s.inPlace
	s.inPlace = false
	if body, ok := s.funcs[args[0]]; ok {
		s.function(body, args[1:])
		return
	}
	if f, ok := specials[args[0]]; ok {
		s.status = f(s, args)
		return
	}
	if f, ok := s.programs[args[0]]; ok {
		old := s.p.Args
		s.p.Args = args
		s.status = f(s.p)
		s.p.Args = old
		return
	}
	env := s.environ()
	if inPlace {
		s.status = s.p.Exec(args, env)
		return
	}
	s.status = s.wait(s.p.Fork(func(p *kernel.Proc) int { return p.Exec(args, env) }))
}
