package agent

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// prewarm starts a program like a command and waits for its end. The program
// has no file name and is not listed as a command.
func (a *agent) prewarm(program []byte) error {
	fd, err := unix.MemfdCreate("prewarm", unix.MFD_CLOEXEC)
	if err != nil {
		return about("", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, program); err != nil {
		return about("", err)
	}
	p := newProc(&sandbox.Command{Args: []string{fmt.Sprintf("/proc/self/fd/%d", fd)}})
	if err := a.spawn(p); err != nil {
		return fail(sandbox.CodeUnavailable, "", err.Error())
	}
	if p.pidfd >= 0 && !a.ends(p, time.Second) {
		a.outlive(p)
	}
	<-p.done
	p.io.close()
	if exit := p.snapshot().Exit; exit.Code != 0 {
		return fail(sandbox.CodeUnavailable, "", fmt.Sprintf("the prewarm program ended with %d", exit.Code))
	}
	return nil
}
