package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/testing/fake/internal/memfs"
)

// programs are small versions of the usual programs, with the options that the
// suite and the tests use.
func programs() map[string]func(*program) int {
	all := map[string]func(*program) int{
		"cat": cat, "chmod": chmod, "cut": cut, "dd": dd, "echod": echod, "env": env, "head": head, "hostname": hostname, "id": id, "kill": kill, "ln": ln, "ls": ls, "mkdir": mkdir,
		"mkfifo": mkfifo, "mv": mv, "readlink": readlink, "rm": rm, "sh": sh, "sleep": sleep, "touch": touch, "wc": wc, "yes": yes,
	}
	for _, name := range []string{"[", "echo", "false", "printf", "pwd", "test", "true"} {
		all[name] = builtin
	}
	return all
}

// options splits off single-letter options. Letters in valued take a value.
func (p *program) options(valued string) (opts map[byte]string, args []string) {
	opts, args = map[byte]string{}, p.args[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0] != "--" {
		word := args[0][1:]
		args = args[1:]
		for i := 0; i < len(word); i++ {
			opts[word[i]] = "yes"
			if strings.IndexByte(valued, word[i]) < 0 {
				continue
			}
			if opts[word[i]] = word[i+1:]; i+1 == len(word) && len(args) > 0 {
				opts[word[i]], args = args[0], args[1:]
			}
			break
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	return opts, args
}

// each runs f for every operand and returns 1 if one fails.
func (p *program) each(names []string, f func(name string) error) int {
	status := 0
	if len(names) == 0 {
		p.errorf("missing operand")
		return 1
	}
	for _, name := range names {
		if err := f(name); err != nil {
			status = 1
			var pe *fs.PathError
			if errors.As(err, &pe) {
				err = pe.Err
			}
			if !errors.Is(err, errKilled) {
				p.errorf("%s: %v", name, err)
			}
		}
	}
	return status
}

// inputs runs f over every file, or over standard input if there is none.
func (p *program) inputs(names []string, f func(name string, r io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	return p.each(names, func(name string) error {
		if name == "-" {
			return f(name, p.in)
		}
		file, err := p.sandbox.files.Open(p.path(name), os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		return f(name, file)
	})
}

// pairs runs f for every operand but the last, which is the destination, or
// the directory that they go to.
func (p *program) pairs(args []string, f func(from, to string) error) int {
	if len(args) < 2 {
		p.errorf("missing operand")
		return 1
	}
	dest := args[len(args)-1]
	return p.each(args[:len(args)-1], func(name string) error {
		if info, err := p.sandbox.files.Stat(p.path(dest), true); err == nil && info.Type == memfs.Dir {
			return f(name, p.path(dest)+"/"+path.Base(name))
		}
		return f(name, p.path(dest))
	})
}

func cat(p *program) int {
	return p.inputs(p.args[1:], func(_ string, r io.Reader) error {
		_, err := io.Copy(struct{ io.Writer }{p.out}, struct{ io.Reader }{r})
		return err
	})
}

func head(p *program) int {
	opts, args := p.options("nc")
	return p.inputs(args, func(_ string, r io.Reader) error {
		if c, ok := opts['c']; ok {
			n, err := strconv.ParseInt(c, 10, 64)
			if err == nil {
				_, err = io.Copy(p.out, io.LimitReader(r, n))
			}
			return err
		}
		n := 10
		if v, ok := opts['n']; ok {
			n, _ = strconv.Atoi(v)
		}
		for b := make([]byte, 1); n > 0; {
			if _, err := io.ReadFull(r, b); err != nil {
				return nil // There are fewer lines.
			}
			if _, err := p.out.Write(b); err != nil {
				return err
			}
			if b[0] == '\n' {
				n--
			}
		}
		return nil
	})
}

func wc(p *program) int {
	opts, args := p.options("")
	return p.inputs(args, func(name string, r io.Reader) error {
		text, err := io.ReadAll(r)
		var columns []string
		for i, n := range []int{strings.Count(string(text), "\n"), len(strings.Fields(string(text))), len(text)} {
			if _, ok := opts["lwc"[i]]; ok || len(opts) == 0 {
				columns = append(columns, strconv.Itoa(n))
			}
		}
		if name != "-" {
			columns = append(columns, name)
		}
		fmt.Fprintln(p.out, strings.Join(columns, " "))
		return err
	})
}

func yes(p *program) int {
	for {
		if _, err := io.WriteString(p.out, "y\n"); err != nil {
			return 1
		}
	}
}

func sleep(p *program) int {
	return p.each(p.args[1:], func(a string) error {
		seconds, err := strconv.ParseFloat(a, 64)
		if err != nil {
			return err
		}
		timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
		defer timer.Stop()
		select {
		case <-timer.C:
			return p.sandbox.gate(p.ctx)
		case <-p.ctx.Done():
			return errKilled
		}
	})
}

func kill(p *program) int {
	sig, args := sigTerm, p.args[1:]
	if len(args) > 1 && strings.HasPrefix(args[0], "-") {
		name := strings.TrimPrefix(args[0], "-")
		if name == "s" {
			name, args = args[1], args[1:]
		}
		n, err := strconv.Atoi(name)
		if err != nil {
			n = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": sigKill, "USR1": 10, "TERM": sigTerm}[strings.TrimPrefix(name, "SIG")]
		}
		sig, args = n, args[1:]
	}
	return p.each(args, func(pid string) error {
		p.sandbox.mu.Lock()
		all := append([]*command{}, p.sandbox.commands...)
		p.sandbox.mu.Unlock()
		for _, c := range all {
			if strconv.Itoa(c.info.PID) == strings.TrimPrefix(pid, "-") && c.kill(sig) {
				return nil
			}
		}
		return errors.New("no such process")
	})
}

func env(p *program) int {
	args := p.args[1:]
	for ; len(args) > 0 && (args[0] == "-i" || strings.Contains(args[0], "=")); args = args[1:] {
		if args[0] == "-i" {
			p.env = nil
			continue
		}
		p.env = append(p.env, args[0])
	}
	if len(args) > 0 {
		p.args = args
		return p.exec()
	}
	for _, kv := range p.env {
		fmt.Fprintln(p.out, kv)
	}
	return 0
}

func hostname(p *program) int {
	fmt.Fprintln(p.out, p.sandbox.hostname)
	return 0
}

func id(p *program) int {
	fmt.Fprintln(p.out, 0)
	return 0
}

func chmod(p *program) int {
	if len(p.args) < 3 {
		p.errorf("missing operand")
		return 1
	}
	return p.each(p.args[2:], func(name string) error {
		info, err := p.sandbox.files.Stat(p.path(name), true)
		if err != nil {
			return err
		}
		mode, err := strconv.ParseUint(p.args[1], 8, 13)
		if p.args[1] == "+x" {
			mode, err = uint64(info.Mode|0o111), nil
		}
		if err != nil {
			return err
		}
		return p.sandbox.files.Chmod(p.path(name), uint32(mode))
	})
}

func dd(p *program) int {
	o := map[string]string{"bs": "512", "count": "-1", "seek": "0"}
	for _, a := range p.args[1:] {
		name, value, _ := strings.Cut(a, "=")
		o[name] = value
	}
	number := func(name string) int64 {
		value, unit := o[name], int64(1)
		if n := len(value); n > 0 {
			if u, ok := map[byte]int64{'k': 1 << 10, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}[value[n-1]]; ok {
				unit, value = u, value[:n-1]
			}
		}
		n, _ := strconv.ParseInt(value, 10, 64)
		return n * unit
	}
	in, out := p.in, p.out
	if o["if"] != "" {
		f, err := p.sandbox.files.Open(p.path(o["if"]), os.O_RDONLY, 0)
		if err != nil {
			return p.each([]string{o["if"]}, func(string) error { return err })
		}
		in = f
	}
	if o["of"] != "" {
		f, err := p.sandbox.files.Open(p.path(o["of"]), os.O_WRONLY|os.O_CREATE, 0o644)
		if err == nil && o["conv"] != "notrunc" {
			err = f.Truncate(number("seek") * number("bs"))
		}
		if err != nil {
			return p.each([]string{o["of"]}, func(string) error { return err })
		}
		_, _ = f.Seek(number("seek")*number("bs"), io.SeekStart) // Not negative: it cannot fail.
		out = f
	}
	buf := make([]byte, min(number("bs"), 1<<20))
	left := number("count")
	for ; left != 0 && p.ctx.Err() == nil; left-- {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := out.Write(buf[:n]); err != nil {
				return 1
			}
		}
		if err != nil {
			break
		}
	}
	fmt.Fprintln(p.err, "copied")
	return 0
}

func ln(p *program) int {
	opts, args := p.options("")
	return p.pairs(args, func(from, to string) error {
		if opts['s'] != "" {
			return p.sandbox.files.Symlink(from, to)
		}
		return p.sandbox.files.Link(p.path(from), to)
	})
}

func ls(p *program) int {
	opts, args := p.options("")
	if len(args) == 0 {
		args = []string{"."}
	}
	return p.each(args, func(name string) error {
		info, err := p.sandbox.files.Stat(p.path(name), false)
		if err == nil && opts['l'] != "" {
			fmt.Fprint(p.out, shellInfo{name, info}.Mode(), " ")
		}
		if err != nil || info.Type != memfs.Dir || opts['d'] != "" {
			if err == nil {
				fmt.Fprintln(p.out, name)
			}
			return err
		}
		names, err := p.sandbox.files.Names(p.path(name))
		for _, n := range names {
			if !strings.HasPrefix(n, ".") || opts['a'] != "" || opts['A'] != "" {
				fmt.Fprintln(p.out, n)
			}
		}
		return err
	})
}

// cut knows -cN-M.
func cut(p *program) int {
	opts, args := p.options("c")
	first, last, _ := strings.Cut(opts['c'], "-")
	from, _ := strconv.Atoi(first)
	to, _ := strconv.Atoi(last)
	return p.inputs(args, func(_ string, r io.Reader) error {
		text, err := io.ReadAll(r)
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			fmt.Fprintln(p.out, line[min(max(from-1, 0), len(line)):min(to, len(line))])
		}
		return err
	})
}

func readlink(p *program) int {
	return p.each(p.args[1:], func(name string) error {
		info, err := p.sandbox.files.Stat(p.path(name), false)
		if err == nil {
			fmt.Fprintln(p.out, info.Target)
		}
		return err
	})
}

func mkdir(p *program) int {
	opts, args := p.options("m")
	mode := uint32(0o755)
	if m, err := strconv.ParseUint(opts['m'], 8, 13); err == nil {
		mode = uint32(m)
	}
	return p.each(args, func(name string) error {
		if opts['p'] != "" {
			return p.sandbox.mkdirAll(path.Clean(p.path(name)), mode, owner{})
		}
		return p.sandbox.files.Mkdir(p.path(name), mode)
	})
}

func mkfifo(p *program) int {
	return p.each(p.args[1:], func(name string) error { return p.sandbox.files.Mkfifo(p.path(name), 0o644) })
}

func mv(p *program) int {
	_, args := p.options("")
	return p.pairs(args, func(from, to string) error { return p.sandbox.files.Rename(p.path(from), to, false) })
}

func rm(p *program) int {
	opts, args := p.options("")
	return p.each(args, func(name string) error {
		var err error
		if opts['r'] != "" || opts['R'] != "" {
			err = p.sandbox.files.RemoveAll(p.path(name))
		} else {
			err = p.sandbox.files.Remove(p.path(name), false)
		}
		if opts['f'] != "" && errors.Is(err, syscall.ENOENT) {
			return nil
		}
		return err
	})
}

func touch(p *program) int {
	return p.each(p.args[1:], func(name string) error {
		_, err := p.sandbox.files.Open(p.path(name), os.O_WRONLY|os.O_CREATE, 0o644)
		if err == nil {
			err = p.sandbox.files.Chtimes(p.path(name), time.Now())
		}
		return err
	})
}

// echod listens on a free port, prints the port, and echoes all data.
func echod(p *program) int {
	port, l := p.sandbox.listen(p.ctx)
	fmt.Fprintln(p.out, port)
	for {
		select {
		case conn := <-l.made:
			context.AfterFunc(p.ctx, func() { conn.Close() })
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		case <-p.ctx.Done():
			return 1
		}
	}
}
