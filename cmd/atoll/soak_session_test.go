package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// session makes a session, writes, saves, attaches as another holder, moves every
// second one to another provider, and removes it. What was acknowledged must be
// there after each step.
func (s *soak) session(ctx context.Context, _ *testing.T, i int) (err error) {
	name := "x-" + strconv.Itoa(i)
	defer func() {
		if ctx.Err() != nil { // the daemons died too fast for this machine
			s.givenUp = append(s.givenUp, name)
		}
	}()
	attach := func() (x *atoll.Session, err error) {
		err = persist(ctx, func() (err error) {
			x, err = s.client.Sessions().Create(ctx, small, atoll.SessionOptions{Name: name, AttachIfExists: true})
			return err
		})
		return x, err
	}
	holds := func(what, want string) error {
		x, err := attach()
		if err != nil {
			return fmt.Errorf("%s: %s: %w", name, what, err)
		}
		defer x.Close()
		return persist(ctx, func() error {
			res, err := x.Run(ctx, sandbox.Command{Args: []string{"cat", "/workspace/n"}}, atoll.RunOptions{})
			if got := strings.TrimSpace(string(res.Stdout)); err == nil && got != want {
				return fmt.Errorf("%s: %s: it has %q and not %q", name, what, got, want)
			}
			return err
		})
	}
	x, err := attach()
	if err != nil {
		return fmt.Errorf("%s is made: %w", name, err)
	}
	defer x.Close()
	err = persist(ctx, func() error {
		_, err := x.Files().Write(ctx, "/workspace/n", strings.NewReader(name), atoll.WriteOptions{})
		return err
	})
	if err == nil {
		err = holds("written", name)
	}
	if err == nil {
		err = persist(ctx, func() error { _, err := x.Save(ctx); return err })
	}
	if err == nil && i%2 == 1 {
		err = persist(ctx, func() error { _, err := x.Swap(ctx, "remote"); return err })
		if err == nil {
			err = holds("moved", name)
			s.moved++
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err = persist(ctx, func() error { return x.Destroy(ctx) })
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound { // an earlier attempt may have taken effect
		return fmt.Errorf("%s is removed: %w", name, err)
	}
	s.sessions++
	return nil
}

// compareSessions fails if a session that was given up cannot be ended now, if a
// session or a sandbox of one is left, here or at the other daemon, or if none did
// anything.
func (s *soak) compareSessions(t *testing.T, there *soaker) {
	t.Helper()
	for _, name := range s.givenUp {
		x, err := s.client.Sessions().Attach(t.Context(), name, atoll.SessionOptions{})
		if err == nil {
			err = x.Destroy(t.Context())
		}
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s cannot be ended after the faults: %v", name, err)
		}
	}
	if left, err := s.client.Sessions().List(t.Context(), nil); err != nil || len(left) > 0 {
		t.Errorf("sessions are left: %+v, %v", left, err)
	}
	err := eventually(func() error {
		for info, err := range there.client.List(t.Context(), atoll.ListOptions{}) {
			return fmt.Errorf("a sandbox is left at the other daemon: %+v, %w", info, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if s.sessions == 0 {
		t.Error("no session was used, so nothing was shown")
	}
}
