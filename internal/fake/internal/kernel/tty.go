package kernel

import (
	"context"
	"io"
	"sync"
	"syscall"
)

// The control characters of a terminal.
const (
	intr  = 0x03
	eof   = 0x04
	bs    = 0x08
	quit  = 0x1c
	erase = 0x7f
)

// TTY is a terminal: a line discipline between the side of the user, whose
// methods are Input, Output and Resize, and the side of the programs.
type TTY struct {
	k      *Kernel
	output *Pipe

	mu         sync.Mutex
	cols, rows uint16
	leader     int      // the session's first process, 0 if none
	line       []byte   // typed and not yet finished
	lines      [][]byte // finished; an empty one is an end of input
	raw        bool
	quiet      bool // no echo
	hungUp     bool
	wake       chan struct{} // closed at the next change, nil if nobody waits
}

// NewTTY returns a terminal of a size.
func (k *Kernel) NewTTY(cols, rows uint16) *TTY {
	return &TTY{k: k, cols: cols, rows: rows, output: NewPipe()}
}

// lead makes p the leader of the terminal's session.
func (t *TTY) lead(p *Proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader = p.PID
}

// Slave opens the programs' side.
func (t *TTY) Slave() File { return t.open() }

func (t *TTY) open() File { return &slave{TTY: t, out: t.output.Writer()} }

// Output opens the user's side for reading.
func (t *TTY) Output() File { return t.output.Reader() }

// Size returns the terminal's size.
func (t *TTY) Size() (cols, rows uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cols, t.rows
}

// Resize sets the size and tells the session.
func (t *TTY) Resize(cols, rows uint16) {
	t.mu.Lock()
	same := t.cols == cols && t.rows == rows
	t.cols, t.rows = cols, rows
	leader := t.leader
	t.mu.Unlock()
	if !same {
		t.signal(leader, SIGWINCH)
	}
}

func (t *TTY) signal(leader, sig int) {
	if leader != 0 {
		t.k.Kill(-leader, sig)
	}
}

// SetMode switches line editing and echo.
func (t *TTY) SetMode(raw, quiet bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raw, t.quiet = raw, quiet
}

// Mode returns what SetMode set.
func (t *TTY) Mode() (raw, quiet bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.raw, t.quiet
}

// HangUp ends all reading.
func (t *TTY) HangUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hungUp = true
	t.changed()
}

func (t *TTY) changed() {
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
}

// Input is what the user types. It waits when the programs read too slowly.
func (t *TTY) Input(ctx context.Context, p []byte) (int, error) {
	const maxLines = 4096
	for i, c := range p {
		t.mu.Lock()
		for len(t.lines) >= maxLines && !t.hungUp {
			if !t.wait(ctx) {
				t.mu.Unlock()
				return i, ErrKilled
			}
		}
		if t.hungUp {
			t.mu.Unlock()
			return i, syscall.EIO
		}
		sig, echo := t.typed(c)
		leader := t.leader
		t.mu.Unlock()
		if echo != "" {
			w := t.output.Writer()
			_, _ = w.Write(ctx, []byte(echo)) // Nobody may be looking.
			w.Close()
		}
		if sig != 0 {
			t.signal(leader, sig)
		}
	}
	return len(p), nil
}

// typed handles one character and returns the signal it causes and its echo.
func (t *TTY) typed(c byte) (sig int, echo string) {
	defer t.changed()
	echo = string([]byte{c})
	switch {
	case t.raw:
		t.lines = append(t.lines, []byte{c})
	case c == intr || c == quit:
		t.line = nil
		sig, echo = SIGINT, "^C"
		if c == quit {
			sig, echo = SIGQUIT, "^\\"
		}
	case c == eof:
		t.lines = append(t.lines, t.line)
		t.line, echo = nil, ""
	case c == erase || c == bs:
		echo = ""
		if n := len(t.line); n > 0 {
			t.line, echo = t.line[:n-1], "\b \b"
		}
	case c == '\n' || c == '\r':
		t.lines = append(t.lines, append(t.line, '\n'))
		t.line, echo = nil, "\r\n"
	case len(t.line) < 4095:
		t.line = append(t.line, c)
	default:
		echo = "\a"
	}
	if t.quiet {
		echo = ""
	}
	return sig, echo
}

func (t *TTY) wait(ctx context.Context) bool {
	if t.wake == nil {
		t.wake = make(chan struct{})
	}
	wake := t.wake
	t.mu.Unlock()
	defer t.mu.Lock()
	select {
	case <-wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// slave is the programs' side.
type slave struct {
	*TTY
	out File
}

// Terminal returns the terminal behind f, if it is one.
func Terminal(f File) (*TTY, bool) {
	s, ok := f.(*slave)
	if !ok {
		return nil, false
	}
	return s.TTY, true
}

func (s *slave) Read(ctx context.Context, p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.lines) == 0 {
		if s.hungUp {
			return 0, io.EOF
		}
		if !s.wait(ctx) {
			return 0, ErrKilled
		}
	}
	defer s.changed()
	if len(s.lines[0]) == 0 {
		s.lines = s.lines[1:]
		return 0, io.EOF
	}
	n := copy(p, s.lines[0])
	if s.lines[0] = s.lines[0][n:]; len(s.lines[0]) == 0 {
		s.lines = s.lines[1:]
	}
	return n, nil
}

// Write writes with every newline made a carriage return and a newline.
func (s *slave) Write(ctx context.Context, p []byte) (int, error) {
	done := 0
	for done < len(p) {
		part := p[done:]
		end := 0
		for end < len(part) && part[end] != '\n' {
			end++
		}
		out := part[:end]
		if end < len(part) {
			out = append(append([]byte{}, out...), '\r', '\n')
			end++
		}
		if _, err := s.out.Write(ctx, out); err != nil {
			return done, err
		}
		done += end
	}
	return done, nil
}

func (s *slave) Close() { s.out.Close() }
