package source

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
)

// passed are the environment variables of the daemon that a program gets:
// enough to find its configuration, without the daemon's secrets.
var passed = []string{"PATH", "HOME", "USER", "LANG", "TZ", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE"}

// command returns the standard output of a program. It does not use a shell:
// the line is split at blanks.
func (r *Reader) command(ctx context.Context, line string) ([]byte, error) {
	words := strings.Fields(line)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = "/"
	for _, name := range passed {
		if v, ok := r.env(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	// Kill the whole process group at the end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	// Pdeathsig is bound to the thread that starts the process, so that thread
	// must not end before it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out := &bounded{max: secret.MaxValue + 3}
	cmd.Stdout = out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out.b, nil
	case ctx.Err() != nil:
		err = errors.New("the program did not end in time")
	case errors.As(err, &exit):
		err = fmt.Errorf("the program ended with code %d", exit.ExitCode())
	default:
		err = errors.New("the program cannot be run")
	}
	clear(out.b)
	return nil, err
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	b   []byte
	max int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.b = append(b.b, p[:min(len(p), b.max-len(b.b))]...)
	return len(p), nil
}
