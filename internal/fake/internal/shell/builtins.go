package shell

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
)

// specials are the builtins that change the shell itself.
var specials map[string]func(s *Shell, args []string) int

func init() { // They call each other, which an initialiser must not.
	specials = map[string]func(s *Shell, args []string) int{
		":": func(*Shell, []string) int { return 0 }, ".": (*Shell).source, "break": (*Shell).leave, "continue": (*Shell).leave,
		"cd": (*Shell).cd, "command": (*Shell).command, "eval": (*Shell).eval, "exec": (*Shell).exec, "exit": (*Shell).exit,
		"export": (*Shell).declare, "local": (*Shell).declare, "readonly": (*Shell).declare,
		"read": (*Shell).read, "return": (*Shell).exit, "set": (*Shell).set, "shift": (*Shell).shift, "trap": (*Shell).trap,
		"type": (*Shell).command, "umask": (*Shell).umask, "unset": (*Shell).unset, "wait": (*Shell).waitFor,
	}
}

var options = map[byte]func(*Shell) *bool{
	'e': func(s *Shell) *bool { return &s.errExit }, 'u': func(s *Shell) *bool { return &s.noUnset },
	'x': func(s *Shell) *bool { return &s.trace }, 'f': func(s *Shell) *bool { return &s.noGlob },
}

func (s *Shell) setOption(c byte, on bool) bool {
	if o, ok := options[c]; ok {
		*o(s) = on
		return true
	}
	return c == 's' || c == 'i' || c == 'l'
}

func (s *Shell) optionFlags() string {
	var flags []byte
	for c, o := range options {
		if *o(s) {
			flags = append(flags, c)
		}
	}
	slices.Sort(flags)
	return string(flags)
}

func (s *Shell) errorf(args []string, format string, a ...any) {
	fmt.Fprintf(s.p.Stream(2), "%s: %s: %s\n", s.name, args[0], fmt.Sprintf(format, a...))
}

func (s *Shell) source(args []string) int {
	if len(args) < 2 {
		return 2
	}
	text, err := s.readFile(args[1])
	if err != nil {
		s.errorf(args, "%v", err)
		return 2
	}
	s.status = 0
	return s.runText(text)
}

func (s *Shell) eval(args []string) int {
	s.status = 0
	return s.runText(strings.Join(args[1:], " "))
}

func (s *Shell) leave(args []string) int {
	n := 1
	if len(args) > 1 {
		n, _ = strconv.Atoi(args[1])
	}
	if s.loops == 0 || n < 1 {
		return 0
	}
	if args[0] == "break" {
		s.breaks = min(n, s.loops)
	} else {
		s.continues = min(n, s.loops)
	}
	return 0
}

// exit serves exit and return.
func (s *Shell) exit(args []string) int {
	status := s.status
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			s.errorf(args, "bad number: %s", args[1])
			n = 2
		}
		status = n & 0xff
	}
	if args[0] == "return" {
		s.returning = true
	} else {
		s.exiting = true
	}
	return status
}

func (s *Shell) cd(args []string) int {
	dir := s.vars["HOME"].Str
	if len(args) > 1 {
		dir = args[1]
	}
	if dir == "-" {
		dir = s.vars["OLDPWD"].Str
	}
	old := s.p.Dir
	if err := s.p.Chdir(dir); err != nil {
		s.errorf(args, "can't cd to %s", dir)
		s.p.Dir = old
		return 2
	}
	s.setVar("OLDPWD", old)
	s.setVar("PWD", s.p.Dir)
	return 0
}

// command serves command, command -v and type.
func (s *Shell) command(args []string) int {
	names, show := args[1:], args[0] == "type"
	if len(names) > 0 && names[0] == "-v" {
		names, show = names[1:], true
	}
	if len(names) == 0 {
		return 0
	}
	if !show {
		hidden := s.funcs
		s.funcs = map[string]*syntax.Stmt{}
		s.runArgs(names)
		s.funcs = hidden
		return s.status
	}
	for _, name := range names {
		_, special := specials[name]
		_, builtin := s.programs[name]
		_, function := s.funcs[name]
		file := name
		if !special && !builtin && !function {
			var err error
			if file, err = s.p.Look(name); err != nil {
				return 127
			}
		}
		fmt.Fprintln(s.p.Stream(1), file)
	}
	return 0
}

func (s *Shell) exec(args []string) int {
	if len(args) == 1 {
		s.keepRedirections = true
		return 0
	}
	s.exiting = true
	s.traps = map[int]string{}
	return s.p.Exec(args[1:], s.environ())
}

func (s *Shell) read(args []string) int {
	names := args[1:]
	raw := false
	if len(names) > 0 && names[0] == "-r" {
		raw, names = true, names[1:]
	}
	if len(names) == 0 {
		names = []string{"REPLY"}
	}
	line, status := s.readLine(raw)
	fields := expand.ReadFields(s.config(), line, len(names), raw)
	for i, name := range names {
		value := ""
		if i < len(fields) {
			value = fields[i]
		}
		s.setVar(name, value)
	}
	return status
}

// readLine reads up to a newline, byte by byte: what follows is for others.
func (s *Shell) readLine(raw bool) (string, int) {
	var line []byte
	buf := make([]byte, 1)
	for {
		n, err := s.p.Stream(0).Read(buf)
		if n == 1 {
			if buf[0] == '\n' {
				if k := len(line); !raw && k > 0 && line[k-1] == '\\' {
					line = line[:k-1]
					continue
				}
				return string(line), 0
			}
			line = append(line, buf[0])
			continue
		}
		if errors.Is(err, kernel.ErrKilled) {
			s.exiting = true
		}
		if err != nil {
			return string(line), 1
		}
	}
}

func (s *Shell) set(args []string) int {
	args = args[1:]
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		if args[0] == "--" {
			s.params = slices.Clone(args[1:])
			return 0
		}
		for _, c := range args[0][1:] {
			if !s.setOption(byte(c), args[0][0] == '-') {
				s.p.Errorf("set: illegal option -%c", c)
				return 2
			}
		}
		args = args[1:]
	}
	if len(args) > 0 {
		s.params = slices.Clone(args)
	}
	return 0
}

func (s *Shell) shift(args []string) int {
	n := 1
	if len(args) > 1 {
		n, _ = strconv.Atoi(args[1])
	}
	if n < 0 || n > len(s.params) {
		s.errorf(args, "can't shift that many")
		return 2
	}
	s.params = s.params[n:]
	return 0
}

func (s *Shell) trap(args []string) int {
	if len(args) == 1 {
		for _, sig := range slices.Sorted(maps.Keys(s.traps)) {
			fmt.Fprintf(s.p.Stream(1), "trap -- '%s' %d\n", s.traps[sig], sig)
		}
		return 0
	}
	text, names := args[1], args[2:]
	if len(names) == 0 { // trap SIGNAL resets it
		text, names = "-", args[1:]
	}
	for _, name := range names {
		sig, ok := kernel.SignalNumber(name)
		if !ok {
			s.errorf(args, "%s: bad trap", name)
			return 1
		}
		switch text {
		case "-":
			delete(s.traps, sig)
			s.p.Handle(sig, kernel.Default)
		case "":
			s.traps[sig] = ""
			s.p.Handle(sig, kernel.Ignore)
		default:
			s.traps[sig] = text
			if sig != 0 {
				s.p.Handle(sig, kernel.Catch)
			}
		}
	}
	return 0
}

func (s *Shell) umask(args []string) int {
	if len(args) == 1 {
		fmt.Fprintf(s.p.Stream(1), "%04o\n", s.p.Umask)
		return 0
	}
	n, err := strconv.ParseUint(args[1], 8, 12)
	if err != nil {
		s.errorf(args, "illegal mode: %s", args[1])
		return 2
	}
	s.p.Umask = uint32(n)
	return 0
}

func (s *Shell) unset(args []string) int {
	names := args[1:]
	functions := len(names) > 0 && names[0] == "-f"
	if len(names) > 0 && (names[0] == "-f" || names[0] == "-v") {
		names = names[1:]
	}
	for _, name := range names {
		if functions {
			delete(s.funcs, name)
			continue
		}
		if s.vars[name].ReadOnly {
			s.errorf(args, "%s: is read only", name)
			return 2
		}
		delete(s.vars, name)
	}
	return 0
}

// waitFor waits for background children; a trapped signal interrupts it.
func (s *Shell) waitFor(args []string) int {
	if len(args) == 1 {
		for len(s.jobs) > 0 {
			if status, ok := s.waitJob(s.jobs[0]); !ok {
				return status
			}
		}
		return 0
	}
	status := 0
	for _, arg := range args[1:] {
		pid, _ := strconv.Atoi(arg)
		i := slices.IndexFunc(s.jobs, func(c *kernel.Proc) bool { return c.PID == pid })
		if i < 0 {
			status = 127
			continue
		}
		var ok bool
		if status, ok = s.waitJob(s.jobs[i]); !ok {
			return status
		}
	}
	return status
}

func (s *Shell) waitJob(c *kernel.Proc) (status int, ok bool) {
	status, err := s.p.Wait(c, true)
	switch {
	case errors.Is(err, syscall.EINTR):
		return 128 + kernel.SIGTERM, false
	case err != nil:
		s.exiting = true
		return 128 + kernel.SIGKILL, false
	}
	s.jobs = slices.DeleteFunc(s.jobs, func(j *kernel.Proc) bool { return j == c })
	return status, true
}

// declare serves export, readonly and local.
func (s *Shell) declare(args []string) int {
	status := 0
	for _, arg := range args[1:] {
		name, value, has := strings.Cut(arg, "=")
		if !s.mark(args[0], name, has, value) {
			status = 2
		}
	}
	return status
}

func (s *Shell) mark(variant, name string, has bool, value string) bool {
	if strings.HasPrefix(name, "-") {
		return true // -p and the like
	}
	if !syntax.ValidName(name) {
		s.p.Errorf("%s: %s: bad variable name", variant, name)
		return false
	}
	if _, ok := s.locals[name]; variant == "local" && s.locals != nil && !ok {
		s.locals[name] = s.vars[name]
	}
	if has && !s.setVar(name, value) {
		return false
	}
	v := s.vars[name]
	v.Exported = v.Exported || variant == "export"
	v.ReadOnly = v.ReadOnly || variant == "readonly"
	s.vars[name] = v
	return true
}
