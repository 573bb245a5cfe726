package term

import (
	"os"

	"golang.org/x/term"

	"github.com/atoll-run/atoll/sandbox"
)

// RawMode hands every key to the command, until the returned function is
// called. Without a terminal both do nothing.
func RawMode(f *os.File) (restore func(), err error) {
	if f == nil {
		return func() {}, nil
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(f.Fd()), before) }, nil
}

// ReadHidden reads a line from a terminal that does not show it.
func ReadHidden(f *os.File) ([]byte, error) { return term.ReadPassword(int(f.Fd())) }

// WindowSize returns the size of a terminal, 80×24 for anything else.
func WindowSize(f *os.File) sandbox.WindowSize {
	if f != nil {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return sandbox.WindowSize{Cols: uint16(min(cols, 4096)), Rows: uint16(min(rows, 4096))}
		}
	}
	return sandbox.WindowSize{Cols: 80, Rows: 24}
}
