package shell

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"

	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
)

// variables lets the expansion see the shell's variables and parameters.
type variables struct{ *Shell }

var _ expand.WriteEnviron = variables{}

func text(s string) expand.Variable {
	return expand.Variable{Set: true, Kind: expand.String, Str: s}
}

// Get returns a variable or a special parameter.
func (v variables) Get(name string) expand.Variable {
	switch name {
	case "#":
		return text(strconv.Itoa(len(v.params)))
	case "@", "*":
		return expand.Variable{Set: true, Kind: expand.Indexed, List: append([]string{}, v.params...)}
	case "?":
		return text(strconv.Itoa(v.status))
	case "$":
		return text(strconv.Itoa(v.pid))
	case "PPID":
		return text(strconv.Itoa(v.p.PPID))
	case "!":
		if v.lastJob == 0 {
			return expand.Variable{}
		}
		return text(strconv.Itoa(v.lastJob))
	case "-":
		return text(v.optionFlags())
	case "0":
		return text(v.name)
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n < 1 || n > len(v.params) {
			return expand.Variable{}
		}
		return text(v.params[n-1])
	}
	if user, ok := strings.CutPrefix(name, "HOME "); ok {
		return text("~" + user) // The real machine's users are none of ours.
	}
	return v.vars[name]
}

// Each yields the variables.
func (v variables) Each(f func(string, expand.Variable) bool) {
	for name, value := range v.vars {
		if !f(name, value) {
			return
		}
	}
}

// Set sets a variable, as ${x:=y} does.
func (v variables) Set(name string, value expand.Variable) error {
	if v.vars[name].ReadOnly {
		return errors.New(name + ": is read only")
	}
	if !value.IsSet() {
		delete(v.vars, name)
		return nil
	}
	value.Exported = value.Exported || v.vars[name].Exported
	v.vars[name] = value
	return nil
}

// setVar sets a variable and keeps its attributes.
func (s *Shell) setVar(name, value string) bool {
	old := s.vars[name]
	if old.ReadOnly {
		s.fail(errors.New(name + ": is read only"))
		return false
	}
	old.Set, old.Kind, old.Str = true, expand.String, value
	s.vars[name] = old
	return true
}

// assign carries out name=value.
func (s *Shell) assign(a *syntax.Assign, exported bool) {
	value := ""
	if a.Value != nil {
		value = s.literal(a.Value)
	}
	if a.Append {
		value = s.vars[a.Name.Value].Str + value
	}
	if s.setVar(a.Name.Value, value) && exported {
		v := s.vars[a.Name.Value]
		v.Exported = true
		s.vars[a.Name.Value] = v
	}
}

// environ returns the environment for a program: the exported variables, and
// what came in and cannot be a variable.
func (s *Shell) environ() []string {
	var env []string
	for _, kv := range s.p.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !syntax.ValidName(name) {
			env = append(env, kv)
		}
	}
	for name, v := range s.vars {
		if v.Exported && v.IsSet() {
			env = append(env, name+"="+v.Str)
		}
	}
	slices.Sort(env)
	return env
}

func (s *Shell) config() *expand.Config {
	cfg := &expand.Config{Env: variables{s}, CmdSubst: s.substitute, NoUnset: s.noUnset}
	if !s.noGlob {
		cfg.ReadDir2 = s.readDir
	}
	return cfg
}

// fail reports an error of expansion; it ends the shell, as POSIX demands.
func (s *Shell) fail(err error) {
	if err == nil {
		return
	}
	s.expandErr = err
	if s.p.Dead() {
		return
	}
	s.p.Errorf("%v", err)
	s.status, s.exiting = 2, true
}

func (s *Shell) fields(words ...*syntax.Word) []string {
	f, err := expand.Fields(s.config(), words...)
	s.fail(err)
	return f
}

func (s *Shell) literal(w *syntax.Word) string {
	if w == nil {
		return ""
	}
	t, err := expand.Literal(s.config(), w)
	s.fail(err)
	return t
}

func (s *Shell) document(w *syntax.Word) string {
	if w == nil {
		return ""
	}
	t, err := expand.Document(s.config(), w)
	s.fail(err)
	return t
}

func (s *Shell) matches(w *syntax.Word, subject string) bool {
	p, err := expand.Pattern(s.config(), w)
	s.fail(err)
	expr, err := pattern.Regexp(p, pattern.EntireString)
	if err != nil {
		return p == subject
	}
	re, err := regexp.Compile(expr)
	return err == nil && re.MatchString(subject)
}

// entry is a directory entry for globbing.
type entry struct {
	name string
	info memfs.Info
}

func (e entry) Name() string               { return e.name }
func (e entry) IsDir() bool                { return e.info.Type == memfs.Dir }
func (e entry) Info() (fs.FileInfo, error) { return e, nil }
func (e entry) Size() int64                { return e.info.Size }
func (e entry) Mode() fs.FileMode          { return e.Type() | fs.FileMode(e.info.Mode&0o777) }
func (e entry) ModTime() time.Time         { return e.info.ModTime }
func (e entry) Sys() any                   { return nil }

func (e entry) Type() fs.FileMode {
	switch e.info.Type {
	case memfs.Dir:
		return fs.ModeDir
	case memfs.Symlink:
		return fs.ModeSymlink
	}
	return 0
}

func (s *Shell) readDir(dir string) ([]fs.DirEntry, error) {
	files := s.p.K.FS
	names, err := files.Names(s.p.Cred, s.p.Path(dir))
	if err != nil {
		return nil, err
	}
	var entries []fs.DirEntry
	for _, name := range names {
		if info, err := files.Stat(s.p.Cred, s.p.Path(dir)+"/"+name, true); err == nil {
			entries = append(entries, entry{name, info})
		} else if info, err := files.Stat(s.p.Cred, s.p.Path(dir)+"/"+name, false); err == nil {
			entries = append(entries, entry{name, info})
		}
	}
	return entries, nil
}
