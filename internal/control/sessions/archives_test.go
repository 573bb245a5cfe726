package sessions

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// bare makes the provider one a provider without snapshots, so that files are archived.
func bare(r *rig) { delete(r.facts, "one") }

// tars returns the versions of Acme's archives in the blob store.
func (r *rig) tars(t *testing.T) (versions []int) {
	t.Helper()
	_, sealed, err := r.Reaper.archives.sets(t.Context(), coretest.Acme)
	coretest.OK(t, err)
	all, err := r.archive.List(t.Context(), sealed)
	coretest.OK(t, err)
	for _, k := range all {
		versions = append(versions, k.Version)
	}
	return versions
}

// save saves a session and returns its archive.
func (r *rig) save(t *testing.T, name string) durable.Archive {
	t.Helper()
	saved, err := r.Holders.Save(as(t), name, 0, false)
	coretest.OK(t, err)
	if saved.Archive == nil {
		t.Fatalf("saving gave %+v, want an archive", saved)
	}
	return *saved.Archive
}

// What a session is saved as, and what is lost when it is rebuilt from that.
func TestSave(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spec    sandbox.Spec
		prepare func(*rig)
		code    sandbox.Code
		kind    string
		works   string // its workspace
		kept    int    // archives in the ledger
	}{
		{name: "a snapshot", kind: "snapshot", kept: 1},
		{name: "a snapshot that fails", prepare: func(r *rig) { r.fail("save sb-1", errFull) }, code: sandbox.CodeExhausted},
		{name: "a snapshot that a running sandbox does not allow", prepare: func(r *rig) { r.stopped["one"] = true }, kind: "tar", kept: 1},
		{name: "a snapshot that pauses it", prepare: func(r *rig) { r.pauses["one"] = true }, kind: "snapshot", kept: 1},
		{name: "files", prepare: bare, kind: "tar", kept: 1},
		{name: "files of a node", prepare: func(r *rig) { r.nodes["one"] = true }, kind: "tar", kept: 1},
		{name: "files that cannot be read", prepare: func(r *rig) { bare(r); r.fail("files sb-1", errBroken) }, code: sandbox.CodeUnavailable},
		{name: "workspaces", spec: sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "data", Path: "/data"}}}, works: "data"},
		{name: "a directory of the machine", spec: sandbox.Spec{Mounts: []sandbox.Mount{{Source: "/src", Target: sandbox.WorkspaceDir}}}, prepare: bare},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if tt.prepare != nil {
				tt.prepare(r)
			}
			r.session(t, durable.NewSession{Name: "agent", Spec: tt.spec})
			r.acquire(t, "agent", "first")
			saved, err := r.Holders.Save(as(t), "agent", 0, false)
			coretest.WantCode(t, err, tt.code)
			if got := saved.Archive; (got != nil) != (tt.kind != "") || got != nil && got.Kind != tt.kind {
				t.Errorf("it was saved as %+v, want a %q", got, tt.kind)
			}
			if got := saved.Workspaces; (len(got) == 1) != (tt.works != "") || len(got) == 1 && got[0].Name != tt.works {
				t.Errorf("the workspaces %+v were saved, want %q", got, tt.works)
			}
			if all := r.ledger(t); len(all) != tt.kept {
				t.Errorf("the ledger has %v, want %d archives", all, tt.kept)
			}
			if len(r.living(t)) != 1 {
				t.Errorf("after it there are the sandboxes %v, want the one that was saved", r.living(t))
			}
		})
	}
}

// The last two archives are kept. They go with the session.
func TestReplacedArchives(t *testing.T) {
	for name, prepare := range map[string]func(*rig){"snapshots": nil, "files": bare} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if prepare != nil {
				prepare(r)
			}
			r.session(t, durable.NewSession{Name: "agent"})
			r.acquire(t, "agent", "first")
			var refs []string
			for i := range 4 {
				refs = append(refs, r.save(t, "agent").Ref)
				r.later(time.Hour)
				coretest.OK(t, r.Holders.Heartbeat(as(t), "agent", durable.HolderRef{ID: "first", Epoch: 1}))
				coretest.OK(t, r.Reaper.Sweep(t.Context()))
				if n := len(r.snapshots) + len(r.tars(t)); n != min(i+1, 2) {
					t.Errorf("after save %d there are %d archives, want %d", i+1, n, min(i+1, 2))
				}
			}
			if all := strings.Join(r.ledger(t), " "); strings.Contains(all, refs[1]) || !strings.Contains(all, refs[2]) || !strings.Contains(all, refs[3]) {
				t.Errorf("the ledger has %s, want the last two of %v", all, refs)
			}
			coretest.OK(t, r.Sessions.Remove(as(t), "agent"))
			if n := len(r.snapshots) + len(r.tars(t)); n != 0 || len(r.ledger(t)) != 0 || len(r.living(t)) != 0 {
				t.Errorf("removing the session left %d archives, the ledger %v and the sandboxes %v, want nothing", n, r.ledger(t), r.living(t))
			}
		})
	}
}

// An archive that cannot be removed now is removed by a later sweep.
func TestArchivesThatStay(t *testing.T) {
	r := newRig(t)
	r.session(t, durable.NewSession{Name: "agent"})
	r.acquire(t, "agent", "first")
	r.save(t, "agent")
	r.fail("remove snapshot", errAway)
	coretest.OK(t, r.Sessions.Remove(as(t), "agent"))
	if len(r.snapshots) != 1 || len(r.ledger(t)) != 1 {
		t.Errorf("there are the snapshots %v and the ledger %v, want one of each while it cannot be removed", r.snapshots, r.ledger(t))
	}
	r.fail("remove snapshot", nil)
	r.later(2 * time.Hour)
	coretest.OK(t, r.Reaper.Sweep(t.Context()))
	if len(r.snapshots) != 0 || len(r.ledger(t)) != 0 {
		t.Errorf("there are the snapshots %v and the ledger %v, want none after the sweep", r.snapshots, r.ledger(t))
	}
}

// Envelopes come from outside: an archive that they name must be one of the tenant.
func TestUntrustedArchives(t *testing.T) {
	owner := func(t *testing.T) context.Context { return guard.WithOwner(t.Context(), coretest.Acme) }
	tenant := func(t *testing.T) context.Context { return as(t) }
	other := func(t *testing.T) context.Context {
		return coretest.As(t, coretest.Rival, key.Read, key.Write, key.Exec)
	}
	r := newRig(t)
	bare(r)
	r.session(t, durable.NewSession{Name: "agent"})
	r.acquire(t, "agent", "first")
	r.write(t, "sb-1", "kept")
	good := r.save(t, "agent")
	set, _, _ := strings.Cut(good.Ref, ".")
	for _, tt := range []struct {
		name   string
		as     func(*testing.T) context.Context
		tenant string
		change func(*durable.Archive)
		code   sandbox.Code // of finding it
		unpack sandbox.Code // of reading it
	}{
		{"as it is", tenant, coretest.Acme, func(*durable.Archive) {}, "", ""},
		{"by the owner of the machine", owner, coretest.Acme, func(*durable.Archive) {}, "", ""},
		{"by another tenant", other, coretest.Rival, func(*durable.Archive) {}, sandbox.CodeNotFound, sandbox.CodeNotFound},
		{"another hash", tenant, coretest.Acme, func(a *durable.Archive) { a.Hash = "sha256:" + strings.Repeat("0", 64) }, "", sandbox.CodeInvalid},
		{"no hash", tenant, coretest.Acme, func(a *durable.Archive) { a.Hash = "" }, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{"of another set", tenant, coretest.Acme, func(a *durable.Archive) { a.Ref = "se-000000000000000000000000.1" }, sandbox.CodeNotFound, sandbox.CodeNotFound},
		{"without encryption", tenant, coretest.Acme, func(a *durable.Archive) { a.Ref = set + "-plain.1" }, "", sandbox.CodeInvalid},
		{"another version", tenant, coretest.Acme, func(a *durable.Archive) { a.Ref += "000" }, "", sandbox.CodeInvalid},
		{"no version", tenant, coretest.Acme, func(a *durable.Archive) { a.Ref = set }, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{"version zero", tenant, coretest.Acme, func(a *durable.Archive) { a.Ref = set + ".0" }, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{"a path", tenant, coretest.Acme, func(a *durable.Archive) { a.Ref = "../.." }, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{"of another installation", tenant, coretest.Acme, func(a *durable.Archive) { a.Binding = "atoll:elsewhere" }, sandbox.CodeUnavailable, ""},
		{"of no installation", tenant, coretest.Acme, func(a *durable.Archive) { a.Binding = "" }, sandbox.CodeUnavailable, ""},
		{"of another kind", tenant, coretest.Acme, func(a *durable.Archive) { a.Kind = "disk" }, sandbox.CodeUnsupported, ""},
		{"a snapshot with a path", tenant, coretest.Acme, func(a *durable.Archive) { a.Kind, a.Ref = "snapshot", "../x" }, sandbox.CodeInvalid, sandbox.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := good
			tt.change(&a)
			coretest.WantCode(t, r.Reaper.archives.readable(tt.as(t), tt.tenant, a), tt.code)
			if a.Kind != "tar" || a.Binding != good.Binding {
				return
			}
			r.write(t, "sb-1", "changed")
			coretest.WantCode(t, r.Reaper.archives.unpack(tt.as(t), tt.tenant, "sb-1", a), tt.unpack)
			want := "kept"
			if tt.unpack != "" {
				want = "changed"
			}
			if text := r.read(t, "sb-1"); text != want {
				t.Errorf("after it the file has %q, want %q", text, want)
			}
		})
	}
}

// A sweep removes the archives of files that no session needs, an hour after they were
// made. One that is recorded meanwhile stays.
func TestSweepTars(t *testing.T) {
	forget := func(t *testing.T, r *rig, ref string) {
		coretest.OK(t, r.core.Store.Update(t.Context(), func(tx *store.Tx) error { return tx.Sessions().ArchiveDeleted(t.Context(), coretest.Acme, ref, false) }))
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, r *rig, first durable.Archive)
		after   time.Duration
		want    []int
	}{
		{"two that are recorded", func(*testing.T, *rig, durable.Archive) {}, 2 * time.Hour, []int{1, 2}},
		{"one that is not", func(t *testing.T, r *rig, first durable.Archive) { forget(t, r, first.Ref) }, 2 * time.Hour, []int{2}},
		{"a new one that is not", func(t *testing.T, r *rig, first durable.Archive) { forget(t, r, first.Ref) }, time.Minute, []int{1, 2}},
		{"one that is recorded while it runs", func(t *testing.T, r *rig, first durable.Archive) {
			forget(t, r, first.Ref)
			r.core.Fault = func(point string) error {
				if point != "tars.listed" {
					return nil
				}
				return r.core.Store.Update(t.Context(), func(tx *store.Tx) error {
					return tx.Sessions().RegisterArchive(t.Context(), coretest.Acme, "agents", first)
				})
			}
		}, 2 * time.Hour, []int{1, 2}},
		{"one that the record of a session names", func(t *testing.T, r *rig, first durable.Archive) {
			forget(t, r, first.Ref)
			coretest.OK(t, r.core.Store.Update(t.Context(), func(tx *store.Tx) error {
				row, err := tx.Sessions().Get(t.Context(), coretest.Acme, "agent")
				if err != nil {
					return err
				}
				row.Prior = &durable.Envelope{Archive: &first}
				return tx.Sessions().Update(t.Context(), row)
			}))
		}, 2 * time.Hour, []int{1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			bare(r)
			r.session(t, durable.NewSession{Name: "agent", Group: "agents"})
			r.acquire(t, "agent", "first")
			first := r.save(t, "agent")
			r.save(t, "agent")
			tt.prepare(t, r, first)
			r.passed.Store(int64(time.Since(coretest.Now) + tt.after)) // blobs have the time of the machine
			coretest.OK(t, r.Reaper.archives.sweepTars(t.Context()))
			coretest.OK(t, r.Reaper.archives.sweepArchives(t.Context()))
			if got := r.tars(t); !slices.Equal(got, tt.want) {
				t.Errorf("the versions %v are left, want %v", got, tt.want)
			}
		})
	}
}

// What happens between the end of the sandbox of a session and the end of its records.
func TestRemoveMeanwhile(t *testing.T) {
	for _, tt := range []struct {
		name      string
		meanwhile func(t *testing.T, r *rig) error
		ledger    int
		left      string // sessions
	}{
		{"nothing", func(*testing.T, *rig) error { return nil }, 0, ""},
		{"another session joins the group", func(t *testing.T, r *rig) error {
			_, err := r.Sessions.Create(as(t), durable.NewSession{Name: "second", Group: "agents"})
			return err
		}, 1, "second"},
		{"an archive is published", func(t *testing.T, r *rig) error {
			late := durable.Archive{Kind: "snapshot", Ref: "archive-late", Binding: "atoll:here"}
			return r.core.Store.Update(t.Context(), func(tx *store.Tx) error {
				if err := tx.Sessions().RegisterArchive(t.Context(), coretest.Acme, "agents", late); err != nil {
					return err
				}
				return tx.Sessions().PublishArchive(t.Context(), coretest.Acme, "agents", late.Ref)
			})
		}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.session(t, durable.NewSession{Name: "first", Group: "agents"})
			r.acquire(t, "first", "holder")
			r.save(t, "first")
			once := false
			r.core.Fault = func(point string) error {
				if point != "session.cleared" || once {
					return nil
				}
				once = true
				return tt.meanwhile(t, r)
			}
			coretest.OK(t, r.Sessions.Remove(as(t), "first"))
			if all := r.ledger(t); len(all) != tt.ledger {
				t.Errorf("the ledger has %v, want %d archives", all, tt.ledger)
			}
			all, err := r.Sessions.List(as(t), nil)
			coretest.OK(t, err)
			var names []string
			for _, s := range all {
				names = append(names, s.Name)
			}
			if left := strings.Join(names, " "); left != tt.left || len(r.living(t)) != 0 {
				t.Errorf("the sessions %q and the sandboxes %v are left, want %q and none", left, r.living(t), tt.left)
			}
			if tt.left == "" {
				return
			}
			r.done()
			r.acquire(t, tt.left, "holder")
			if did := r.done(); did != "make one from a snapshot" {
				t.Errorf("the session that joined did %q, want it made from what was saved", did)
			}
		})
	}
}
