//go:build unix

package cli

import (
	"os"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/term"
)

// A reader that exits early is not an error.
func TestNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	defer w.Close()
	fd, err := syscall.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.NewFile(uintptr(fd), os.Stdout.Name())
	defer stdout.Close()
	for _, args := range [][]string{{"version"}, {"version", "--json"}} {
		a, said := failing(nil)
		a.Env.Stdout = stdout
		if code := a.Main(t.Context(), args); code != 141 || said.Len() > 0 {
			t.Errorf("%v: code %d, said %q", args, code, said)
		}
	}
	a, said := failing(&os.PathError{Op: "write", Path: "/run/socket", Err: syscall.EPIPE})
	if code := a.Main(t.Context(), []string{"image", "ls"}); code != term.ExitFailure || said.Len() == 0 {
		t.Errorf("another pipe: code %d, said %q", code, said)
	}
}
