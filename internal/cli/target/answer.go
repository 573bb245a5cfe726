package target

import (
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// PingTimeout is how long a daemon may take to answer before a command says
	// that it waits.
	PingTimeout = 2 * time.Second
	// answerTimeout is how long commands wait for the daemon to answer.
	answerTimeout = time.Minute
	// StartPoll is the time between two looks at a daemon that is waited for.
	StartPoll = 10 * time.Millisecond
)

// patience is how long commands wait for the daemon of the state directory. Zero
// values stand for the constants above.
type patience struct{ ping, answer time.Duration }

// awaitAnswer waits until the daemon that listens on a socket answers, and
// reports false if none listens. A daemon that accepts connections runs, however
// slow it is: no command may start another one or do without it.
func awaitAnswer(ctx context.Context, a *Env, c *atoll.Client, socket string) (bool, error) {
	limit := cmp.Or(a.patience.answer, answerTimeout)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for wait, said := cmp.Or(a.patience.ping, PingTimeout), false; ; wait = limit {
		err := pingFor(within, c, wait)
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, err
		case !listens(ctx, socket):
			return false, nil
		case within.Err() != nil:
			return true, silent(socket, limit, err)
		case !said:
			said = true
			a.Say("note", "waiting for the daemon, which does not answer yet")
		}
		select { // it may also have closed the connection at once
		case <-within.Done():
		case <-time.After(StartPoll):
		}
	}
}

// pingFor reports whether the daemon answers within a time.
func pingFor(ctx context.Context, c *atoll.Client, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.Ping(ctx)
}

// listens reports whether a process listens on a socket. A daemon that was killed
// leaves a socket that refuses connections.
func listens(ctx context.Context, socket string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, syscall.EAGAIN) // its queue of connections is full
}

// silent is the error for a daemon that runs and does not answer.
func silent(socket string, after time.Duration, cause error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "daemon.reach", Subject: socket, Cause: cause,
		Message: "the daemon runs, but has not answered for " + after.String(),
		Hint:    "try again when the machine is less busy; if the daemon hangs, restart it with: atoll down, then atoll up --detach",
	}
}

// runs reports whether a daemon runs on the state directory, and waits until it
// answers.
func runs(ctx context.Context, a *Env) (bool, error) {
	c, err := a.socketClient("")
	if err != nil {
		return false, err
	}
	defer c.Close()
	return awaitAnswer(ctx, a, c, a.Socket())
}

// socketClient returns a client of the daemon of the state directory, which may
// not run.
func (e *Env) socketClient(key string) (*atoll.Client, error) {
	path, err := filepath.Abs(e.Socket())
	if err != nil {
		return nil, err
	}
	return atoll.New(atoll.Options{Host: "unix://" + path, Key: key})
}
