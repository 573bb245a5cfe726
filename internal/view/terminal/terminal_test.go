package terminal

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// program is the other end of a terminal.
type program struct {
	driver.Process
	out    *io.PipeReader
	screen *io.PipeWriter
	keys   *io.PipeReader
	in     *io.PipeWriter
	sizes  chan sandbox.WindowSize
	ended  chan struct{}
	once   sync.Once
}

func newProgram(t *testing.T) (*program, *Terminal) {
	p := &program{sizes: make(chan sandbox.WindowSize, 100), ended: make(chan struct{})}
	p.out, p.screen = io.Pipe()
	p.keys, p.in = io.Pipe()
	term := New(p, 0, sandbox.WindowSize{})
	t.Cleanup(term.Close)
	return p, term
}

func (p *program) Stdin() io.WriteCloser { return p.in }
func (p *program) Stdout() io.Reader     { return p.out }
func (p *program) Resize(_ context.Context, s sandbox.WindowSize) error {
	p.sizes <- s
	return nil
}

func (p *program) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.ended:
		return sandbox.Exit{Code: 3}, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (p *program) Close() error {
	p.once.Do(func() {
		_, _ = p.screen.Close(), p.in.Close()
	})
	return nil
}

func (p *program) print(t *testing.T, text string) {
	t.Helper()
	if _, err := p.screen.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// follows reads output until it has n bytes.
func follows(t *testing.T, v *Viewer, n int) string {
	t.Helper()
	var out []byte
	for len(out) < n {
		c, err := v.Next()
		if err != nil || c.Exit != nil || c.Screen != nil {
			t.Fatalf("after %q: %+v, %v", out, c, err)
		}
		out = append(out, c.Output...)
	}
	return string(out)
}

// shows returns what a terminal of a size shows after the given bytes.
func shows(size sandbox.WindowSize, parts ...[]byte) *screen {
	s := newScreen(size, func([]byte) {})
	for _, p := range parts {
		s.write(p)
	}
	return s
}

func same(t *testing.T, name string, a, b *screen) {
	t.Helper()
	if a.emu.Render() != b.emu.Render() || a.emu.CursorPosition() != b.emu.CursorPosition() || a.emu.IsAltScreen() != b.emu.IsAltScreen() ||
		fmt.Sprint(a.modes) != fmt.Sprint(b.modes) || a.title != b.title {
		t.Errorf("%s: the copy shows\n%q at %v, %v, %q\nwant\n%q at %v, %v, %q", name, a.emu.Render(), a.emu.CursorPosition(), a.modes, a.title, b.emu.Render(), b.emu.CursorPosition(), b.modes, b.title)
	}
}

// A late viewer sees the screen as it is, and what follows continues it (RB-70).
func TestLateViewersSeeTheScreen(t *testing.T) {
	size := sandbox.WindowSize{Cols: 40, Rows: 10}
	full := strings.Repeat("x", 40)
	for name, c := range map[string]struct{ before, after string }{
		"text":          {"hello\r\nworld", "!\r\n"},
		"colours":       {"\x1b[1;31mred", " still red\x1b[0m no"},
		"full lines":    {full + "\r\n" + full + "\r\nend", "."},
		"scrolled":      {strings.Repeat("line\r\n", 30) + "$ ", "ls"},
		"alternate":     {"shell\x1b[?1049h\x1b[2J\x1b[3;4Hvim\x1b[?1h\x1b[?2004h", "\x1b[5;5Hmore"},
		"mouse":         {"\x1b[?1000h\x1b[?1006h\x1b[?25l", "x"},
		"half sequence": {"a\x1b[3", "1mred"},
		"half rune":     {"a\xe2\x82", "\xacb"},
		"title":         {"\x1b]2;build\x07$ ", "x"},
		"region":        {"\x1b[2;4rtop\x1b[4;1Ha", "\nb\nc"},
	} {
		p, term := newProgram(t)
		first, _ := term.View(true, Join{Size: size})
		<-p.sizes
		for c, _ := first.Next(); c.Size != size; c, _ = first.Next() {
			continue
		}
		p.print(t, c.before)
		follows(t, first, len(c.before))
		late, w := term.View(false, Join{})
		picture := late.Screen()
		p.print(t, c.after)
		rest := follows(t, late, len(c.before)+len(c.after)-int(picture.Offset))
		if w.Resumed || picture.Size != size {
			t.Errorf("%s: welcome %+v, %+v", name, w, picture.Size)
		}
		a, b := shows(size, picture.Screen, []byte(rest)), shows(size, []byte(c.before), []byte(c.after))
		same(t, name, a, b)
		a.close()
		b.close()
		late.Close()
		first.Close()
	}
}

// A viewer that reconnects loses and repeats nothing, in both directions (RB-70).
func TestViewersReconnectWithoutLoss(t *testing.T) {
	p, term := newProgram(t)
	const total = 400 << 10
	go func() {
		for sent := 0; sent < total; sent += 1000 {
			_, _ = p.screen.Write([]byte(fmt.Sprintf("%0999d\n", sent))[:min(1000, total-sent)])
		}
	}()
	typed := make(chan []byte, 1)
	go func() {
		got := make([]byte, 5000)
		_, _ = io.ReadFull(p.keys, got)
		typed <- got
	}()
	var want, all bytes.Buffer
	for sent := 0; sent < total; sent += 1000 {
		want.Write([]byte(fmt.Sprintf("%0999d\n", sent))[:min(1000, total-sent)])
	}
	input := []byte(strings.Repeat("0123456789", 500))
	id, from, in := "", int64(0), int64(0)
	for all.Len() < total || in < int64(len(input)) {
		v, w := term.View(true, Join{Client: "me", Terminal: id, From: from})
		if id != "" && (!w.Resumed || w.Offset != from) {
			t.Fatalf("not resumed at %d: %+v", from, w)
		}
		if id == "" {
			v.at = 0 // from the first byte
		}
		id, in = w.Terminal, w.Input
		for range 1 + rand.IntN(5) {
			if in < int64(len(input)) {
				n, err := v.Type(input[in:min(int64(len(input)), in+int64(1+rand.IntN(200)))])
				if err != nil {
					t.Fatal(err)
				}
				if rand.IntN(2) == 0 {
					in = n // else the answer is lost
				} else {
					break
				}
			}
			if all.Len() < total {
				c, err := v.Next()
				if err != nil {
					t.Fatal(err)
				}
				all.Write(c.Output)
				from += int64(len(c.Output))
			}
		}
	}
	if !bytes.Equal(all.Bytes(), want.Bytes()) {
		t.Error("output was lost or repeated")
	}
	if got := <-typed; !bytes.Equal(got, input) {
		t.Errorf("the program read other input: %d bytes", len(got))
	}
}

// RB-70.
func TestSizeAndInput(t *testing.T) {
	p, term := newProgram(t)
	big, _ := term.View(true, Join{Size: sandbox.WindowSize{Cols: 200, Rows: 50}})
	if s := <-p.sizes; s != (sandbox.WindowSize{Cols: 200, Rows: 50}) {
		t.Errorf("one viewer: %v", s)
	}
	watcher, _ := term.View(false, Join{Size: sandbox.WindowSize{Cols: 10, Rows: 5}})
	// One with control that watches for now has told no size.
	idle, _ := term.View(true, Join{})
	defer idle.Close()
	if n, err := watcher.Type([]byte("rm -rf /\n")); n != 0 || err != nil {
		t.Errorf("a viewer without control typed: %d, %v", n, err)
	}
	small, _ := term.View(true, Join{Size: sandbox.WindowSize{Cols: 100, Rows: 60}})
	if s := <-p.sizes; s != (sandbox.WindowSize{Cols: 100, Rows: 50}) {
		t.Errorf("two viewers with control: %v; want the smallest", s)
	}
	small.Close()
	if s := <-p.sizes; s != (sandbox.WindowSize{Cols: 200, Rows: 50}) {
		t.Errorf("after the small one left: %v", s)
	}
	if _, err := big.Type([]byte("ls\n")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(p.keys, got); err != nil || string(got) != "ls\n" {
		t.Errorf("the program read %q, %v", got, err)
	}
	close(p.ended)
	_ = p.screen.Close()
	for {
		c, err := watcher.Next()
		if err != nil {
			t.Fatal(err)
		}
		if c.Exit != nil {
			if c.Exit.Code != 3 {
				t.Errorf("exit %+v", c.Exit)
			}
			break
		}
	}
	if term.Lost() {
		t.Error("a terminal whose command ended counts as lost")
	}
}

// Twenty viewers read everything (RB-70).
func TestManyViewers(t *testing.T) {
	p, term := newProgram(t)
	const total = 600 << 10
	var all sync.WaitGroup
	for range 20 {
		v, _ := term.View(false, Join{})
		all.Go(func() {
			if n := len(follows(t, v, total)); n != total {
				t.Errorf("read %d bytes", n)
			}
		})
	}
	p.print(t, strings.Repeat("0123456789abcde\n", total/16))
	all.Wait()
}

// Only the terminal of a viewer answers queries, or the daemon if nobody has
// control.
func TestQueriesAreAnswered(t *testing.T) {
	p, term := newProgram(t)
	v, _ := term.View(false, Join{})
	p.print(t, "\x1b[6n")
	got := make([]byte, 6)
	if _, err := io.ReadFull(p.keys, got); err != nil || string(got) != "\x1b[1;1R" {
		t.Errorf("the answer is %q, %v", got, err)
	}
	v.Close()
}

func FuzzScreen(f *testing.F) {
	f.Add([]byte("a\x1b[2147483647b"), uint16(80))
	f.Add([]byte("\x1b[?1049h\x1b[5;1r\x1b[99999L\x1bP1$r"), uint16(1))
	f.Add([]byte("\x1b[?2048h\x1b[c\x1b[6n\x1b]10;?\x07"), uint16(0))
	f.Fuzz(func(t *testing.T, out []byte, cols uint16) {
		s := newScreen(sandbox.WindowSize{Cols: cols, Rows: 5}, func([]byte) {})
		defer s.close()
		s.write(out)
		s.resize(sandbox.WindowSize{Cols: cols / 2, Rows: 3})
		s.write(out)
		a := shows(s.size, s.snapshot())
		defer a.close()
	})
}
