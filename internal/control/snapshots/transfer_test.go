package snapshots

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestPinned(t *testing.T) {
	const digest = "sha256:aa"
	for name, want := range map[string]string{
		"debian:12": "debian@sha256:aa", "debian": "debian@sha256:aa", "localhost:5000/app": "localhost:5000/app@sha256:aa",
		"localhost:5000/app:1": "localhost:5000/app@sha256:aa", "ghcr.io/a/b@sha256:aa": "ghcr.io/a/b@sha256:aa", "ghcr.io/a/b:1@sha256:aa": "ghcr.io/a/b@sha256:aa",
		"dir:/x": digest, "oci:/x:tag": digest, "template:t:1": digest, "sha256:aa": digest, "": digest,
	} {
		if got := pinned(name, digest); got != want {
			t.Errorf("the image %q is pinned as %q, want %q", name, got, want)
		}
	}
	if got := pinned("debian:12", "host"); got != "host" {
		t.Errorf("the image of the machine is pinned as %q, want %q", got, "host")
	}
}

// Who may export which snapshot, and that nothing is written of one that is damaged.
func TestExport(t *testing.T) {
	acme := func(t *testing.T) context.Context {
		return coretest.As(t, coretest.Acme, key.Read, key.Write, key.Exec)
	}
	owner := func(t *testing.T) context.Context { return coretest.Owner(t) }
	for _, tt := range []struct {
		name    string
		keeps   bool
		as      func(*testing.T) context.Context
		ref     string
		prepare func(t *testing.T, o *office)
		code    sandbox.Code
		part    bool // some of it was written before the error
	}{
		{name: "a snapshot", as: acme, ref: "sn-1"},
		{name: "by the owner of the machine, who has another tenant", as: owner, ref: "sn-1", code: sandbox.CodeNotFound},
		{name: "of another tenant", as: func(t *testing.T) context.Context { return coretest.As(t, coretest.Rival, key.Read, key.Exec) }, ref: "sn-1", code: sandbox.CodeNotFound},
		{name: "without a right", as: func(t *testing.T) context.Context { return coretest.As(t, coretest.Acme, key.Read, key.Write) }, ref: "sn-1", code: sandbox.CodeDenied},
		{name: "that there is not", as: acme, ref: "sn-9", code: sandbox.CodeNotFound},
		{name: "with a path", as: acme, ref: "../x", code: sandbox.CodeInvalid},
		{name: "that is not complete", as: acme, ref: "early", code: sandbox.CodeConflict, prepare: func(t *testing.T, o *office) {
			s := store.Snapshot{Snapshot: durable.Snapshot{ID: "early", Name: "early", Provider: "fake"}, Node: coretest.Node}
			coretest.OK(t, o.Store.Update(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Snapshots().Create(t.Context(), coretest.Acme, s)
				return err
			}))
		}},
		{name: "of a provider that keeps it", keeps: true, as: acme, ref: "sn-1", code: sandbox.CodeUnsupported},
		{name: "that is damaged", as: acme, ref: "sn-1", prepare: func(_ *testing.T, o *office) {
			o.courier.Fails["export sn-1"] = &sandbox.Error{Code: sandbox.CodeInvalid}
		}, code: sandbox.CodeInvalid},
		{name: "that is lost", as: acme, ref: "sn-1", prepare: func(_ *testing.T, o *office) { delete(o.courier.texts, "sn-1") }, code: sandbox.CodeNotFound},
		{name: "that is lost here, and is in the archive", as: acme, ref: "sn-1", prepare: func(t *testing.T, o *office) {
			coretest.OK(t, o.saveAll(t.Context()))
			delete(o.courier.texts, "sn-1")
		}},
		{name: "that breaks off, and does not begin again", as: acme, ref: "sn-1", part: true, code: sandbox.CodeInternal, prepare: func(t *testing.T, o *office) {
			coretest.OK(t, o.saveAll(t.Context()))
			o.courier.Fails["break sn-1"] = errLost
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, tt.keeps, nil)
			o.keep(t, "sn-1", "kept")
			if tt.prepare != nil {
				tt.prepare(t, o)
			}
			o.courier.done()
			var out bytes.Buffer
			err := o.ExportSnapshot(tt.as(t), tt.ref, &out)
			coretest.WantCode(t, err, tt.code)
			if known, ok := errors.AsType[*sandbox.Error](err); ok && known.Op == "" {
				t.Errorf("the error %v names no operation, want one that does", err)
			}
			if wrote := out.Len() > 0; wrote != (tt.code == "" || tt.part) {
				t.Errorf("%d bytes were written, want some: %v", out.Len(), tt.code == "" || tt.part)
			}
			if did := o.courier.done(); tt.part && did != "export sn-1" {
				t.Errorf("the provider was told %q, want one export", did)
			}
			if tt.code != "" {
				return
			}
			tr := tar.NewReader(&out)
			for _, want := range []string{aboutName, "data"} {
				if h, err := tr.Next(); err != nil || h.Name != want {
					t.Fatalf("the archive has %+v, %v; want %s", h, err, want)
				}
			}
		})
	}
}

// An archive becomes a snapshot of whoever may import it, or leaves nothing.
func TestImport(t *testing.T) {
	owner := func(t *testing.T) context.Context { return coretest.Owner(t) }
	good := archiveOf(t, about{Provider: "fake", Image: "debian:12", Ref: "debian:12", User: "app"}, "kept")
	for _, tt := range []struct {
		name    string
		keeps   bool
		as      func(*testing.T) context.Context
		to      string // its name
		archive []byte
		prepare func(t *testing.T, o *office)
		code    sandbox.Code
	}{
		{name: "by the owner of the machine", archive: good},
		{name: "with a key of the owner's tenant", as: func(t *testing.T) context.Context { return coretest.As(t, key.DefaultTenant, key.Write) }, archive: good},
		{name: "with a key that may not write", as: func(t *testing.T) context.Context { return coretest.As(t, key.DefaultTenant, key.Read) }, archive: good, code: sandbox.CodeDenied},
		{name: "by another tenant", as: func(t *testing.T) context.Context { return coretest.As(t, coretest.Acme, key.Read, key.Write) }, archive: good, code: sandbox.CodeDenied},
		{name: "under a name that is taken", to: "old", archive: good, code: sandbox.CodeAlreadyExists},
		{name: "under a path", to: "../x", archive: good, code: sandbox.CodeInvalid},
		{name: "nothing", archive: nil, code: sandbox.CodeInvalid},
		{name: "some text", archive: []byte(strings.Repeat("text ", 500)), code: sandbox.CodeInvalid},
		{name: "its beginning", archive: good[:700], code: sandbox.CodeInvalid},
		{name: "all but its end", archive: good[:len(good)-1024-510], code: sandbox.CodeInvalid},
		{name: "without its first file", archive: good[1024:], code: sandbox.CodeInvalid},
		{name: "with other fields", archive: rawArchive(t, `{"provider":"fake","owner":"me"}`), code: sandbox.CodeInvalid},
		{name: "with no JSON", archive: rawArchive(t, `provider: fake`), code: sandbox.CodeInvalid},
		{name: "with too much about it", archive: rawArchive(t, `{"provider":"fake","image":"`+strings.Repeat("x", maxAbout)+`"}`), code: sandbox.CodeInvalid},
		{name: "with a Spec that is not valid", archive: archiveOf(t, about{Provider: "fake", Isolation: "odd"}, "kept"), code: sandbox.CodeInvalid},
		{name: "of no provider", archive: archiveOf(t, about{}, "kept"), code: sandbox.CodeInvalid},
		{name: "of a provider that is not here", archive: archiveOf(t, about{Provider: "e2b"}, "kept"), code: sandbox.CodeInvalid},
		{name: "to a provider that imports none", keeps: true, archive: good, code: sandbox.CodeUnsupported},
		{name: "that the provider cannot store", archive: good, prepare: func(_ *testing.T, o *office) { o.courier.Fails["import"] = errAway }, code: sandbox.CodeUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, tt.keeps, nil)
			coretest.OK(t, o.Store.Update(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Snapshots().Create(t.Context(), key.DefaultTenant, store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-0", Name: "old", Provider: "fake"}, Node: coretest.Node})
				return err
			}))
			if tt.prepare != nil {
				tt.prepare(t, o)
			}
			if tt.as == nil {
				tt.as = owner
			}
			if tt.to == "" {
				tt.to = "new"
			}
			got, err := o.ImportSnapshot(tt.as(t), tt.to, map[string]string{"team": "x"}, bytes.NewReader(tt.archive))
			coretest.WantCode(t, err, tt.code)
			if tt.code != "" {
				if left := o.recorded(t); !slices.Equal(left, []string{"sn-0"}) || len(o.courier.texts) != 0 {
					t.Errorf("%v are recorded and %v stored, want the old one alone", left, o.courier.texts)
				}
				return
			}
			if text := o.courier.texts[got.ID]; text != "kept" {
				t.Errorf("the provider has %q, want %q", text, "kept")
			}
			s := o.get(t, got.ID)
			if !s.Ready || !got.Ready || s.Name != "new" || s.Tenant != key.DefaultTenant || s.Binding != "account-1" || s.Node != coretest.Node || s.Spec.User != "app" || s.Spec.Image != "debian:12" || !maps.Equal(s.Labels, map[string]string{"team": "x"}) {
				t.Errorf("the record is %+v, want the new one of the tenant, with what the archive says", s)
			}
		})
	}
}

// A snapshot that crashes leave half-written is no snapshot, and is swept.
func TestImportCrashes(t *testing.T) {
	good := archiveOf(t, about{Provider: "fake"}, "kept")
	for _, point := range []string{"snapshot.recorded", "snapshot.kept"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, false, nil)
			crashing(o.Core, point)
			if _, err := o.ImportSnapshot(coretest.Owner(t), "new", nil, bytes.NewReader(good)); err == nil {
				t.Fatal("it succeeded, want it to crash")
			}
			left := o.recorded(t)
			if len(left) != 1 || o.get(t, left[0]).Ready {
				t.Errorf("%v are recorded after the crash, want one that is not complete", left)
			}
			coretest.OK(t, o.Sweep(t.Context()))
			if left := o.recorded(t); len(left) != 0 || len(o.courier.texts) != 0 {
				t.Errorf("after a sweep %v are recorded and %v stored, want nothing", left, o.courier.texts)
			}
		})
	}
}

// A snapshot that one daemon exports is the same in another one.
func TestExportAndImport(t *testing.T) {
	here, there := newOffice(t, false, nil), newOffice(t, false, nil)
	s := here.keep(t, "sn-1", "kept")
	var out bytes.Buffer
	coretest.OK(t, here.ExportSnapshot(guard.WithOwner(t.Context(), coretest.Acme), "sn-1", &out))
	got, err := there.ImportSnapshot(coretest.Owner(t), "copy", nil, &out)
	coretest.OK(t, err)
	after := there.get(t, got.ID)
	if there.courier.texts[got.ID] != "kept" || after.Image != s.Image || after.Spec.User != s.Spec.User {
		t.Errorf("the copy is %+v with %q, want that of %+v with %q", after, there.courier.texts[got.ID], s, "kept")
	}
}

// archiveOf returns the archive of a snapshot of a courier.
func archiveOf(t *testing.T, a about, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	coretest.OK(t, a.write(&out))
	return append(out.Bytes(), dataOf(t, text)...)
}

// dataOf returns what a courier exports of a text.
func dataOf(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	c := &courier{Provider: &coretest.Provider{}, texts: map[string]string{"x": text}}
	coretest.OK(t, c.ExportSnapshot(t.Context(), driver.SnapshotRef{Data: "x"}, &out))
	return out.Bytes()
}

// rawArchive is archiveOf with any text about the snapshot.
func rawArchive(t *testing.T, about string) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	coretest.OK(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: aboutName, Size: int64(len(about)), Mode: 0o600, Format: tar.FormatUSTAR}))
	_, err := io.WriteString(tw, about)
	coretest.OK(t, err)
	coretest.OK(t, tw.Flush())
	return append(out.Bytes(), dataOf(t, "kept")...)
}
