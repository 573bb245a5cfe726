// Package coreutils holds the fake provider's programs: small versions of the
// usual ones, with the options that scripts use.
package coreutils

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
)

// Builtins are the programs that a shell runs in its own process.
func Builtins() map[string]kernel.Program {
	return map[string]kernel.Program{
		"[": test, "echo": echo, "false": exitWith(1), "kill": kill, "printf": printf, "pwd": pwd, "test": test, "true": exitWith(0),
	}
}

// Programs are all programs but the shell.
func Programs() map[string]kernel.Program {
	all := Builtins()
	for name, f := range map[string]kernel.Program{
		"basename": basename, "cat": cat, "chmod": chmod, "chown": chown, "cp": cp, "dd": dd, "dirname": dirname, "echod": echod, "env": env, "head": head,
		"hostname": hostname, "id": id, "ln": ln, "ls": ls, "mkdir": mkdir, "mkfifo": mkfifo, "mv": mv, "readlink": readlink,
		"rm": rm, "rmdir": rmdir, "seq": seq, "sha256sum": sha256sum, "sleep": sleep, "stty": stty, "tail": tail, "tee": tee,
		"touch": touch, "uname": uname, "wc": wc, "whoami": whoami, "yes": yes,
	} {
		all[name] = f
	}
	return all
}

func exitWith(code int) kernel.Program { return func(*kernel.Proc) int { return code } }

// options splits off single-letter options. Letters in valued take a value.
func options(p *kernel.Proc, flags, valued string) (opts map[byte]string, args []string, ok bool) {
	opts, args = map[byte]string{}, p.Args[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		word := args[0][1:]
		args = args[1:]
		if word == "-" {
			break
		}
		for i := 0; i < len(word); i++ {
			c := word[i]
			switch {
			case strings.IndexByte(flags, c) >= 0:
				opts[c] = "yes"
			case strings.IndexByte(valued, c) >= 0 && i+1 < len(word):
				opts[c] = word[i+1:]
				i = len(word)
			case strings.IndexByte(valued, c) >= 0 && len(args) > 0:
				opts[c], args = args[0], args[1:]
			default:
				p.Errorf("invalid option -- '%c'", c)
				return nil, nil, false
			}
		}
	}
	return opts, args, true
}

// complain reports an error about a file and returns the status 1.
func complain(p *kernel.Proc, name string, err error) int {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	if !errors.Is(err, kernel.ErrKilled) {
		p.Errorf("%s: %v", name, err)
	}
	return 1
}

// each runs f for every operand and returns 1 if one fails.
func each(p *kernel.Proc, names []string, f func(name string) error) int {
	status := 0
	if len(names) == 0 {
		p.Errorf("missing operand")
		return 1
	}
	for _, name := range names {
		if err := f(name); err != nil {
			status = complain(p, name, err)
		}
	}
	return status
}

// inputs runs f over every file, or over standard input if there is none.
func inputs(p *kernel.Proc, names []string, f func(name string, r io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	return each(p, names, func(name string) error {
		if name == "-" {
			return f(name, p.Stream(0))
		}
		file, err := p.Open(name, 0, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		return f(name, p.File(file))
	})
}

func copyTo(w io.Writer, r io.Reader) error {
	buf := make([]byte, 64<<10)
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buf)
	return err
}

func cat(p *kernel.Proc) int {
	return inputs(p, p.Args[1:], func(_ string, r io.Reader) error { return copyTo(p.Stream(1), r) })
}

func tee(p *kernel.Proc) int {
	opts, args, ok := options(p, "ai", "")
	if !ok {
		return 1
	}
	writers := []io.Writer{p.Stream(1)}
	for _, name := range args {
		f, err := p.Open(name, writeFlags(opts['a'] != ""), 0o666)
		if err != nil {
			return complain(p, name, err)
		}
		defer f.Close()
		writers = append(writers, p.File(f))
	}
	if err := copyTo(io.MultiWriter(writers...), p.Stream(0)); err != nil {
		return 1
	}
	return 0
}

func echo(p *kernel.Proc) int {
	args, end := p.Args[1:], "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	if _, err := io.WriteString(p.Stream(1), strings.Join(args, " ")+end); err != nil {
		return 1
	}
	return 0
}

func head(p *kernel.Proc) int {
	opts, args, ok := options(p, "", "nc")
	if !ok {
		return 1
	}
	return inputs(p, args, func(_ string, r io.Reader) error {
		if c, ok := opts['c']; ok {
			n, err := strconv.ParseInt(c, 10, 64)
			if err != nil {
				return err
			}
			return copyTo(p.Stream(1), io.LimitReader(r, n))
		}
		n := 10
		if v, ok := opts['n']; ok {
			n, _ = strconv.Atoi(v)
		}
		buf := make([]byte, 1)
		for n > 0 {
			if _, err := r.Read(buf); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if _, err := p.Stream(1).Write(buf); err != nil {
				return err
			}
			if buf[0] == '\n' {
				n--
			}
		}
		return nil
	})
}

func tail(p *kernel.Proc) int {
	opts, args, ok := options(p, "", "nc")
	if !ok {
		return 1
	}
	return inputs(p, args, func(_ string, r io.Reader) error {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if c, ok := opts['c']; ok {
			n, _ := strconv.Atoi(c)
			_, err = p.Stream(1).Write(text[max(0, len(text)-n):])
			return err
		}
		n := 10
		if v, ok := opts['n']; ok {
			n, _ = strconv.Atoi(v)
		}
		lines := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
		_, err = io.WriteString(p.Stream(1), strings.Join(lines[max(0, len(lines)-n):], ""))
		if err == nil && strings.HasSuffix(string(text), "\n") {
			_, err = io.WriteString(p.Stream(1), "\n")
		}
		return err
	})
}

func wc(p *kernel.Proc) int {
	opts, args, ok := options(p, "lwc", "")
	if !ok {
		return 1
	}
	return inputs(p, args, func(name string, r io.Reader) error {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		var columns []string
		for _, c := range []struct {
			flag byte
			n    int
		}{{'l', strings.Count(string(text), "\n")}, {'w', len(strings.Fields(string(text)))}, {'c', len(text)}} {
			if _, ok := opts[c.flag]; ok || len(opts) == 0 {
				columns = append(columns, strconv.Itoa(c.n))
			}
		}
		if name != "-" {
			columns = append(columns, name)
		}
		_, err = fmt.Fprintln(p.Stream(1), strings.Join(columns, " "))
		return err
	})
}

func yes(p *kernel.Proc) int {
	line := strings.Join(append([]string{}, p.Args[1:]...), " ")
	if line == "" {
		line = "y"
	}
	for {
		if _, err := io.WriteString(p.Stream(1), line+"\n"); err != nil {
			return 1
		}
	}
}

func seq(p *kernel.Proc) int {
	var n []int
	for _, a := range p.Args[1:] {
		v, err := strconv.Atoi(a)
		if err != nil {
			p.Errorf("invalid argument %q", a)
			return 1
		}
		n = append(n, v)
	}
	first, step := 1, 1
	switch len(n) {
	case 1:
	case 2:
		first = n[0]
	case 3:
		first, step = n[0], n[1]
	default:
		p.Errorf("one to three operands wanted")
		return 1
	}
	last := n[len(n)-1]
	for i := first; step > 0 && i <= last || step < 0 && i >= last; i += step {
		if _, err := fmt.Fprintln(p.Stream(1), i); err != nil {
			return 1
		}
	}
	return 0
}

func sleep(p *kernel.Proc) int {
	var total time.Duration
	for _, a := range p.Args[1:] {
		unit := time.Second
		if n := len(a); n > 0 {
			if u, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[a[n-1]]; ok {
				unit, a = u, a[:n-1]
			}
		}
		v, err := strconv.ParseFloat(a, 64)
		if err != nil || v < 0 {
			p.Errorf("invalid time interval %q", a)
			return 1
		}
		total += time.Duration(min(v*float64(unit), float64(1<<62)))
	}
	if p.Sleep(total) != nil {
		return 1
	}
	return 0
}

func kill(p *kernel.Proc) int {
	sig, args := kernel.SIGTERM, p.Args[1:]
	if len(args) > 1 && args[0] == "-s" {
		args = append([]string{"-" + args[1]}, args[2:]...)
	}
	if len(args) > 1 && len(args[0]) > 1 && args[0][0] == '-' {
		n, ok := kernel.SignalNumber(args[0][1:])
		if !ok {
			p.Errorf("invalid signal %s", args[0][1:])
			return 2
		}
		sig, args = n, args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	return each(p, args, func(a string) error {
		pid, err := strconv.Atoi(a)
		if err != nil || pid == 0 || pid == -1 {
			return errors.New("illegal pid")
		}
		if !p.K.Kill(pid, sig) {
			return errors.New("no such process")
		}
		return nil
	})
}

func env(p *kernel.Proc) int {
	args, vars := p.Args[1:], p.Environ()
	for len(args) > 0 {
		switch {
		case args[0] == "-i":
			vars = nil
		case args[0] == "-u" && len(args) > 1:
			args = args[1:]
			vars = without(vars, args[0])
		case strings.Contains(args[0], "="):
			name, _, _ := strings.Cut(args[0], "=")
			vars = append(without(vars, name), args[0])
		default:
			return p.Exec(args, vars)
		}
		args = args[1:]
	}
	for _, kv := range vars {
		if _, err := fmt.Fprintln(p.Stream(1), kv); err != nil {
			return 1
		}
	}
	return 0
}

func without(vars []string, name string) []string {
	return slices.DeleteFunc(vars, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

func pwd(p *kernel.Proc) int {
	fmt.Fprintln(p.Stream(1), p.Dir)
	return 0
}

func basename(p *kernel.Proc) int {
	return each(p, p.Args[1:], func(a string) error { fmt.Fprintln(p.Stream(1), path.Base(a)); return nil })
}

func dirname(p *kernel.Proc) int {
	return each(p, p.Args[1:], func(a string) error { fmt.Fprintln(p.Stream(1), path.Dir(a)); return nil })
}

func hostname(p *kernel.Proc) int {
	fmt.Fprintln(p.Stream(1), p.K.Hostname)
	return 0
}

func uname(p *kernel.Proc) int {
	opts, _, ok := options(p, "asnrm", "")
	switch {
	case !ok:
		return 1
	case opts['a'] != "":
		fmt.Fprintf(p.Stream(1), "Linux %s 0.0-fake fake\n", p.K.Hostname)
	case opts['n'] != "":
		fmt.Fprintln(p.Stream(1), p.K.Hostname)
	case opts['r'] != "":
		fmt.Fprintln(p.Stream(1), "0.0-fake")
	case opts['m'] != "":
		fmt.Fprintln(p.Stream(1), "fake")
	default:
		fmt.Fprintln(p.Stream(1), "Linux")
	}
	return 0
}

func id(p *kernel.Proc) int {
	opts, _, ok := options(p, "ugn", "")
	switch {
	case !ok:
		return 1
	case opts['u'] != "" && opts['n'] != "":
		return whoami(p)
	case opts['u'] != "":
		fmt.Fprintln(p.Stream(1), p.Cred.UID)
	case opts['g'] != "":
		fmt.Fprintln(p.Stream(1), p.Cred.GID)
	default:
		fmt.Fprintf(p.Stream(1), "uid=%d gid=%d\n", p.Cred.UID, p.Cred.GID)
	}
	return 0
}

func whoami(p *kernel.Proc) int {
	if p.Cred.UID != 0 {
		p.Errorf("cannot find name for user ID %d", p.Cred.UID)
		return 1
	}
	fmt.Fprintln(p.Stream(1), "root")
	return 0
}

func stty(p *kernel.Proc) int {
	tty, ok := kernel.Terminal(p.FD(0))
	if !ok {
		p.Errorf("standard input: inappropriate ioctl for device")
		return 1
	}
	for _, a := range p.Args[1:] {
		raw, quiet := tty.Mode()
		switch a {
		case "size":
			cols, rows := tty.Size()
			fmt.Fprintf(p.Stream(1), "%d %d\n", rows, cols)
		case "raw":
			tty.SetMode(true, quiet)
		case "-raw", "cooked":
			tty.SetMode(false, quiet)
		case "echo":
			tty.SetMode(raw, false)
		case "-echo":
			tty.SetMode(raw, true)
		case "sane":
			tty.SetMode(false, false)
		default:
			p.Errorf("invalid argument '%s'", a)
			return 1
		}
	}
	return 0
}
