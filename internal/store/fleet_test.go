package store_test

import (
	"errors"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestFleet(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s, ctx := open(store.Options{}), t.Context()
		withTenant(t, s)
		update := func(f func(o *store.Operator) error) {
			t.Helper()
			if err := s.Update(ctx, func(tx *store.Tx) error { return f(tx.Operator()) }); err != nil {
				t.Fatal(err)
			}
		}
		change := func(name string, f func(*store.FleetNode) error) (store.FleetNode, error) {
			return store.Write(ctx, s, func(tx *store.Tx) (store.FleetNode, error) { return tx.Operator().ChangeFleetNode(ctx, name, f) })
		}
		update(func(o *store.Operator) error { return o.AddFleetNode(ctx, "a", "http://a") })
		update(func(o *store.Operator) error { return o.BindFleetNode(ctx, "a", "default#1") })
		update(func(o *store.Operator) error { return o.BindFleetNode(ctx, "a", "default#2") })
		n, err := change("a", func(n *store.FleetNode) error {
			n.State, n.Lost, n.Removed = store.FleetRemoved, true, s.Now()
			return nil
		})
		if err != nil || n.Binding != "default#1" {
			t.Errorf("%+v, %v; want the first binding", n, err)
		}
		update(func(o *store.Operator) error { return o.AddFleetNode(ctx, "a", "http://other") })
		all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.FleetNode, error) { return tx.Operator().Fleet(ctx) })
		if err != nil || len(all) != 1 || all[0].URL != "http://other" || all[0].State != store.FleetRemoved || !all[0].Lost || all[0].Removed.IsZero() || !all[0].Cleared.IsZero() {
			t.Errorf("%+v, %v", all, err)
		}
		if _, err := change("b", func(*store.FleetNode) error { return nil }); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("one that is not there: %v", err)
		}
		refused := errors.New("refused")
		if _, err := change("a", func(*store.FleetNode) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("a refused change: %v", err)
		}
		sb := store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: "sb-1", Name: "one", State: sandbox.Running, Provider: "node-a", Node: "n", Image: "tools", Resources: sandbox.Resources{Memory: 7}}}}
		if err := s.Update(ctx, func(tx *store.Tx) error {
			_, _, err := tx.Sandboxes().Create(ctx, "acme", sb, store.Create{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		err = s.View(ctx, func(tx *store.Tx) error {
			o := tx.Operator()
			on, err := o.SandboxesOf(ctx, "node-a")
			none, err2 := o.SandboxesOf(ctx, "node-b")
			images, err3 := o.ImagesOf(ctx, "acme")
			count, reserved, err4 := o.Load(ctx, "n", "acme")
			others, _, err5 := o.Load(ctx, "n", "other")
			every, _, err6 := o.Load(ctx, "n", "")
			if len(on) != 1 || len(none) != 0 || len(images) != 1 || images[0] != "tools" || count != 1 || reserved != 7 || others != 0 || every != 1 {
				t.Errorf("on %v, none %v, images %v, %d with %d, others %d, all %d", on, none, images, count, reserved, others, every)
			}
			return errors.Join(err, err2, err3, err4, err5, err6)
		})
		if err != nil {
			t.Error(err)
		}
	})
}
