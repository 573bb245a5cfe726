package snapshots

import (
	"bytes"
	"context"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// partial is a blob store whose lists fail, if hidden is set, or end early without an
// error, if short is set.
type partial struct {
	blob.Store
	hidden, short bool
}

func (p *partial) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	switch {
	case p.hidden:
		return func(yield func(blob.Info, error) bool) {
			yield(blob.Info{}, &sandbox.Error{Code: sandbox.CodeDenied, Message: "the S3 service refuses"})
		}
	case p.short:
		return func(func(blob.Info, error) bool) {}
	}
	return p.Store.List(ctx, prefix)
}

// erase removes the blobs below the archives whose path contains a text.
func (o *office) erase(t *testing.T, part string) {
	t.Helper()
	removed := 0
	coretest.OK(t, filepath.WalkDir(o.blobs, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, part) {
			return err
		}
		removed++
		return os.Remove(path)
	}))
	if removed == 0 {
		t.Fatalf("no blob has %q in its path, want some to remove", part)
	}
}

// Only a machine that still has a lost snapshot or image saves it again. If no machine
// has it, its record stays, whatever the blob store shows.
func TestFindLost(t *testing.T) {
	const first, second = "1", "2" // the versions that were saved
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, g *gallery, p *partial)
		code    sandbox.Code
		image   string // the recorded version of the first image; empty: not that which was saved
		other   string // of the second one
		shot    string // of the snapshot
	}{
		{name: "nothing is lost", prepare: func(*testing.T, *gallery, *partial) {}, image: first, other: second, shot: first},
		{name: "a part of an image", prepare: func(t *testing.T, g *gallery, _ *partial) { g.erase(t, "-images/packs/0000000001/") }, other: second, shot: first},
		{name: "parts of all", prepare: func(t *testing.T, g *gallery, _ *partial) { g.erase(t, "/packs/") }},
		{name: "the lists of all", prepare: func(t *testing.T, g *gallery, _ *partial) { g.erase(t, "/versions/") }},
		{name: "everything", prepare: func(t *testing.T, g *gallery, _ *partial) { g.erase(t, "snapshots/") }},
		{name: "everything, and the daemon starts again", prepare: func(t *testing.T, g *gallery, p *partial) {
			g.erase(t, "snapshots/")
			g.cfg.Archive = archive.New(p, bytes.Repeat([]byte{7}, 32))
		}},
		{name: "parts of all, and the daemon starts again", prepare: func(t *testing.T, g *gallery, p *partial) {
			g.erase(t, "/packs/")
			g.cfg.Archive = archive.New(p, bytes.Repeat([]byte{7}, 32))
		}},
		{name: "everything, and one image is nowhere else", prepare: func(t *testing.T, g *gallery, _ *partial) {
			g.erase(t, "snapshots/")
			delete(g.shelf.texts, one)
		}, code: sandbox.CodeNotFound, image: first},
		{name: "everything, and the snapshot is nowhere else", prepare: func(t *testing.T, g *gallery, _ *partial) {
			g.erase(t, "snapshots/")
			delete(g.courier.texts, "sn-1")
		}, code: sandbox.CodeNotFound, shot: first},
		{name: "everything, and nothing is anywhere else", prepare: func(t *testing.T, g *gallery, _ *partial) {
			g.erase(t, "snapshots/")
			clear(g.courier.texts)
			clear(g.shelf.texts)
		}, code: sandbox.CodeNotFound, image: first, other: second, shot: first},
		{name: "the provider cannot be asked for the snapshot", prepare: func(t *testing.T, g *gallery, _ *partial) {
			g.erase(t, "snapshots/")
			g.courier.away = true
		}, code: sandbox.CodeUnavailable, shot: first},
		{name: "the list is refused", prepare: func(_ *testing.T, _ *gallery, p *partial) { p.hidden = true }, code: sandbox.CodeDenied, image: first, other: second, shot: first},
		{name: "the list is empty by mistake, and nothing is here", prepare: func(_ *testing.T, g *gallery, p *partial) {
			p.short = true
			clear(g.courier.texts)
			clear(g.shelf.texts)
		}, code: sandbox.CodeNotFound, image: first, other: second, shot: first},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := &partial{}
			g := newGallery(t)
			blobs, err := blob.Open(t.Context(), "dir:"+g.blobs)
			coretest.OK(t, err)
			p.Store = blobs
			g.cfg.Archive = archive.New(p, bytes.Repeat([]byte{7}, 32))
			g.keep(t, "sn-1", "kept")
			coretest.OK(t, g.saveAll(t.Context()))
			g.set(t, coretest.Acme, "tools", one)
			g.set(t, coretest.Acme, "web", two)
			coretest.OK(t, g.saveImages(t.Context()))
			tt.prepare(t, g, p)
			sets, err := store.Read(t.Context(), g.Store, func(tx *store.Tx) ([]store.Archive, error) { return tx.Operator().Archives(t.Context()) })
			coretest.OK(t, err)
			err = g.findLost(t.Context(), sets[0])
			coretest.WantCode(t, err, tt.code)
			if p.hidden && strings.Contains(err.Error(), "key") {
				t.Errorf("the error speaks of another key, though the blob store refuses: %v", err)
			}
			for id, want := range map[string]string{one: tt.image, two: tt.other} {
				if got, _, _ := strings.Cut(g.recordedImage(t, coretest.Acme, id), " "); got != want {
					t.Errorf("the recorded version of %s is %q, want %q", id, got, want)
				}
			}
			at := g.get(t, "sn-1").Archived
			if kept := at.Archive != ""; kept != (tt.shot != "") {
				t.Errorf("the snapshot is recorded as saved: %v, want %v", kept, tt.shot != "")
			}
			if tt.code != "" {
				return
			}

			// Now it is saved again, and can be used without what is here.
			coretest.OK(t, g.saveAll(t.Context()))
			coretest.OK(t, g.saveImages(t.Context()))
			coretest.OK(t, g.sweepArchives(t.Context(), true))
			clear(g.courier.texts)
			clear(g.shelf.texts)
			g.cfg.Archive = archive.New(p, bytes.Repeat([]byte{7}, 32))
			coretest.OK(t, g.FetchImage(t.Context(), coretest.Acme, one))
			coretest.OK(t, g.FetchImage(t.Context(), coretest.Acme, two))
			s := g.get(t, "sn-1")
			be, err := g.cfg.Providers.Backend(t.Context(), "")
			coretest.OK(t, err)
			coretest.OK(t, g.use(t.Context(), be, &s, func(ref driver.SnapshotRef) error {
				if g.courier.texts[ref.Data] == "" {
					return errLost
				}
				return nil
			}))
			if got := g.shelf.texts[one] + g.shelf.texts[two] + g.courier.texts["sn-1"]; got != "firstsecondkept" {
				t.Errorf("the archives have %q, want both images and the snapshot", got)
			}
			if got := g.images(t); len(got) != 2 {
				t.Errorf("the archive has %q, want each image once", got)
			}
		})
	}
}

// A sweep of all archives looks for what was lost, and has it saved soon.
func TestSweepFindsLost(t *testing.T) {
	g := newGallery(t)
	g.set(t, coretest.Acme, "tools", one)
	coretest.OK(t, g.saveImages(t.Context()))
	g.erase(t, "/packs/")
	coretest.OK(t, g.sweepArchives(t.Context(), false))
	if got := g.recordedImage(t, coretest.Acme, one); got != "1 first" {
		t.Errorf("a sweep of some archives leaves %q, want it as it was", got)
	}
	coretest.WantCode(t, g.sweepArchives(t.Context(), true), sandbox.CodeInvalid) // what is left of it has no use
	if got := g.recordedImage(t, coretest.Acme, one); got != "" || len(g.archive.wake) != 1 || len(g.archive.dirty) != 0 {
		t.Errorf("after a sweep the record is %q, with %d wakes and %d archives to sweep soon; want none, one and none", got, len(g.archive.wake), len(g.archive.dirty))
	}
}
