package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// fault causes one fault of a kind, or two at once, and ends it. How long it lasts,
// and how long the next one waits, is chosen at random, shorter in a short run.
func (a *archipelago) fault(t *testing.T, kind int) {
	t.Helper()
	node, control := a.nodes[rand.IntN(len(a.nodes))], a.controls[rand.IntN(len(a.controls))]
	longest := 7000
	if soakTime(t) < 3*time.Minute {
		longest = 1500
	}
	pause := func() { time.Sleep(time.Duration(500+rand.IntN(longest)) * time.Millisecond) }
	now := a.harms(t, node, control, pause)[kind]
	t.Logf("%s: %s, %s, %s", time.Now().Format("15:04:05"), now.name, node.name, control.name)
	now.do(t)
	a.faults[now.name]++
	pause()
}

// harms returns a fault of each kind, for a node and a control daemon. pause is how
// long it lasts.
func (a *archipelago) harms(t *testing.T, node, control *member, pause func()) []harm {
	t.Helper()
	return []harm{
		{"node is killed", func(t *testing.T) { node.kill(); pause(); node.start(t) }},
		{"control daemon is killed", func(t *testing.T) { control.kill(); control.start(t) }},
		{"control daemon is away", func(t *testing.T) { control.kill(); pause(); pause(); control.start(t) }},
		{"all control daemons are killed", func(t *testing.T) {
			for _, c := range a.controls {
				c.kill()
			}
			for _, c := range a.controls {
				c.start(t)
			}
		}},
		{"node is cut off", func(t *testing.T) {
			node.inside.cable(t, "down")
			pause()
			pause()
			node.inside.cable(t, "up")
		}},
		{"node is cut off from a control daemon", func(t *testing.T) { heal := control.loses(t, node); pause(); pause(); heal() }},
		{"database is cut off from a control daemon", func(*testing.T) {
			control.database.set(true)
			pause()
			pause()
			control.database.set(false)
		}},
		{"database ends all connections", func(t *testing.T) { storetest.Disconnect(t, a.database) }},
		{"database refuses", func(t *testing.T) { restore := storetest.Refuse(t, a.database); pause(); restore() }},
		{"full disk", func(t *testing.T) { empty := fill(t, node.disk, 0); pause(); empty() }},
		{"full disk and kill", func(t *testing.T) {
			empty := fill(t, node.disk, 0)
			pause()
			node.kill()
			up := node.tryStart(t)
			empty()
			if !up {
				node.start(t)
			}
		}},
		{"drain", func(t *testing.T) { a.drain(t, control, node) }},
		{"drain of a node that is cut off", func(t *testing.T) {
			var both sync.WaitGroup
			both.Go(func() { a.drain(t, control, node) })
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
			node.inside.cable(t, "down")
			pause()
			node.inside.cable(t, "up")
			both.Wait()
		}},
		{"drain by a control daemon that is killed", func(t *testing.T) {
			var both sync.WaitGroup
			both.Go(func() { a.drain(t, control, node) })
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
			control.kill()
			control.start(t)
			both.Wait()
		}},
		{"control daemon is away for longer than its claims", func(t *testing.T) { a.outlived(t, control) }},
	}
}

// outlived kills a control daemon, and starts it again when another one has taken
// over a sandbox that it made.
func (a *archipelago) outlived(t *testing.T, control *member) {
	t.Helper()
	name := fmt.Sprintf("outlived-%d", a.faults["control daemon is away for longer than its claims"])
	var made sandbox.ID
	if err := soon(func() error {
		late, done := context.WithTimeout(t.Context(), 20*time.Second)
		defer done()
		sb, err := control.client.Create(late, sandbox.Spec{Name: name, Resources: small.Resources}, atoll.CreateOptions{IdempotencyKey: name})
		if err == nil && sb.Info().State != sandbox.Running {
			err = fmt.Errorf("it is %s", sb.Info().State)
		}
		if err == nil {
			made = sb.ID()
		}
		return err
	}); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	control.kill()
	other := a.controls[0]
	if other == control {
		other = a.controls[1]
	}
	if err := soon(func() error {
		late, done := context.WithTimeout(t.Context(), 20*time.Second)
		defer done()
		_, err := atoll.Handle(other.client, made).Files().Write(late, "/n", strings.NewReader(name), atoll.WriteOptions{})
		return err
	}); err != nil {
		t.Errorf("%s does not take over %s of %s: %v", other.name, name, control.name, err)
	}
	control.start(t)
	if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Remove(ctx, string(made)) }); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// drain moves the sessions from a node, and lets it take sandboxes again.
func (a *archipelago) drain(t *testing.T, control, node *member) {
	late, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	d, err := control.client.Admin().DrainNode(late, node.name, false)
	if err != nil && !again(err) {
		t.Errorf("the drain of %s: %v", node.name, err)
	}
	a.did(fmt.Sprintf("drains (%v)", sandbox.CodeOf(err)), 1)
	a.did("moves by drains", len(d.Moved))
	if err := a.attempt(t.Context(), func(ctx context.Context, c *atoll.Client) error {
		_, err := c.Admin().UpdateNode(ctx, node.name, operator.NodeChange{Cordoned: new(bool)})
		return err
	}); err != nil {
		t.Errorf("uncordon %s: %v", node.name, err)
	}
}

// loses drops what a daemon sends to another one, until heal is called.
func (m *member) loses(t *testing.T, to *member) (heal func()) {
	t.Helper()
	ip(t, m.inside, "neigh replace "+to.address+" lladdr 02:00:00:00:00:01 dev "+m.inside.link+" nud permanent")
	return func() { ip(t, m.inside, "neigh del "+to.address+" dev "+m.inside.link) }
}
