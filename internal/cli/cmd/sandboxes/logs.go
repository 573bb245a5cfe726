package sandboxes

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// copyLogs writes a log to our two streams as they were written.
func (a processCommands) copyLogs(logs driver.LogReader) error {
	for {
		chunk, err := logs.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if chunk.Dropped > 0 {
			a.Say("warning", fmt.Sprintf("%d bytes are missing here: the log was full", chunk.Dropped))
		}
		to := a.Stdout
		if chunk.Stream == 2 {
			to = a.Stderr
		}
		if _, err := to.Write(chunk.Data); err != nil {
			return &outputError{err}
		}
	}
}

// signals are the names of Linux's signals, from 1. The program's own system may
// number them otherwise.
var signals = strings.Fields("HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU " +
	"URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS")

// parseSignal understands 15, TERM and SIGTERM.
func parseSignal(name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return n, nil
	}
	if i := slices.Index(signals, strings.TrimPrefix(strings.ToUpper(name), "SIG")); i >= 0 {
		return i + 1, nil
	}
	return 0, term.BadFlag("signal", "%q is not a signal such as TERM or 15", name)
}
