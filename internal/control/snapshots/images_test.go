package snapshots

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const one, two = "sha256:1111", "sha256:2222"

// shelf has images in memory: their contents, by digest. The digest of a content is
// the content.
type shelf struct {
	mu       sync.Mutex
	texts    map[string]string
	fails    error  // of reading an image
	reading  func() // called when one is read
	accepted int
	names    map[string]ImageName
}

type shelved struct {
	s    *shelf
	text string
}

func (s *shelf) Has(digest string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.texts[digest] != "", nil
}

func (s *shelf) Lend(_ context.Context, digest string) (LentImage, error) {
	if s.texts[digest] == "" {
		return nil, nil
	}
	return shelved{s, s.texts[digest]}, nil
}

func (s *shelf) Accept(_ context.Context, digest, lent string, r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if string(text) != lent {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "this is not the image with that digest"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
	s.texts[digest] = lent
	return nil
}

const platform = "linux/test"

func (s *shelf) Names(ref string) (all []ImageName, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ref != "" {
		return []ImageName{s.name(ref)}, nil
	}
	for _, n := range s.names {
		if n.Own || n.Change != "" {
			all = append(all, n)
		}
	}
	return all, nil
}

func (s *shelf) name(ref string) ImageName {
	n := s.names[ref]
	n.Name, n.Platform = ref, platform
	return n
}

func (s *shelf) SetName(_ context.Context, old, to ImageName) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name(old.Name) != old || to.Digest != "" && s.texts[to.Digest] == "" {
		return false, nil
	}
	s.names[to.Name] = to
	if to.Digest == "" && to.Change == "" {
		delete(s.names, to.Name)
	}
	return true, nil
}

func (s *shelf) NamesStamp() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.names)
}

func (i shelved) Digest() string { return i.text }

func (i shelved) Write(_ context.Context, w io.Writer) error {
	if i.s.reading != nil {
		i.s.reading()
	}
	if _, err := io.WriteString(w, i.text); err != nil {
		return err
	}
	return i.s.fails
}

// gallery is an office with templates.
type gallery struct {
	*office
	shelf *shelf
}

func newGallery(t *testing.T) *gallery {
	t.Helper()
	g := &gallery{shelf: newShelf()}
	g.office = newOffice(t, false, func(c *Config) { c.Images = g.shelf })
	return g
}

func newShelf() *shelf {
	return &shelf{texts: map[string]string{one: "first", two: "second"}, names: map[string]ImageName{}}
}

func (g *gallery) set(t *testing.T, tenant, name, digest string) {
	t.Helper()
	coretest.OK(t, g.Store.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Templates().Set(t.Context(), store.Template{Tenant: tenant, Template: durable.Template{Name: name, Tag: "latest", Image: digest, Created: coretest.Now}})
		return err
	}))
}

func (g *gallery) remove(t *testing.T, tenant, name string) {
	t.Helper()
	coretest.OK(t, g.Store.Update(t.Context(), func(tx *store.Tx) error { return tx.Templates().Remove(t.Context(), tenant, name, "latest") }))
}

func (g *gallery) publish(t *testing.T, tenant, name string) {
	t.Helper()
	coretest.OK(t, g.Store.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Templates().Publish(t.Context(), tenant, name, true)
		return err
	}))
}

// recordedImage returns the version and the digest of the content of a saved image.
func (g *gallery) recordedImage(t *testing.T, tenant, digest string) string {
	t.Helper()
	i, err := store.Read(t.Context(), g.Store, func(tx *store.Tx) (store.TemplateImage, error) {
		return tx.Templates().SavedImage(t.Context(), tenant, digest)
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return ""
	}
	coretest.OK(t, err)
	return fmt.Sprint(i.Archived.Version, " ", i.Lent)
}

// images returns what the archives have, as VERSION DIGEST.
func (g *gallery) images(t *testing.T) (all []string) {
	t.Helper()
	sets, err := store.Read(t.Context(), g.Store, func(tx *store.Tx) ([]store.Archive, error) { return tx.Operator().Archives(t.Context()) })
	coretest.OK(t, err)
	for _, a := range sets {
		kept, err := g.cfg.Archive.List(t.Context(), imagesOf(archive.Set{ID: a.ID, Encrypted: a.Encrypted}))
		coretest.OK(t, err)
		for _, k := range kept {
			all = append(all, fmt.Sprint(k.Version, " ", k.Note))
		}
	}
	slices.Sort(all)
	return all
}

// What two rounds of saving do with the image of a template, and what the sweep after
// them leaves.
func TestSaveImages(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, g *gallery)
		code    sandbox.Code // of the first round
		again   sandbox.Code // of the second one
		saved   string
		stored  []string
		swept   []string
	}{
		{name: "an image", saved: "1 first", stored: []string{"1 " + one}, swept: []string{"1 " + one}},
		{name: "with two names", prepare: func(t *testing.T, g *gallery) { g.set(t, coretest.Acme, "same", one) }, saved: "1 first", stored: []string{"1 " + one}, swept: []string{"1 " + one}},
		{name: "of two tenants", prepare: func(t *testing.T, g *gallery) { g.set(t, coretest.Rival, "same", one) }, saved: "1 first", stored: []string{"1 " + one, "1 " + one}, swept: []string{"1 " + one, "1 " + one}},
		{name: "of another daemon", prepare: func(_ *testing.T, g *gallery) { delete(g.shelf.texts, one) }},
		{name: "one that breaks off", prepare: func(_ *testing.T, g *gallery) { g.shelf.fails = errAway }, code: sandbox.CodeUnavailable, again: sandbox.CodeUnavailable},
		{name: "one that is damaged", prepare: func(_ *testing.T, g *gallery) { g.shelf.fails = &sandbox.Error{Code: sandbox.CodeInvalid} }, code: sandbox.CodeInvalid},
		{name: "a crash before it is recorded", prepare: func(_ *testing.T, g *gallery) { crashing(g.Core, "saveimage.stored") }, code: sandbox.CodeInternal, again: sandbox.CodeInternal, stored: []string{"1 " + one, "2 " + one}, swept: []string{"1 " + one, "2 " + one}},
		{name: "one whose template is removed meanwhile", prepare: func(t *testing.T, g *gallery) {
			g.shelf.reading = func() { g.remove(t, coretest.Acme, "tools") }
		}, stored: []string{"1 " + one}},
		{name: "one that another daemon saves meanwhile", prepare: func(t *testing.T, g *gallery) {
			g.shelf.reading = func() {
				g.shelf.reading = nil
				coretest.OK(t, g.saveImages(t.Context()))
			}
		}, saved: "1 first", stored: []string{"1 " + one, "2 " + one}, swept: []string{"1 " + one}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGallery(t)
			g.set(t, coretest.Acme, "tools", one)
			if tt.prepare != nil {
				tt.prepare(t, g)
			}
			coretest.WantCode(t, g.saveImages(t.Context()), tt.code)
			coretest.WantCode(t, g.saveImages(t.Context()), tt.again)
			if saved := g.recordedImage(t, coretest.Acme, one); saved != tt.saved {
				t.Errorf("recorded is %q, want %q", saved, tt.saved)
			}
			if got := g.images(t); !slices.Equal(got, tt.stored) {
				t.Errorf("the archive has %q, want %q", got, tt.stored)
			}
			coretest.OK(t, g.sweepArchives(t.Context(), false))
			if got := g.images(t); tt.swept == nil && len(got) != 0 || tt.swept != nil && !slices.Equal(got, tt.swept) {
				t.Errorf("after a sweep the archive has %q, want %q", got, tt.swept)
			}
		})
	}
}

// A saved image goes with the last template that has it. What a killed daemon left of
// saving goes, too. Snapshots stay, and images when snapshots go.
func TestSweepImages(t *testing.T) {
	for _, tt := range []struct {
		name    string
		all     bool
		prepare func(t *testing.T, g *gallery)
		want    []string
	}{
		{"all are needed", true, func(*testing.T, *gallery) {}, []string{"1 " + one, "2 " + two}},
		{"a template was removed", false, func(t *testing.T, g *gallery) { g.remove(t, coretest.Acme, "tools"); g.TemplatesChanged(coretest.Acme) }, []string{"2 " + two}},
		{"before the daemon started", true, func(t *testing.T, g *gallery) { g.remove(t, coretest.Acme, "tools") }, []string{"2 " + two}},
		{"of another tenant", false, func(t *testing.T, g *gallery) {
			g.remove(t, coretest.Acme, "tools")
			g.TemplatesChanged(coretest.Rival)
		}, []string{"1 " + one, "2 " + two}},
		{"a tag was moved", false, func(t *testing.T, g *gallery) {
			g.set(t, coretest.Acme, "tools", two)
			g.TemplatesChanged(coretest.Acme)
		}, []string{"2 " + two}},
		{"one of two tags was moved", false, func(t *testing.T, g *gallery) {
			g.set(t, coretest.Acme, "same", one)
			g.set(t, coretest.Acme, "tools", two)
			g.TemplatesChanged(coretest.Acme)
		}, []string{"1 " + one, "2 " + two}},
		{"a snapshot was removed", false, func(t *testing.T, g *gallery) {
			g.forgetRecord(t, "sn-1")
			g.archive.forget("sn-1", coretest.Acme)
		}, []string{"1 " + one, "2 " + two}},
		{"one was saved twice", true, func(t *testing.T, g *gallery) {
			set, err := g.archiveOf(t.Context(), coretest.Acme)
			coretest.OK(t, err)
			_, _, err = g.cfg.Archive.Write(t.Context(), imagesOf(set), one, g.transfers(), func(w io.Writer) error { return shelved{g.shelf, "first"}.Write(t.Context(), w) })
			coretest.OK(t, err)
		}, []string{"1 " + one, "2 " + two}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGallery(t)
			g.keep(t, "sn-1", "kept")
			coretest.OK(t, g.saveAll(t.Context()))
			for name, digest := range map[string]string{"tools": one, "web": two} {
				g.set(t, coretest.Acme, name, digest)
			}
			coretest.OK(t, g.saveImages(t.Context()))
			tt.prepare(t, g)
			before := len(g.archived(t))
			coretest.OK(t, g.sweepArchives(t.Context(), tt.all))
			if got := g.images(t); !slices.Equal(got, tt.want) {
				t.Errorf("the archive has the images %q, want %q", got, tt.want)
			}
			if got := g.archived(t); tt.name != "a snapshot was removed" && len(got) != before {
				t.Errorf("the archive has the snapshots %q, want as many as before", got)
			}
		})
	}
}

// A daemon that is killed while it uploads an image leaves parts of it. They are
// removed, also if the template is removed before another one is saved.
func TestSweepPartsOfImages(t *testing.T) {
	g := newGallery(t)
	g.set(t, coretest.Acme, "tools", one)
	coretest.OK(t, g.saveImages(t.Context()))
	parts := map[string][]byte{}
	each := func(do func(path string)) {
		coretest.OK(t, filepath.WalkDir(g.blobs, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.Contains(path, "/packs/") {
				do(path)
			}
			return err
		}))
	}
	each(func(path string) {
		data, err := os.ReadFile(path)
		coretest.OK(t, err)
		parts[path] = data
	})
	g.remove(t, coretest.Acme, "tools")
	coretest.OK(t, g.sweepArchives(t.Context(), true))
	for path, data := range parts { // as if they had been uploaded just now
		coretest.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		coretest.OK(t, os.WriteFile(path, data, 0o600))
	}
	coretest.OK(t, g.sweepArchives(t.Context(), true))
	left := 0
	each(func(string) { left++ })
	if len(parts) == 0 || left != 0 {
		t.Errorf("%d of %d parts are left, want none", left, len(parts))
	}
}

// An image that is missing here comes from the archive, once, for tenants that may use
// a template of it. Nothing else is put in its place.
func TestFetchImage(t *testing.T) {
	lose := func(g *gallery) { g.shelf.texts = map[string]string{} }
	for _, tt := range []struct {
		name    string
		tenant  string
		prepare func(t *testing.T, g *gallery)
		code    sandbox.Code
		text    string
		fetched int
	}{
		{name: "it is here", prepare: func(*testing.T, *gallery) {}, text: "first"},
		{name: "it is here, and the archive is not", prepare: func(t *testing.T, g *gallery) { g.spoil(t) }, text: "first"},
		{name: "it is missing", prepare: func(_ *testing.T, g *gallery) { lose(g) }, text: "first", fetched: 1},
		{name: "for another tenant", tenant: coretest.Rival, prepare: func(_ *testing.T, g *gallery) { lose(g) }},
		{name: "for another tenant, and it is public", tenant: coretest.Rival, prepare: func(t *testing.T, g *gallery) { g.publish(t, coretest.Acme, "tools"); lose(g) }, text: "first", fetched: 1},
		{name: "of no template any more", prepare: func(t *testing.T, g *gallery) { g.remove(t, coretest.Acme, "tools"); lose(g) }},
		{name: "the archive is damaged", prepare: func(t *testing.T, g *gallery) { g.spoil(t); lose(g) }, code: sandbox.CodeInvalid},
		{name: "there is no archive", prepare: func(_ *testing.T, g *gallery) { g.cfg.Archive = nil; lose(g) }},
		{name: "a crash after it is stored", prepare: func(_ *testing.T, g *gallery) { crashing(g.Core, "fetchimage.stored"); lose(g) }, code: sandbox.CodeInternal, text: "first", fetched: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGallery(t)
			g.set(t, coretest.Acme, "tools", one)
			coretest.OK(t, g.saveImages(t.Context()))
			tt.prepare(t, g)
			if tt.tenant == "" {
				tt.tenant = coretest.Acme
			}
			coretest.WantCode(t, g.FetchImage(t.Context(), tt.tenant, one), tt.code)
			g.Fault = func(string) error { return nil }
			if tt.code != sandbox.CodeInvalid {
				coretest.OK(t, g.FetchImage(t.Context(), tt.tenant, one)) // does not fetch it again
			}
			if text := g.shelf.texts[one]; text != tt.text || g.shelf.accepted != tt.fetched {
				t.Errorf("the image is %q after %d were fetched, want %q and %d", text, g.shelf.accepted, tt.text, tt.fetched)
			}
		})
	}
}

// Many callers who need an image at once fetch it once.
func TestFetchImageOnce(t *testing.T) {
	g := newGallery(t)
	g.set(t, coretest.Acme, "tools", one)
	coretest.OK(t, g.saveImages(t.Context()))
	g.shelf.texts = map[string]string{}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if err := g.FetchImage(t.Context(), coretest.Acme, one); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if g.shelf.texts[one] != "first" || g.shelf.accepted != 1 {
		t.Errorf("the image is %q after %d were fetched, want it fetched once", g.shelf.texts[one], g.shelf.accepted)
	}
}
