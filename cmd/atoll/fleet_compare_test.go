package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// wantReady waits until all control daemons have all nodes.
func (a *archipelago) wantReady(t *testing.T) {
	t.Helper()
	for _, c := range a.controls {
		err := soon(func() error {
			all, err := c.client.Admin().Nodes(t.Context())
			if err != nil {
				return err
			}
			for _, n := range all {
				if n.State != operator.NodeReady {
					return fmt.Errorf("%s is %s at %s: %s", n.Name, n.State, c.name, n.Reason)
				}
			}
			if len(all) != len(a.nodes) {
				return fmt.Errorf("%d nodes", len(all))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// soon waits for what several daemons do about each other, which takes longer than
// what [eventually] waits for.
func soon(what func() error) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err := what(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// living returns where each sandbox lives, without a daemon.
func (a *archipelago) living(t *testing.T) map[sandbox.ID][]string {
	t.Helper()
	all := map[sandbox.ID][]string{}
	for _, n := range a.nodes {
		for _, b := range n.existing(t) {
			all[sandbox.ID(b.Name)] = append(all[sandbox.ID(b.Name)], n.name)
		}
	}
	return all
}

// compare fails unless what was acknowledged, what is recorded and what lives
// agree, and everything can be used and removed.
func (a *archipelago) compare(t *testing.T) {
	t.Helper()
	for name, acked := range a.sessions {
		if err := a.onSession(t.Context(), name, func(ctx context.Context, x *atoll.Session) error { return a.holds(ctx, x, acked) }); err != nil {
			t.Errorf("in the end, %s: %v", name, err)
		}
	}
	for name, id := range a.alive {
		err := a.attempt(t.Context(), func(ctx context.Context, c *atoll.Client) error {
			var b strings.Builder
			r, err := atoll.Handle(c, id).Files().Read(ctx, "/n", atoll.ReadOptions{})
			if err != nil {
				return err
			}
			defer r.Close()
			if _, err := io.Copy(&b, r); err != nil {
				return err
			}
			if b.String() != name {
				return fmt.Errorf("it holds %q", b.String())
			}
			return nil
		})
		if err != nil {
			t.Errorf("in the end, %s: %v", name, err)
		}
	}
	if err := soon(func() error { return a.agree(t) }); err != nil {
		t.Error(err)
	}
	for name := range a.sessions {
		if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Sessions().Remove(ctx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, id := range a.alive {
		if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Remove(ctx, string(id)) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := soon(func() error {
		if left := a.living(t); len(left) > 0 {
			return fmt.Errorf("left on the nodes: %v", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if a.saw["writes"] == 0 || a.saw["sandboxes"] == 0 {
		t.Error("nothing was done, so nothing was shown")
	}
}

// agree compares records and nodes.
func (a *archipelago) agree(t *testing.T) error {
	t.Helper()
	c := a.controls[0].client
	wanted := map[sandbox.ID]string{} // what must live, and why
	all, err := c.Sessions().List(t.Context(), nil)
	if err != nil {
		return err
	}
	var bad []error
	listed := map[string]bool{}
	for _, x := range all {
		listed[x.Name] = true
		if x.Lease != nil && x.Lease.Sandbox != "" {
			wanted[x.Lease.Sandbox] = x.Name
		}
	}
	for name := range a.sessions {
		if !listed[name] {
			bad = append(bad, fmt.Errorf("the session %s was acknowledged and is not there", name))
		}
	}
	for _, name := range a.gone {
		if listed[name] {
			bad = append(bad, fmt.Errorf("the session %s was removed and is there", name))
		}
	}
	for name, id := range a.alive {
		wanted[id] = name
	}
	living := a.living(t)
	for id, name := range wanted {
		if len(living[id]) != 1 {
			bad = append(bad, fmt.Errorf("%s of %s lives on %v", id, name, living[id]))
		}
	}
	for id, on := range living {
		if wanted[id] == "" {
			bad = append(bad, fmt.Errorf("%s lives on %v, and nothing needs it", id, on))
		}
	}
	for info, err := range c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			return err
		}
		if wanted[info.ID] == "" {
			bad = append(bad, fmt.Errorf("%s is recorded as %s, and nothing needs it", info.ID, info.State))
		}
	}
	return errors.Join(bad...)
}
