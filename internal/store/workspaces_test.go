package store_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestWorkspaces(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		ctx := t.Context()
		s := open(store.Options{Now: newClock().now})
		tenants(t, s, "acme", "evil")
		add := func(w store.Workspace) error {
			return s.Update(ctx, func(tx *store.Tx) error { return tx.Workspaces().Add(ctx, w) })
		}
		ok(t, add(store.Workspace{Workspace: durable.Workspace{ID: "ws-1", Name: "notes", Encrypted: true, MaxBytes: 5}, Tenant: "acme"}))
		wantCode(t, add(store.Workspace{Workspace: durable.Workspace{ID: "ws-2", Name: "notes"}, Tenant: "acme"}), sandbox.CodeAlreadyExists)
		ok(t, add(store.Workspace{Workspace: durable.Workspace{ID: "ws-3", Name: "notes"}, Tenant: "evil"}))

		find := func(tenant, name string) (store.Workspace, error) {
			return store.Read(ctx, s, func(tx *store.Tx) (store.Workspace, error) { return tx.Workspaces().Get(ctx, tenant, name) })
		}
		w, err := find("acme", "notes")
		ok(t, err)
		if w.ID != "ws-1" || !w.Encrypted || w.MaxBytes != 5 || w.Created.IsZero() || w.Removing || w.Problem != "" {
			t.Errorf("%+v", w)
		}
		if other, err := find("evil", "notes"); err != nil || other.ID != "ws-3" {
			t.Errorf("the other tenant's: %+v, %v", other, err)
		}
		_, err = find("acme", "none")
		wantCode(t, err, sandbox.CodeNotFound)

		w.Problem, w.Removing = "the disk is full", true
		ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Workspaces().Set(ctx, w) }))
		all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Workspace, error) { return tx.Workspaces().List(ctx, "acme") })
		if err != nil || len(all) != 1 || all[0].Problem != w.Problem || !all[0].Removing {
			t.Errorf("%+v, %v", all, err)
		}
		ok(t, s.Update(ctx, func(tx *store.Tx) error { return tx.Workspaces().Remove(ctx, "ws-1") }))
		_, err = find("acme", "notes")
		wantCode(t, err, sandbox.CodeNotFound)
	})
}

func TestAttachments(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		ctx := t.Context()
		s := open(store.Options{Now: newClock().now})
		tenants(t, s, "acme")
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			return tx.Workspaces().Add(ctx, store.Workspace{Workspace: durable.Workspace{ID: "ws-1", Name: "notes"}, Tenant: "acme"})
		}))
		attach := func(sb string, mode sandbox.WorkspaceMode) error {
			return s.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
				w, err := tx.Workspaces().Lock(ctx, "acme", "notes")
				if err != nil {
					return err
				}
				return tx.Workspaces().Attach(ctx, w, store.Attachment{Attachment: durable.Attachment{Sandbox: sandbox.ID(sb), Mode: mode}, Node: "n1"}, "")
			})
		}
		detach := func(sb string) {
			ok(t, s.Update(ctx, func(tx *store.Tx) error {
				return tx.Workspaces().Detach(ctx, store.Attachment{Attachment: durable.Attachment{Sandbox: sandbox.ID(sb)}, Workspace: "ws-1"})
			}))
		}
		// Of many concurrent callers, one gets it.
		var won atomic.Int32
		var winner atomic.Value
		var asking sync.WaitGroup
		for i := range 8 {
			asking.Go(func() {
				name := fmt.Sprintf("sandbox%d", i)
				switch err := attach(name, sandbox.WorkspaceExclusive); sandbox.CodeOf(err) {
				case "":
					won.Add(1)
					winner.Store(name)
				case sandbox.CodeConflict:
				default:
					t.Errorf("a loser got %v", err)
				}
			})
		}
		asking.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d have it", won.Load())
		}
		wantCode(t, attach("reader", sandbox.WorkspaceRead), sandbox.CodeConflict)
		detach(winner.Load().(string))
		ok(t, attach("id-reader1", sandbox.WorkspaceRead))
		ok(t, attach("id-reader2", sandbox.WorkspaceRead))
		wantCode(t, attach("writer", sandbox.WorkspaceExclusive), sandbox.CodeConflict)

		// Attachments of gone and purged sandboxes are found.
		mustCreate(t, s, "acme", testSandbox("reader1"))
		ended := func() []store.Attachment {
			found, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Operator().Ended(ctx, "n1") })
			ok(t, err)
			return found
		}
		if found := ended(); len(found) != 1 || found[0].Sandbox != "id-reader2" || found[0].Mode != sandbox.WorkspaceRead {
			t.Errorf("%+v", found)
		}
		_, err := update(s, "acme", "id-reader1", store.Expect{}, setState(sandbox.Gone))
		ok(t, err)
		if found := ended(); len(found) != 2 {
			t.Errorf("%+v", found)
		}
		// A sandbox can use several and detaches them one by one.
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			second := store.Workspace{Workspace: durable.Workspace{ID: "ws-2", Name: "more"}, Tenant: "acme"}
			if err := tx.Workspaces().Add(ctx, second); err != nil {
				return err
			}
			return tx.Workspaces().Attach(ctx, second, store.Attachment{Attachment: durable.Attachment{Sandbox: "id-reader1", Mode: sandbox.WorkspaceExclusive}, Node: "n1"}, "")
		}))
		held := func() (names []string) {
			all, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Held, error) { return tx.Workspaces().Held(ctx, "id-reader1") })
			ok(t, err)
			for _, h := range all {
				if h.Attachment.Workspace != h.Workspace.ID || h.Attachment.Sandbox != "id-reader1" {
					t.Errorf("%+v", h)
				}
				names = append(names, h.Workspace.Name)
			}
			slices.Sort(names)
			return names
		}
		if got := held(); !slices.Equal(got, []string{"more", "notes"}) {
			t.Errorf("it has %v", got)
		}
		detach("id-reader1")
		if got := held(); !slices.Equal(got, []string{"more"}) {
			t.Errorf("it has %v left", got)
		}
	})
}

// TestSharedAttachments checks which sandboxes can share a workspace.
func TestSharedAttachments(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		ctx := t.Context()
		s := open(store.Options{})
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			if _, err := tx.Tenants().Ensure(ctx, "acme"); err != nil {
				return err
			}
			return tx.Workspaces().Add(ctx, store.Workspace{Workspace: durable.Workspace{ID: "ws-1", Name: "notes"}, Tenant: "acme"})
		}))
		attach := func(id sandbox.ID, node string, mode sandbox.WorkspaceMode) error {
			return s.Update(ctx, func(tx *store.Tx) error {
				w, err := tx.Workspaces().Lock(ctx, "acme", "notes")
				if err != nil {
					return err
				}
				return tx.Workspaces().Attach(ctx, w, store.Attachment{Attachment: durable.Attachment{Sandbox: id, Mode: mode}, Node: node}, "")
			})
		}
		ok(t, attach("id-1", "n1", sandbox.WorkspaceShared))
		ok(t, attach("id-2", "n1", sandbox.WorkspaceShared))
		for node, mode := range map[string]sandbox.WorkspaceMode{"n2": sandbox.WorkspaceShared, "n1": sandbox.WorkspaceRead} {
			if err := attach("id-3", node, mode); sandbox.CodeOf(err) != sandbox.CodeConflict {
				t.Errorf("%s on %s: %v", mode, node, err)
			}
		}
		if err := attach("id-3", "n1", sandbox.WorkspaceExclusive); sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Errorf("exclusive: %v", err)
		}
		w, err := store.Read(ctx, s, func(tx *store.Tx) (store.Workspace, error) { return tx.Operator().WorkspaceByID(ctx, "ws-1") })
		if err != nil || w.Name != "notes" {
			t.Errorf("by its id: %+v %v", w, err)
		}
	})
}
