package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// again reports whether a client may try again what failed.
func again(err error) bool {
	return transient(err) || sandbox.CodeOf(err) == sandbox.CodeStale || errors.Is(err, context.DeadlineExceeded)
}

// patience is how long clients repeat an operation.
const patience = 4 * time.Minute

// attempt does something with one of the control daemons, again with others if that
// may help.
func (a *archipelago) attempt(ctx context.Context, do func(context.Context, *atoll.Client) error) error {
	late, done := context.WithTimeout(ctx, patience)
	defer done()
	a.mu.Lock()
	c := a.controls[rand.IntN(len(a.controls))]
	a.mu.Unlock()
	for {
		one, over := context.WithTimeout(late, 20*time.Second)
		err := do(one, c.client)
		over()
		if err == nil || !again(err) || late.Err() != nil {
			return err
		}
		time.Sleep(time.Duration(20+rand.IntN(200)) * time.Millisecond)
		if rand.IntN(3) == 0 {
			a.mu.Lock()
			c = a.controls[rand.IntN(len(a.controls))]
			a.mu.Unlock()
		}
	}
}

// remove is attempt for a removal. An earlier attempt may have taken effect.
func (a *archipelago) remove(ctx context.Context, do func(context.Context, *atoll.Client) error) error {
	if err := a.attempt(ctx, do); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return fmt.Errorf("removing: %w", err)
	}
	return nil
}

// did counts what was acknowledged.
func (a *archipelago) did(what string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.saw[what] += n
}

// onSession does something with a session, which it makes if there is none.
func (a *archipelago) onSession(ctx context.Context, name string, do func(context.Context, *atoll.Session) error) error {
	return a.attempt(ctx, func(ctx context.Context, c *atoll.Client) error {
		x, err := c.Sessions().Create(ctx, small, atoll.SessionOptions{Name: name, AttachIfExists: true})
		if err != nil {
			return err
		}
		defer x.Close()
		return do(ctx, x)
	})
}

// useSessions uses one session after the other.
func (a *archipelago) useSessions(ctx context.Context, t *testing.T, worker int) {
	for i := 0; ctx.Err() == nil && !t.Failed(); i++ {
		name := fmt.Sprintf("x-%d-%d", worker, i)
		if err := a.useSession(ctx, t, name); err != nil {
			t.Errorf("%s: %s: %v", time.Now().Format("15:04:05"), name, err)
		}
	}
}

// useSession counts in a file of a session and, unless it ends before, removes it.
func (a *archipelago) useSession(ctx context.Context, t *testing.T, name string) error {
	wait := context.WithoutCancel(ctx)
	acked := 0
	for acked < 5+rand.IntN(20) {
		if ctx.Err() != nil {
			return nil
		}
		next := strconv.Itoa(acked + 1)
		err := a.onSession(wait, name, func(ctx context.Context, x *atoll.Session) error {
			if err := a.holds(ctx, x, acked); err != nil {
				return err
			}
			if acked%2 == 0 {
				_, err := x.Files().Write(ctx, "/workspace/n", strings.NewReader(next), atoll.WriteOptions{})
				return err
			}
			res, err := x.Run(ctx, sandbox.Command{Shell: "echo " + next + " >/workspace/new && sync && mv /workspace/new /workspace/n"})
			if err == nil && res.Exit.Code != 0 {
				return &sandbox.Error{Code: sandbox.CodeExhausted, Message: string(res.Stderr)} // its disk is full
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("writing %s: %w", next, err)
		}
		acked++
		a.mu.Lock()
		a.sessions[name] = acked
		a.saw["writes"]++
		a.mu.Unlock()
		switch rand.IntN(8) {
		case 0:
			err := a.onSession(wait, name, func(ctx context.Context, x *atoll.Session) error { _, err := x.Save(ctx); return err })
			if err != nil {
				return fmt.Errorf("saving: %w", err)
			}
			a.did("saves", 1)
		case 1:
			a.rests(ctx, name)
		default:
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		}
	}
	a.mu.Lock()
	delete(a.sessions, name)
	a.mu.Unlock()
	if err := a.remove(wait, func(ctx context.Context, c *atoll.Client) error { return c.Sessions().Remove(ctx, name) }); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = append(a.gone, name)
	a.saw["removed sessions"]++
	return nil
}

// rests waits until a session that nobody uses has been saved and its sandbox ended,
// or for so long that this does not happen now, because of a fault.
func (a *archipelago) rests(ctx context.Context, name string) {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		a.mu.Lock()
		c := a.controls[rand.IntN(len(a.controls))]
		a.mu.Unlock()
		one, done := context.WithTimeout(ctx, 5*time.Second)
		x, err := c.client.Sessions().Get(one, name)
		done()
		if err == nil && x.Info().Lease != nil && x.Info().Lease.State == "cold" {
			a.did("rests", 1)
			return
		}
	}
}

// holds fails unless a session has the last number that was acknowledged, or the
// next, which may have been written without a response.
func (a *archipelago) holds(ctx context.Context, x *atoll.Session, acked int) error {
	res, err := x.Run(ctx, sandbox.Command{Shell: "cat /workspace/n 2>/dev/null || echo 0"})
	if err != nil {
		return err
	}
	got, err := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
	if err != nil || got < acked || got > acked+1 {
		return fmt.Errorf("it holds %q (%s), and %d was acknowledged; the receipt is %+v", res.Stdout, res.Stderr, acked, x.Receipt())
	}
	return nil
}

// useSandboxes makes sandboxes without sessions, and removes most of them.
func (a *archipelago) useSandboxes(ctx context.Context, t *testing.T) {
	wait := context.WithoutCancel(ctx)
	for i := 0; ctx.Err() == nil && !t.Failed(); i++ {
		name := fmt.Sprintf("box-%d", i)
		fail := func(what string, err error) {
			t.Errorf("%s: %s: %s: %v", time.Now().Format("15:04:05"), name, what, err)
		}
		var made sandbox.Sandbox
		err := a.attempt(wait, func(ctx context.Context, c *atoll.Client) error {
			sb, err := c.Create(ctx, sandbox.Spec{Name: name, Resources: small.Resources}, atoll.CreateOptions{IdempotencyKey: name})
			if err == nil {
				made = sb.Info()
			}
			if err == nil && made.State == sandbox.Creating {
				return &sandbox.Error{Code: sandbox.CodeUnavailable}
			}
			return err
		})
		if err != nil {
			fail("create", err)
			continue
		}
		if made.State != sandbox.Running {
			a.did("sandboxes that were undone", 1)
			continue
		}
		a.mu.Lock()
		a.alive[name] = made.ID
		a.saw["sandboxes"]++
		a.mu.Unlock()
		err = a.attempt(wait, func(ctx context.Context, c *atoll.Client) error {
			_, err := atoll.Handle(c, made.ID).Files().Write(ctx, "/n", strings.NewReader(name), atoll.WriteOptions{})
			return err
		})
		if err != nil {
			fail("write", err)
		}
		if i%4 == 0 && i < 40 {
			continue
		}
		a.mu.Lock()
		delete(a.alive, name)
		a.mu.Unlock()
		if err = a.remove(wait, func(ctx context.Context, c *atoll.Client) error { return c.Remove(ctx, string(made.ID)) }); err != nil {
			fail("remove", err)
		}
		a.mu.Lock()
		a.dead[name] = made.ID
		a.mu.Unlock()
	}
}
