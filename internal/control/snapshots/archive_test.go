package snapshots

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// What two rounds of saving do with a snapshot. What can never be saved is tried once.
func TestSaveAll(t *testing.T) {
	damaged := &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the data is damaged"}
	for _, tt := range []struct {
		name    string
		keeps   bool // its provider does not give it away
		prepare func(t *testing.T, o *office)
		code    sandbox.Code // of the first round
		again   sandbox.Code // of the second one
		broken  bool         // it is not tried again
		problem string
		did     string
		saved   bool
		archive []string
	}{
		{name: "a snapshot", did: "export sn-1", saved: true, archive: []string{"1 sn-1"}},
		{name: "of a provider that keeps it", keeps: true, broken: true, problem: durable.ProblemKept},
		{name: "a damaged one", prepare: func(_ *testing.T, o *office) { o.courier.Fails["export sn-1"] = damaged }, code: sandbox.CodeInvalid, broken: true, problem: "invalid, the data is damaged"},
		{name: "one that breaks off", prepare: func(_ *testing.T, o *office) { o.courier.Fails["break sn-1"] = errAway }, code: sandbox.CodeUnavailable, again: sandbox.CodeUnavailable, problem: "unavailable, the service is away", did: "export sn-1, export sn-1"},
		{name: "one whose provider is away", prepare: func(_ *testing.T, o *office) { o.courier.Fails["export sn-1"] = errAway }, code: sandbox.CodeUnavailable, again: sandbox.CodeUnavailable, problem: "unavailable, the service is away"},
		{name: "one that is removed meanwhile", prepare: func(t *testing.T, o *office) {
			o.courier.exporting = func() { o.forgetRecord(t, "sn-1"); o.archive.forget("sn-1", coretest.Acme) }
		}, did: "export sn-1"},
		{name: "one that is not complete", prepare: func(t *testing.T, o *office) {
			o.forgetRecord(t, "sn-1")
			s := store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-1", Name: "sn-1", Provider: "fake"}, Node: coretest.Node}
			coretest.OK(t, o.Store.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.Snapshots().Create(t.Context(), coretest.Acme, s); return err }))
		}},
		{name: "a crash before it is stored", prepare: func(_ *testing.T, o *office) { crashing(o.Core, "save.begun") }, code: sandbox.CodeInternal, again: sandbox.CodeInternal, problem: "internal"},
		{name: "a crash before it is recorded", prepare: func(_ *testing.T, o *office) { crashing(o.Core, "save.stored") }, code: sandbox.CodeInternal, again: sandbox.CodeInternal, problem: "internal", did: "export sn-1, export sn-1", archive: []string{"1 sn-1", "2 sn-1"}},
		{name: "a crash when it is recorded", prepare: func(_ *testing.T, o *office) { crashing(o.Core, "save.recorded") }, code: sandbox.CodeInternal, problem: "internal", did: "export sn-1", saved: true, archive: []string{"1 sn-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, tt.keeps, nil)
			o.keep(t, "sn-1", "kept")
			if tt.prepare != nil {
				tt.prepare(t, o)
			}
			coretest.WantCode(t, o.saveAll(t.Context()), tt.code)
			coretest.WantCode(t, o.saveAll(t.Context()), tt.again)
			if broken := o.archive.isBroken("sn-1", false); broken != tt.broken {
				t.Errorf("it is given up: %v, want %v", broken, tt.broken)
			}
			if did := o.courier.done(); did != tt.did {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
			s, err := o.record(t.Context(), "sn-1")
			if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				t.Fatal(err)
			}
			if saved := s.Archived.Archive != ""; saved != tt.saved {
				t.Errorf("it is recorded as saved: %v, want %v", saved, tt.saved)
			}
			if !strings.Contains(s.Problem, tt.problem) || s.Problem != "" && tt.problem == "" {
				t.Errorf("its problem is %q, want %q", s.Problem, tt.problem)
			}
			if got := o.archived(t); !slices.Equal(got, tt.archive) && tt.name != "one that is removed meanwhile" {
				t.Errorf("the archive has %q, want %q", got, tt.archive)
			}
		})
	}
}

// A snapshot that is lost here comes from the archive, once. Nothing else is put in its
// place.
func TestUse(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, o *office)
		code    sandbox.Code
		lost    bool // the error says so
		text    string
		did     string
	}{
		{name: "it is here", text: "kept"},
		{name: "it is here, and the archive is not", prepare: func(t *testing.T, o *office) { o.spoil(t) }, text: "kept"},
		{name: "it is lost", prepare: func(_ *testing.T, o *office) { delete(o.courier.texts, "sn-1") }, text: "kept", did: "import"},
		{name: "it is damaged", prepare: func(_ *testing.T, o *office) { o.courier.texts["sn-1"] = "damaged" }, text: "kept", did: "remove sn-1, import"},
		{name: "it is lost, and the archive is damaged", prepare: func(t *testing.T, o *office) { delete(o.courier.texts, "sn-1"); o.spoil(t) }, code: sandbox.CodeInvalid},
		{name: "it is damaged, and cannot be removed", prepare: func(_ *testing.T, o *office) {
			o.courier.texts["sn-1"] = "damaged"
			o.courier.Fails["remove sn-1"] = errAway
		}, code: sandbox.CodeUnavailable},
		{name: "it is lost, and cannot be stored", prepare: func(_ *testing.T, o *office) { delete(o.courier.texts, "sn-1"); o.courier.Fails["import"] = errAway }, code: sandbox.CodeUnavailable},
		{name: "it is lost, and there is no archive", prepare: func(_ *testing.T, o *office) { delete(o.courier.texts, "sn-1"); o.cfg.Archive = nil }, code: sandbox.CodeNotFound, lost: true},
		{name: "it is lost, and was never saved", prepare: func(t *testing.T, o *office) {
			o.forgetRecord(t, "sn-1")
			o.keep(t, "sn-1", "")
			delete(o.courier.texts, "sn-1")
		}, code: sandbox.CodeNotFound, lost: true},
		{name: "it is lost, and the archive has another under its version", prepare: func(t *testing.T, o *office) {
			delete(o.courier.texts, "sn-1")
			coretest.OK(t, o.Store.Update(t.Context(), func(tx *store.Tx) error {
				a, other := o.get(t, "sn-1").Archived, o.get(t, "sn-2").Archived
				a.Version = other.Version
				return tx.Snapshots().Archive(t.Context(), coretest.Acme, "sn-1", a)
			}))
		}, code: sandbox.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, false, nil)
			o.keep(t, "sn-1", "kept")
			o.keep(t, "sn-2", "another")
			coretest.OK(t, o.saveAll(t.Context()))
			if tt.prepare != nil {
				tt.prepare(t, o)
			}
			o.courier.done()
			s := o.get(t, "sn-1")
			be, err := o.cfg.Providers.Backend(t.Context(), "")
			coretest.OK(t, err)
			for round := range 2 { // the second needs no archive
				text := ""
				err = o.use(t.Context(), be, &s, func(ref driver.SnapshotRef) error {
					var there bool
					if text, there = o.courier.texts[ref.Data]; !there || text == "damaged" {
						text = ""
						return errLost
					}
					return nil
				})
				coretest.WantCode(t, err, tt.code)
				if lost := errors.Is(err, driver.ErrSnapshotLost); lost != tt.lost {
					t.Errorf("the error says that it is lost: %v, want %v", lost, tt.lost)
				}
				if text != tt.text {
					t.Errorf("round %d uses %q, want %q", round, text, tt.text)
				}
			}
			if did := o.courier.done(); did != tt.did {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
		})
	}
}

// What no record names is removed from the archives; what is being saved stays.
func TestSweepArchives(t *testing.T) {
	for _, tt := range []struct {
		name    string
		all     bool
		prepare func(t *testing.T, o *office)
		fails   bool
		want    []string
	}{
		{"all are needed", true, nil, false, []string{"1 sn-1", "2 sn-2"}},
		{"one was removed", false, func(t *testing.T, o *office) { o.forgetRecord(t, "sn-1"); o.archive.forget("sn-1", coretest.Acme) }, false, []string{"2 sn-2"}},
		{"one was removed, of a tenant that is not looked at", false, func(t *testing.T, o *office) { o.forgetRecord(t, "sn-1"); o.archive.forget("sn-1", coretest.Rival) }, false, []string{"1 sn-1", "2 sn-2"}},
		{"one was removed before the daemon started", true, func(t *testing.T, o *office) { o.forgetRecord(t, "sn-1") }, false, []string{"2 sn-2"}},
		{"one was saved twice", true, func(t *testing.T, o *office) {
			s := o.get(t, "sn-1")
			set, err := o.archiveOf(t.Context(), coretest.Acme)
			coretest.OK(t, err)
			_, err = o.cfg.Archive.SaveFrom(t.Context(), set, s.ID, o.transfers(), func(w io.Writer) error { return o.courier.ExportSnapshot(t.Context(), coretest.Ref("sn-1", false), w) })
			coretest.OK(t, err)
		}, false, []string{"1 sn-1", "2 sn-2"}},
		{"one is being saved", true, func(t *testing.T, o *office) {
			o.forgetRecord(t, "sn-1")
			o.keep(t, "sn-1", "kept")
		}, false, []string{"1 sn-1", "2 sn-2"}},
		{"a crash before it begins", true, func(t *testing.T, o *office) { o.forgetRecord(t, "sn-1"); crashing(o.Core, "sweep.begun") }, true, []string{"1 sn-1", "2 sn-2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, false, nil)
			o.keep(t, "sn-1", "kept")
			o.keep(t, "sn-2", "another")
			coretest.OK(t, o.saveAll(t.Context()))
			if tt.prepare != nil {
				tt.prepare(t, o)
			}
			if err := o.sweepArchives(t.Context(), tt.all); (err != nil) != tt.fails {
				t.Errorf("the error is %v, want one: %v", err, tt.fails)
			}
			if got := o.archived(t); !slices.Equal(got, tt.want) {
				t.Errorf("the archive has %q, want %q", got, tt.want)
			}
			if !tt.fails {
				return
			}
			o.Fault = func(string) error { return nil }
			coretest.OK(t, o.sweepArchives(t.Context(), false)) // the tenant is looked at again
			if got := o.archived(t); !slices.Equal(got, []string{"2 sn-2"}) {
				t.Errorf("after another sweep the archive has %q, want sn-2 alone", got)
			}
		})
	}
}

// Copies on this machine stay within their limit. What is in no archive stays, and what is
// in use.
func TestTrimCopies(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit int64
		busy  string // it was fetched and is not used yet
		want  []string
	}{
		{"all fit", 20, "", []string{"sn-1", "sn-2", "sn-3"}},
		{"one is too much", 15, "", []string{"sn-1", "sn-3"}},
		{"none fits", 0, "", []string{"sn-3"}},
		{"none fits, and one is in use", 0, "sn-2", []string{"sn-2", "sn-3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, false, func(c *Config) { c.Cache = tt.limit })
			o.keep(t, "sn-1", "kept")
			o.keep(t, "sn-2", "another")
			coretest.OK(t, o.saveAll(t.Context()))
			o.keep(t, "sn-3", "new") // not saved yet
			o.courier.sizes = map[string]int64{"sn-1": 10, "sn-2": 10, "sn-3": 100}
			o.courier.used = map[string]time.Time{"sn-1": coretest.Now.Add(time.Hour), "sn-2": coretest.Now}
			if tt.busy != "" {
				defer o.Begin(tt.busy)()
			}
			coretest.OK(t, o.trimCopies(t.Context()))
			if got := slices.Sorted(maps.Keys(o.courier.texts)); !slices.Equal(got, tt.want) {
				t.Errorf("the copies %q are left, want %q", got, tt.want)
			}
			if got := o.archived(t); len(got) != 2 {
				t.Errorf("the archive has %q, want both that were saved", got)
			}
		})
	}
}
