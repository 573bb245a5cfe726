package services_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// carryOut executes an operation of the model.
func carryOut(p *services.Services, ctx context.Context, ref string, op lifecycle.Op) (err error) {
	switch op {
	case lifecycle.Use:
		_, err = shell(p, ctx, ref, "true")
	case lifecycle.Pause, lifecycle.Sleep:
		_, err = p.Sandboxes.Pauser.Pause(ctx, ref, op == lifecycle.Sleep)
	case lifecycle.Resume:
		_, err = p.Sandboxes.Pauser.Resume(ctx, ref)
	case lifecycle.Stop:
		_, err = p.Sandboxes.Pauser.Stop(ctx, ref, 0)
	case lifecycle.Start:
		_, err = p.Sandboxes.Pauser.Start(ctx, ref)
	case lifecycle.Update:
		value := "v"
		_, err = p.Sandboxes.Updater.Update(ctx, ref, sandbox.Change{Labels: map[string]*string{"k": &value}})
	case lifecycle.Snapshot:
		var s durable.Snapshot
		if s, err = p.Snapshots.CreateSnapshot(ctx, ref, durable.SnapshotRequest{}); err == nil {
			err = p.Snapshots.RemoveSnapshot(ctx, s.Name)
		}
	case lifecycle.Fork:
		var copies []store.Sandbox
		if copies, err = p.Sandboxes.Creator.Fork(ctx, ref, durable.ForkRequest{Count: 1}); err == nil {
			err = p.Sandboxes.Remover.Destroy(ctx, string(copies[0].ID))
		}
	}
	return err
}

// For any operations in any order, a sandbox follows the pure model: the same
// refusals and the same states.
func TestModel(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				create(t, p, ctx, sandbox.Spec{Name: "one"})
				model := lifecycle.Sandbox{Name: "one", State: sandbox.Running}
				ops := lifecycle.Ops()
				for i := range 60 {
					op := ops[rnd.IntN(len(ops))]
					_, refused := lifecycle.Decide(model, op)
					err := carryOut(p, ctx, "one", op)
					if sandbox.CodeOf(err) != sandbox.CodeOf(refused) {
						t.Fatalf("%d: %s of %+v: %v, the model says %v", i, op, model, err, refused)
					}
					model = lifecycle.After(model, op, true)
					b := get(t, p, ctx, "one")
					if b.State != model.State || b.Rest.Pause != model.Pause || (b.Rest.Kept != "") != model.Kept || b.Rest.Step != "" {
						t.Fatalf("%d: after %s it is %s %+v, the model says %+v", i, op, b.State, b.Rest, model)
					}
				}
			})
		})
	}
}

// Concurrent operations of all kinds on one sandbox: none blocks forever, the
// final state is consistent, and no unneeded data is left.
func TestConcurrentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		p, ctx, stop := m.start(t)
		create(t, p, ctx, sandbox.Spec{Name: "one", Lifetime: idle(2*time.Second, sandbox.IdlePause)})
		ops := lifecycle.Ops()
		var wg sync.WaitGroup
		for worker := range uint64(8) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(worker, 2))
				for range 25 {
					op := ops[rnd.IntN(len(ops))]
					bounded, cancel := context.WithTimeout(ctx, time.Minute)
					err := carryOut(p, bounded, "one", op)
					cancel()
					switch code := sandbox.CodeOf(err); code {
					// A running command ends when its sandbox is paused to disk.
					case "", sandbox.CodeConflict, sandbox.CodeGone:
					default:
						t.Errorf("%s: %v", op, err)
					}
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if err := p.Sandboxes.Reconciler.Reconcile(ctx); err != nil {
			t.Error(err)
		}
		b := get(t, p, ctx, "one")
		if b.Rest.Step != "" || b.State != sandbox.Running && b.State != sandbox.Paused && b.State != sandbox.Stopped {
			t.Errorf("it ended as %s %+v", b.State, b.Rest)
		}
		for _, bring := range []func(context.Context, string) (store.Sandbox, error){p.Sandboxes.Pauser.Resume, p.Sandboxes.Pauser.Start} {
			_, _ = bring(ctx, "one") // one of them is right
		}
		if out, err := shell(p, ctx, "one", "echo alive"); err != nil || out != "alive\n" {
			t.Errorf("%q %v", out, err)
		}
		if err := p.Sandboxes.Remover.Destroy(ctx, "one"); err != nil {
			t.Error(err)
		}
		for _, dir := range []string{"snapshots", "environments"} {
			if left, err := os.ReadDir(filepath.Join(m.dir, dir)); err != nil || len(left) != 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		}
		stop()
		m.clear(t)
	})
}
