package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func profile(name string, hosts ...string) sandbox.Profile {
	return sandbox.Profile{Name: name, Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: hosts}}}
}

func TestProfiles(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		ctx := t.Context()
		do := func(f func(tx *store.Tx) error) error { return s.Update(ctx, f) }
		code := func(want sandbox.Code, err error) {
			t.Helper()
			if sandbox.CodeOf(err) != want {
				t.Errorf("%v, want %q", err, want)
			}
		}
		for _, tenant := range []string{"acme", "rival"} {
			ok(t, do(func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, tenant); return err }))
		}
		create := func(tenant string, p sandbox.Profile) error {
			return do(func(tx *store.Tx) error { _, err := tx.Profiles().Create(ctx, tenant, p); return err })
		}
		change := func(expect int64, p sandbox.Profile) (got store.Profile, err error) {
			err = do(func(tx *store.Tx) (err error) { got, err = tx.Profiles().Update(ctx, "acme", expect, p); return err })
			return got, err
		}
		ok(t, create("acme", profile("ci", "one.example")))
		code(sandbox.CodeAlreadyExists, create("acme", profile("ci", "two.example")))
		ok(t, create("rival", profile("ci", "rival.example")))
		p, err := change(1, profile("ci", "two.example"))
		if err != nil || p.Version != 2 || p.Profile.Rules[0].Hosts[0] != "two.example" {
			t.Errorf("%+v %v", p, err)
		}
		if p, err = change(0, profile("ci", "two.example")); err != nil || p.Version != 2 {
			t.Errorf("the same again is a new version: %+v %v", p, err)
		}
		_, err = change(1, profile("ci", "three.example"))
		code(sandbox.CodeConflict, err)
		_, err = change(0, profile("other", "three.example"))
		code(sandbox.CodeNotFound, err)
		first, err := store.Read(ctx, s, func(tx *store.Tx) (store.Profile, error) { return tx.Profiles().Version(ctx, "acme", "ci", 1) })
		if err != nil || first.Profile.Rules[0].Hosts[0] != "one.example" {
			t.Errorf("%+v %v", first, err)
		}
		_, err = store.Read(ctx, s, func(tx *store.Tx) (store.Profile, error) { return tx.Profiles().Version(ctx, "acme", "ci", 3) })
		code(sandbox.CodeNotFound, err)

		b := mustCreate(t, s, "acme", testSandbox("web"))
		ok(t, do(func(tx *store.Tx) error { return tx.Profiles().Use(ctx, "acme", b.ID, "ci") }))
		code(sandbox.CodeNotFound, do(func(tx *store.Tx) error { return tx.Profiles().Use(ctx, "acme", b.ID, "missing") }))
		remove := func() error { return do(func(tx *store.Tx) error { return tx.Profiles().Remove(ctx, "acme", "ci") }) }
		code(sandbox.CodeConflict, remove())
		if !strings.Contains(remove().Error(), "web") {
			t.Errorf("who uses it? %v", remove())
		}
		_, err = update(s, "acme", b.ID, store.Expect{}, setState(sandbox.Gone))
		ok(t, err)
		ok(t, remove())
		code(sandbox.CodeNotFound, remove())
		all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Profile, error) { return tx.Profiles().List(ctx, "rival") })
		if err != nil || len(all) != 1 || all[0].Profile.Rules[0].Hosts[0] != "rival.example" {
			t.Errorf("the other tenant has %+v %v", all, err)
		}
	})
}

// If a profile is removed while a sandbox is created with it, either the
// creation fails or the profile stays.
func TestProfileRace(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		ctx := context.Background()
		ok(t, s.Update(ctx, func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, "acme"); return err }))
		for i := range 10 {
			ok(t, s.Update(ctx, func(tx *store.Tx) error {
				_, err := tx.Profiles().Create(ctx, "acme", profile("ci", "a.example"))
				return err
			}))
			b := mustCreate(t, s, "acme", testSandbox(fmt.Sprint("web", i)))
			var used, removed error
			var both sync.WaitGroup
			both.Go(func() {
				used = s.Update(ctx, func(tx *store.Tx) error { return tx.Profiles().Use(ctx, "acme", b.ID, "ci") })
			})
			both.Go(func() {
				removed = s.Update(ctx, func(tx *store.Tx) error { return tx.Profiles().Remove(ctx, "acme", "ci") })
			})
			both.Wait()
			if (used == nil) == (removed == nil) {
				t.Errorf("used: %v, removed: %v", used, removed)
			}
			_, err := update(s, "acme", b.ID, store.Expect{}, setState(sandbox.Gone))
			ok(t, err)
			if removed != nil {
				ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Profiles().Remove(ctx, "acme", "ci") }))
			}
		}
	})
}

func TestSecrets(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		ctx := t.Context()
		do := func(f func(tx *store.Tx) error) sandbox.Code { return sandbox.CodeOf(s.Update(ctx, f)) }
		for _, tenant := range []string{"acme", "rival"} {
			do(func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, tenant); return err })
			if c := do(func(tx *store.Tx) error {
				_, err := tx.Secrets().Create(ctx, store.Secret{StoredSecret: durable.StoredSecret{Name: "token", Hosts: []string{tenant + ".example"}}, Tenant: tenant, KeyID: "k", Sealed: []byte{0, 1, 255}})
				return err
			}); c != "" {
				t.Fatal(c)
			}
		}
		create := func(tx *store.Tx) error {
			_, err := tx.Secrets().Create(ctx, store.Secret{StoredSecret: durable.StoredSecret{Name: "token"}, Tenant: "acme"})
			return err
		}
		rotate := func(expect int64) func(tx *store.Tx) error {
			return func(tx *store.Tx) error {
				return tx.Secrets().Rotate(ctx, "acme", "token", expect, "k2", []byte("new"))
			}
		}
		b := mustCreate(t, s, "acme", testSandbox("web"))
		use := func(name, variable string) func(tx *store.Tx) error {
			return func(tx *store.Tx) error {
				return tx.Secrets().Use(ctx, "acme", b.ID, store.SecretUse{Variable: variable, Secret: name, Placeholder: "p-" + variable})
			}
		}
		remove := func(force bool) func(tx *store.Tx) error {
			return func(tx *store.Tx) error { return tx.Secrets().Remove(ctx, "acme", "token", force) }
		}
		for i, step := range []struct {
			f    func(tx *store.Tx) error
			want sandbox.Code
		}{
			{create, sandbox.CodeAlreadyExists},
			{rotate(2), sandbox.CodeConflict},
			{rotate(1), ""},
			{rotate(1), sandbox.CodeConflict},
			{use("token", "A"), ""},
			{use("token", "B"), ""},
			{use("missing", "C"), sandbox.CodeNotFound},
			{remove(false), sandbox.CodeConflict},
		} {
			if got := do(step.f); got != step.want {
				t.Errorf("step %d: %q, want %q", i, got, step.want)
			}
		}
		list := func(tenant string) []store.Secret {
			all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Secret, error) { return tx.Secrets().List(ctx, tenant) })
			ok(t, err)
			return all
		}
		if all := list("acme"); len(all) != 1 || all[0].Version != 2 || all[0].KeyID != "k2" || string(all[0].Sealed) != "new" || all[0].Uses != 1 {
			t.Errorf("%+v", all)
		}
		uses, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.SecretUse, error) { return tx.Secrets().Uses(ctx, "acme", b.ID) })
		if err != nil || len(uses) != 2 || uses[1] != (store.SecretUse{Variable: "B", Secret: "token", Placeholder: "p-B"}) {
			t.Errorf("%+v %v", uses, err)
		}
		if c := do(remove(true)); c != "" || len(list("acme")) != 0 {
			t.Errorf("%q, %v", c, list("acme"))
		}
		if c := do(remove(true)); c != sandbox.CodeNotFound {
			t.Error(c)
		}
		if all := list("rival"); len(all) != 1 || all[0].Version != 1 || string(all[0].Sealed) != "\x00\x01\xff" {
			t.Errorf("the other tenant has %+v", all)
		}
	})
}
