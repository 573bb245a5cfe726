package coreutils

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
)

// printf repeats its format until the arguments are used up.
func printf(p *kernel.Proc) int {
	args := p.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		p.Errorf("missing operand")
		return 2
	}
	format, args := args[0], args[1:]
	var out strings.Builder
	for {
		text, used, err := expand.Format(nil, format, append([]string{}, args...))
		if err != nil {
			p.Errorf("%v", err)
			return 1
		}
		out.WriteString(text)
		args = args[used:]
		if used == 0 || len(args) == 0 {
			break
		}
	}
	if _, err := io.WriteString(p.Stream(1), out.String()); err != nil {
		return 1
	}
	return 0
}

// test evaluates an expression: 0 true, 1 false, 2 not an expression.
func test(p *kernel.Proc) int {
	args := p.Args[1:]
	if p.Args[0] == "[" {
		if len(args) == 0 || args[len(args)-1] != "]" {
			p.Errorf("missing ]")
			return 2
		}
		args = args[:len(args)-1]
	}
	e := &expression{p: p, args: args}
	result := len(args) > 0 && e.or()
	if e.err == nil && len(e.args) > 0 {
		e.err = errors.New("unexpected " + e.args[0])
	}
	switch {
	case e.err != nil:
		p.Errorf("%v", e.err)
		return 2
	case result:
		return 0
	}
	return 1
}

// expression is what is left to evaluate.
type expression struct {
	p    *kernel.Proc
	args []string
	err  error
}

func (e *expression) next() string {
	if len(e.args) == 0 {
		e.err = errors.New("argument expected")
		return ""
	}
	a := e.args[0]
	e.args = e.args[1:]
	return a
}

func (e *expression) peek(s string) bool { return len(e.args) > 0 && e.args[0] == s }

func (e *expression) or() bool {
	result := e.and()
	for e.peek("-o") {
		e.next()
		result = e.and() || result
	}
	return result
}

func (e *expression) and() bool {
	result := e.not()
	for e.peek("-a") {
		e.next()
		result = e.not() && result
	}
	return result
}

func (e *expression) not() bool {
	if e.peek("!") && len(e.args) > 1 {
		e.next()
		return !e.not()
	}
	return e.primary()
}

func (e *expression) primary() bool {
	if len(e.args) >= 3 {
		if f, ok := binary[e.args[1]]; ok {
			a, _, b := e.next(), e.next(), e.next()
			return f(e, a, b)
		}
	}
	if len(e.args) >= 2 {
		if e.peek("(") {
			e.next()
			result := e.or()
			if e.next() != ")" {
				e.err = errors.New("missing )")
			}
			return result
		}
		if op := e.args[0]; len(op) == 2 && op[0] == '-' && strings.IndexByte("abcdefghLknoprsStuwxz", op[1]) >= 0 {
			e.next()
			return e.unary(op[1], e.next())
		}
	}
	return e.next() != ""
}

func numbers(compare func(a, b int64) bool) func(*expression, string, string) bool {
	return func(e *expression, a, b string) bool {
		x, errA := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
		y, errB := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
		if errA != nil || errB != nil {
			e.err = errors.New("illegal number")
		}
		return compare(x, y)
	}
}

var binary = map[string]func(e *expression, a, b string) bool{
	"=":   func(_ *expression, a, b string) bool { return a == b },
	"!=":  func(_ *expression, a, b string) bool { return a != b },
	"-eq": numbers(func(a, b int64) bool { return a == b }),
	"-ne": numbers(func(a, b int64) bool { return a != b }),
	"-lt": numbers(func(a, b int64) bool { return a < b }),
	"-le": numbers(func(a, b int64) bool { return a <= b }),
	"-gt": numbers(func(a, b int64) bool { return a > b }),
	"-ge": numbers(func(a, b int64) bool { return a >= b }),
}

func (e *expression) unary(op byte, arg string) bool {
	switch op {
	case 'n':
		return arg != ""
	case 'z':
		return arg == ""
	case 't':
		n, err := strconv.Atoi(arg)
		_, tty := kernel.Terminal(e.p.FD(n))
		return err == nil && tty
	case 'r', 'w', 'x':
		want := map[byte]uint32{'r': 4, 'w': 2, 'x': 1}[op]
		return e.p.K.FS.Access(e.p.Cred, e.p.Path(arg), want) == nil
	}
	info, err := e.p.K.FS.Stat(e.p.Cred, e.p.Path(arg), op != 'h' && op != 'L')
	if err != nil || arg == "" {
		return false
	}
	switch op {
	case 'e':
		return true
	case 'f':
		return info.Type == memfs.File
	case 'd':
		return info.Type == memfs.Dir
	case 'h', 'L':
		return info.Type == memfs.Symlink
	case 'p':
		return info.Type == memfs.FIFO
	case 'c':
		return info.Type == memfs.Device
	case 's':
		return info.Size > 0
	case 'u':
		return info.Mode&0o4000 != 0
	case 'g':
		return info.Mode&0o2000 != 0
	case 'k':
		return info.Mode&0o1000 != 0
	}
	return false
}
