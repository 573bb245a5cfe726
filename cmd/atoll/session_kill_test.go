package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// sessionKills is the number of kills in TestSessionsUnderKills.
func sessionKills() int {
	if n, err := strconv.Atoi(os.Getenv("ATOLL_SESSION_KILLS")); err == nil {
		return n
	}
	return 5
}

// A daemon that is killed while it makes, saves, moves or ends the sandbox of a
// session does not block the session: the next daemon answers well before the
// lease of its dead attempt expires, and nothing that was acknowledged is lost.
func TestSessionsUnderKills(t *testing.T) {
	another(t, built.atoll)
	s := newSoaker(t)
	kinds := []struct {
		what   string
		within int // milliseconds after which it is usually over
		do     func(ctx context.Context, c *atoll.Client, name string) error
	}{
		{"create", 250, func(ctx context.Context, c *atoll.Client, name string) error {
			x, err := c.Sessions().Create(ctx, small, atoll.SessionOptions{Name: name})
			if err == nil {
				err = x.Close()
			}
			return err
		}},
		{"swap", 1500, with(func(ctx context.Context, x *atoll.Session) error {
			_, err := x.Swap(ctx, "remote")
			return err
		})},
		{"save", 200, with(func(ctx context.Context, x *atoll.Session) error {
			_, err := x.Save(ctx)
			return err
		})},
		{"drain", 100, with(func(ctx context.Context, x *atoll.Session) error { return x.Release(ctx) })},
		{"rm", 100, with(func(ctx context.Context, x *atoll.Session) error { return x.Destroy(ctx) })},
	}
	var slowest time.Duration
	for i := range sessionKills() {
		k := kinds[i%len(kinds)]
		slowest = max(slowest, s.killDuring(t, k.what, fmt.Sprintf("%s-%d", k.what, i), k.within, k.do))
	}
	t.Logf("%d kills, and the slowest answer after %v", sessionKills(), slowest.Round(time.Millisecond))
	if left, err := s.client.Sessions().List(t.Context(), nil); err != nil || len(left) > 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}

// another starts a daemon of the program for the provider remote of the daemons
// that the test starts after it.
func another(t *testing.T, program string) *soaker {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	there := soakerOf(t, program, filepath.Join(t.TempDir(), "there"), "--listen", address, "--plain")
	key, err := there.client.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ATOLL_REMOTE_HOST", "http://"+address)
	t.Setenv("ATOLL_REMOTE_KEY", key.Token)
	return there
}

var small = sandbox.Spec{Resources: sandbox.Resources{Memory: 256 << 20}}

// with returns work on an existing session.
func with(do func(ctx context.Context, x *atoll.Session) error) func(context.Context, *atoll.Client, string) error {
	return func(ctx context.Context, c *atoll.Client, name string) error {
		x, err := c.Sessions().Attach(ctx, name, atoll.SessionOptions{})
		if err != nil {
			return err
		}
		return do(ctx, x)
	}
}

// hang is how long a session may not answer after a kill. It is usually a second.
// An attempt that is not ended blocks its session for two minutes.
const hang = time.Minute

// answers calls do and ends the test if it does not return in time. It returns how
// long do took. The daemon prints what it is doing then.
func (s *soaker) answers(t *testing.T, what string, do func(ctx context.Context) error) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		if ctx.Err() == nil {
			return time.Since(began), err
		}
		t.Logf("%s: the last error was %v", what, err)
	case <-time.After(hang + 10*time.Second): // it ignores its context
	}
	_ = s.daemon.Process.Signal(syscall.SIGQUIT)
	_ = s.daemon.Wait()
	t.Fatalf("%s: no answer within %v; what the daemon did is above", what, hang)
	return 0, nil
}

// killDuring kills the daemon while it does something with a session, and returns
// how long the next daemon took to answer.
func (s *soaker) killDuring(t *testing.T, what, name string, within int, do func(context.Context, *atoll.Client, string) error) (took time.Duration) {
	t.Helper()
	ctx := t.Context()
	want := ""
	if what != "create" {
		x, err := s.client.Sessions().Create(ctx, small, atoll.SessionOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		want = name
		write := sandbox.Command{Shell: "head -c 20000000 /dev/urandom >/workspace/much && echo " + name + " >/workspace/kept"}
		if res, err := x.Run(ctx, write, atoll.RunOptions{}); err != nil || res.Exit.Code != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- do(ctx, s.client, name) }()
	time.Sleep(time.Duration(rand.IntN(within)) * time.Millisecond)
	s.kill()
	var said error
	select {
	case said = <-ended:
	case <-time.After(hang):
		t.Fatalf("%s: the client still waits for a daemon that was killed", name)
	}
	s.start(t)
	if what == "rm" { // it may have taken effect
		took, err := s.answers(t, name, func(ctx context.Context) error {
			return persist(ctx, func() error {
				return with(func(ctx context.Context, x *atoll.Session) error { return x.Destroy(ctx) })(ctx, s.client, name)
			})
		})
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s, which had said %v: %v", name, said, err)
		}
		t.Logf("%s: %v, answered after %v", name, said, took.Round(time.Millisecond))
		return took
	}
	var x *atoll.Session
	var got string
	took, err := s.answers(t, name, func(ctx context.Context) error {
		err := persist(ctx, func() (err error) {
			x, err = s.client.Sessions().Create(ctx, small, atoll.SessionOptions{Name: name, AttachIfExists: true})
			return err
		})
		if err != nil {
			return err
		}
		res, err := x.Run(ctx, sandbox.Command{Shell: "cat /workspace/kept || test -z '" + want + "'"}, atoll.RunOptions{})
		got = strings.TrimSpace(string(res.Stdout))
		return err
	})
	if err != nil {
		t.Fatalf("%s, which had said %v: %v", name, said, err)
	}
	if got != want {
		t.Errorf("%s has %q, want %q", name, got, want)
	}
	t.Logf("%s: %v, %s after %v", name, said, x.Receipt().Outcome, took.Round(time.Millisecond))
	if _, err := s.answers(t, name+" is removed", x.Destroy); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return took
}
