// Package terminal shares a terminal of a sandbox among viewers. It keeps the
// current screen for late viewers, and recent output for those that reconnect.
package terminal

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/ansi/parser"
	"github.com/charmbracelet/x/vt"

	"github.com/atoll-run/atoll/sandbox"
)

// The largest screen that is kept, because each cell uses memory of the daemon.
const (
	maxCols = 500
	maxRows = 200

	maxPen   = 32 // attributes that are remembered
	maxTitle = 256
)

// DefaultSize is the size of a terminal whose viewers tell none.
var DefaultSize = sandbox.WindowSize{Cols: 80, Rows: 24}

// screen is what a terminal shows. It is not safe for concurrent use.
type screen struct {
	emu    *vt.Emulator
	input  io.Writer // of the emulator's answers
	state  *ansi.Parser
	size   sandbox.WindowSize
	reply  func([]byte)
	modes  map[int]bool // DEC modes that differ from the default
	pen    []string     // since the last reset
	region string       // that scrolls
	title  string
	behind int // number of last bytes that belong to an unfinished sequence
}

// keptModes are the DEC modes that late viewers get, and their
// defaults.
var keptModes = map[int]bool{
	1: false, 6: false, 7: true, 9: false, 25: true, 66: false, 1000: false, 1001: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false, 1015: false, 2004: false,
}

// newScreen returns an empty screen. reply gets what a terminal answers to
// queries; it must not block.
func newScreen(size sandbox.WindowSize, reply func([]byte)) *screen {
	s := &screen{size: clamp(size), reply: reply}
	s.restart()
	return s
}

func clamp(size sandbox.WindowSize) sandbox.WindowSize {
	if size.Cols == 0 || size.Rows == 0 {
		return DefaultSize
	}
	return sandbox.WindowSize{Cols: max(2, min(size.Cols, maxCols)), Rows: max(2, min(size.Rows, maxRows))}
}

func (s *screen) restart() {
	s.close()
	s.emu = vt.NewEmulator(int(s.size.Cols), int(s.size.Rows))
	s.emu.SetScrollbackSize(1)
	s.state = ansi.NewParser()
	s.modes, s.pen, s.region, s.title, s.behind = map[int]bool{}, nil, "", "", 0
	s.emu.SetCallbacks(vt.Callbacks{
		Title:       func(t string) { s.title = t },
		EnableMode:  func(m ansi.Mode) { s.mode(m, true) },
		DisableMode: func(m ansi.Mode) { s.mode(m, false) },
	})
	s.emu.RegisterCsiHandler('b', s.repeat)
	s.emu.RegisterCsiHandler('m', s.style)
	s.emu.RegisterCsiHandler('r', s.margins)
	emu, reply := s.emu, s.reply
	s.input = emu.InputPipe()
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := emu.Read(buf)
			if err != nil {
				return
			}
			reply(slices.Clone(buf[:n]))
		}
	}()
}

// close ends the screen's goroutine.
func (s *screen) close() {
	if c, ok := s.input.(io.Closer); ok {
		_ = c.Close()
	}
}

func (s *screen) mode(m ansi.Mode, on bool) {
	dec, ok := m.(ansi.DECMode)
	if !ok {
		return
	}
	if usual, kept := keptModes[int(dec)]; kept && usual != on {
		s.modes[int(dec)] = on
	} else {
		delete(s.modes, int(dec))
	}
}

// repeat bounds how often one sequence repeats a character.
func (s *screen) repeat(params ansi.Params) bool {
	n, _, _ := params.Param(0, 1)
	return n > int(s.size.Cols)*int(s.size.Rows)
}

// style remembers the attributes of characters since they were last reset.
func (s *screen) style(params ansi.Params) bool {
	if first, _, _ := params.Param(0, 0); first == 0 {
		s.pen = nil
	}
	if text := csi(params); text != "" && len(s.pen) < maxPen {
		s.pen = append(s.pen, "\x1b["+text+"m")
	}
	return false
}

func (s *screen) margins(params ansi.Params) bool {
	s.region = "\x1b[" + csi(params) + "r"
	return false
}

func csi(params ansi.Params) string {
	var b strings.Builder
	params.ForEach(-1, func(i, p int, more bool) {
		if p >= 0 {
			b.WriteString(strconv.Itoa(p))
		}
		if more {
			b.WriteByte(':')
		} else if i < len(params)-1 {
			b.WriteByte(';')
		}
	})
	return b.String()
}

// write shows output. The output is hostile: an error of the emulator costs the
// picture, which the next full repaint brings back.
func (s *screen) write(p []byte) {
	defer func() {
		if recover() != nil {
			s.restart()
		}
	}()
	for _, b := range p {
		s.state.Advance(b)
		if s.behind++; s.state.State() == parser.GroundState {
			s.behind = 0
		}
	}
	_, _ = s.emu.Write(p)
}

func (s *screen) resize(size sandbox.WindowSize) {
	defer func() {
		if recover() != nil {
			s.restart()
		}
	}()
	if size = clamp(size); size == s.size {
		return
	}
	s.size, s.region = size, ""
	s.emu.Resize(int(size.Cols), int(size.Rows))
}

// snapshot returns what makes an empty terminal of the same size look like
// this one.
func (s *screen) snapshot() (picture []byte) {
	defer func() {
		if recover() != nil {
			s.restart()
			picture = []byte("\x1b[!p\x1b[2J\x1b[H")
		}
	}()
	var b strings.Builder
	b.WriteString("\x1b[?1049l\x1b[!p\x1b[?1;9;1000;1001;1002;1003;1004;1005;1006;1015;2004l\x1b[r\x1b[0m\x1b[2J\x1b[H")
	if s.emu.IsAltScreen() {
		b.WriteString("\x1b[?1049h\x1b[2J\x1b[H")
	}
	b.WriteString("\x1b[?7l") // full lines do not wrap
	for i, line := range strings.Split(s.emu.Render(), "\n") {
		fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[0m", i+1, strings.TrimRight(line, " \r"))
	}
	b.WriteString("\x1b[?7h")
	if s.title != "" {
		fmt.Fprintf(&b, "\x1b]2;%s\x07", printable(s.title))
	}
	b.WriteString(s.region)
	at := s.emu.CursorPosition()
	fmt.Fprintf(&b, "\x1b[%d;%dH", at.Y+1, at.X+1)
	for _, m := range slices.Sorted(maps.Keys(s.modes)) {
		if m == 6 {
			continue // moves the cursor
		}
		end := byte('l')
		if s.modes[m] {
			end = 'h'
		}
		fmt.Fprintf(&b, "\x1b[?%d%c", m, end)
	}
	b.WriteString(strings.Join(s.pen, ""))
	return []byte(b.String())
}

// printable removes control characters.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), maxTitle)], "")
}
