package snapshots

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// put changes a name as the commands of a user do.
func (s *shelf) put(name, digest, change string) {
	old := s.name(name)
	agreed := old.Agreed
	if agreed == "" && !old.New {
		agreed = old.Change
	}
	s.names[name] = ImageName{Name: name, Platform: platform, Digest: digest, Own: digest != "", Change: change, Agreed: agreed, New: true}
}

// other returns a second daemon with the same database and blob store, and another
// machine without images.
func (g *gallery) other() *gallery {
	o, cfg, images := *g.office, g.cfg, &shelf{texts: map[string]string{}, names: map[string]ImageName{}}
	cfg.Images = images
	o.Service = New(core.New(core.Config{Store: g.Store, Audit: g.Audit, Node: "other", Logger: g.Logger}), cfg)
	return &gallery{office: &o, shelf: images}
}

// round does what Watch does with images.
func (g *gallery) round(t *testing.T) {
	t.Helper()
	coretest.OK(t, g.agreeAll(t.Context(), false))
	coretest.OK(t, g.saveImages(t.Context()))
	coretest.OK(t, g.sweepArchives(t.Context(), false))
}

// content returns that of an image that a machine uses by its name, empty for none.
func (g *gallery) content(t *testing.T, name string, code sandbox.Code) string {
	t.Helper()
	coretest.WantCode(t, g.FetchImage(t.Context(), coretest.Rival, name), code)
	return g.shelf.texts[g.shelf.names[name].Digest]
}

func (g *gallery) row(t *testing.T, name string) store.ImageName {
	t.Helper()
	row, err := g.imageName(t.Context(), ImageName{Name: name, Platform: platform})
	coretest.OK(t, err)
	return row
}

// A user changes names on two machines whose daemons share a database. Each case ends
// with the images that the first and the second machine use, and those that are saved.
func TestImageNames(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, a, b *gallery)
		a, b string
		code sandbox.Code // of using it on b
		kept []string
	}{
		{"imported", func(*testing.T, *gallery, *gallery) {}, "first", "first", "", []string{"1 " + one}},
		{"and used elsewhere, where nobody has saved it", func(t *testing.T, a, b *gallery) {
			a.shelf.put("web:1", two, "c-2")
			coretest.OK(t, a.agreeAll(t.Context(), false))
		}, "second", "", sandbox.CodeUnavailable, []string{"1 " + one}},
		{"again, with other content", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			a.shelf.put("app:1", two, "c-2")
			a.round(t)
		}, "second", "second", "", []string{"2 " + two}},
		{"again elsewhere, where the first one was not seen", func(t *testing.T, a, b *gallery) {
			b.shelf.texts[two] = "second"
			b.shelf.put("app:1", two, "c-2")
			b.round(t)
			a.round(t) // sweeps what it had saved
		}, "second", "second", "", []string{"2 " + two}},
		{"again, while its old image is used elsewhere", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			a.shelf.put("app:1", two, "c-2")
			coretest.OK(t, a.agreeAll(t.Context(), false)) // not saved yet
		}, "second", "first", "", []string{"1 " + one}},
		{"and removed", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			a.shelf.put("app:1", "", "c-2")
			a.round(t)
			b.round(t)
			if len(b.shelf.names) != 0 {
				t.Errorf("the other machine has %+v", b.shelf.names)
			}
		}, "", "", "", nil},
		{"and removed elsewhere", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			b.shelf.put("app:1", "", "c-2")
			b.round(t)
		}, "", "", "", nil},
		{"and removed elsewhere, while another one is imported", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			b.shelf.put("app:1", "", "c-2")
			b.Fault = func(at string) error {
				if at == "imagename.marked" {
					a.shelf.put("app:1", two, "c-3")
					a.round(t)
				}
				return nil
			}
			b.round(t)
		}, "second", "second", "", []string{"2 " + two}},
		{"removed and imported again", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			a.shelf.put("app:1", "", "c-2")
			a.round(t)
			a.shelf.put("app:1", one, "c-3")
			a.round(t)
		}, "first", "first", "", []string{"3 " + one}},
		{"and the machine loses its images", func(t *testing.T, a, b *gallery) {
			a.shelf.texts, a.shelf.names = map[string]string{}, map[string]ImageName{}
			a.round(t)
		}, "first", "first", "", []string{"1 " + one}},
		{"and the machine loses a part of the image", func(_ *testing.T, a, _ *gallery) { a.shelf.texts = map[string]string{} }, "first", "first", "", []string{"1 " + one}},
		{"and the database is another one", func(t *testing.T, a, b *gallery) {
			coretest.OK(t, a.Store.Update(t.Context(), func(tx *store.Tx) error {
				return tx.Templates().SetImageName(t.Context(), store.ImageName{Name: "app:1", Platform: platform, Tenant: key.DefaultTenant, Change: "gone"}, "c-1")
			}))
			coretest.OK(t, a.Store.Update(t.Context(), func(tx *store.Tx) error {
				return tx.Operator().ForgetImageNames(t.Context(), coretest.Now.Add(time.Hour))
			}))
			a.TemplatesChanged(key.DefaultTenant)
			a.round(t)
		}, "first", "first", "", []string{"2 " + one}},
		{"where a registry's image has the name", func(t *testing.T, a, b *gallery) {
			b.shelf.texts["sha256:3"] = "pulled"
			b.shelf.names["app:1"] = ImageName{Name: "app:1", Platform: platform, Digest: "sha256:3"}
			b.round(t)
		}, "first", "first", "", []string{"1 " + one}},
		{"and removed, where a registry's image has the name", func(t *testing.T, a, b *gallery) {
			b.shelf.texts["sha256:3"] = "pulled"
			b.shelf.names["app:1"] = ImageName{Name: "app:1", Platform: platform, Digest: "sha256:3"}
			a.shelf.put("app:1", "", "c-2")
			a.round(t)
			b.round(t)
		}, "", "pulled", "", nil},
		{"and removed, where an earlier version had imported it", func(t *testing.T, a, b *gallery) {
			b.shelf.texts[two] = "second"
			b.shelf.names["app:1"] = ImageName{Name: "app:1", Platform: platform, Digest: two, Own: true}
			a.shelf.put("app:1", "", "c-2")
			a.round(t)
			b.round(t)
		}, "", "second", "", nil},
		{"and moved to a registry's image", func(t *testing.T, a, b *gallery) {
			b.content(t, "app:1", "")
			a.shelf.texts["sha256:3"] = "pulled"
			a.shelf.put("app:1", "sha256:3", "c-2")
			n := a.shelf.names["app:1"]
			n.Own = false
			a.shelf.names["app:1"] = n
			a.round(t)
			a.round(t)
		}, "pulled", "", "", nil},
		{"by an earlier version", func(t *testing.T, a, b *gallery) {
			a.shelf.names["old:1"] = ImageName{Name: "old:1", Platform: platform, Digest: two, Own: true}
			a.round(t)
			if got := b.content(t, "old:1", ""); got != "second" {
				t.Errorf("old:1 is %q elsewhere", got)
			}
		}, "first", "first", "", []string{"1 " + one, "2 " + two}},
		{"and a registry's image has another name", func(t *testing.T, a, b *gallery) {
			a.shelf.names["debian:12"] = ImageName{Name: "debian:12", Platform: platform, Digest: two, Change: "c-9", New: true}
			a.shelf.names["debian:13"] = ImageName{Name: "debian:13", Platform: platform, Digest: two}
			a.round(t)
			for _, name := range []string{"debian:12", "debian:13"} {
				if row := a.row(t, name); row.Change != "" {
					t.Errorf("%s is recorded: %+v", name, row)
				}
			}
		}, "first", "first", "", []string{"1 " + one}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newGallery(t)
			b := a.other()
			a.shelf.put("app:1", one, "c-1")
			a.round(t)
			tt.do(t, a, b)
			name, before := "app:1", fmt.Sprint(a.images(t))
			if tt.code != "" {
				name = "web:1"
			}
			if got := a.content(t, name, ""); got != tt.a {
				t.Errorf("the machine uses %q, want %q", got, tt.a)
			}
			if got := b.content(t, name, tt.code); got != tt.b {
				t.Errorf("the other machine uses %q, want %q", got, tt.b)
			}
			if want := fmt.Sprint(tt.kept); before != want {
				t.Errorf("the archive has %s, want %s", before, want)
			}
			for _, g := range []*gallery{a, b} { // nothing more happens
				g.Fault = func(string) error { return nil }
				if tt.code != "" {
					continue
				}
				g.round(t)
				names := maps.Clone(g.shelf.names)
				g.round(t)
				if !maps.Equal(names, g.shelf.names) {
					t.Errorf("the names %+v become %+v", names, g.shelf.names)
				}
			}
		})
	}
}

// A daemon is killed while it records a change of its machine, or takes one over. The
// next one finishes that. An import that was made elsewhere meanwhile wins if the
// killed daemon had begun before.
func TestImageNamesAfterCrash(t *testing.T) {
	for _, tt := range []struct {
		name, at string
		removed  bool
		between  bool // another one is imported before the daemon starts again
		want     string
	}{
		{"an import, before it is recorded", "imagename.marked", false, false, "second"},
		{"an import, after it is recorded", "imagename.recorded", false, false, "second"},
		{"a removal, before it is recorded", "imagename.marked", true, false, ""},
		{"a removal, after it is recorded", "imagename.recorded", true, false, ""},
		{"an import before it is recorded, and another import", "imagename.marked", false, true, "third"},
		{"an import after it is recorded, and another import", "imagename.recorded", false, true, "third"},
		{"a removal before it is recorded, and another import", "imagename.marked", true, true, "third"},
		{"a removal after it is recorded, and another import", "imagename.recorded", true, true, "third"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newGallery(t)
			b := a.other()
			a.shelf.put("app:1", one, "c-1")
			a.round(t)
			b.content(t, "app:1", "")
			a.shelf.put("app:1", map[bool]string{false: two}[tt.removed], "c-2")
			crashing(a.Core, tt.at)
			coretest.WantCode(t, a.agreeAll(t.Context(), false), sandbox.CodeInternal)
			a.Fault = func(string) error { return nil }
			if tt.between {
				b.shelf.texts["sha256:3"] = "third"
				b.shelf.put("app:1", "sha256:3", "c-3")
				b.round(t)
			}
			a.round(t)
			a.round(t)
			for which, g := range []*gallery{a, b} {
				if got := g.content(t, "app:1", ""); got != tt.want {
					t.Errorf("machine %d uses %q, want %q", which, got, tt.want)
				}
			}
		})
	}
}

// Errors name the image as the caller did.
func TestImageNameErrors(t *testing.T) {
	a := newGallery(t)
	b := a.other()
	a.shelf.put("app:1", one, "c-1")
	coretest.OK(t, a.agreeAll(t.Context(), false))
	for _, want := range []sandbox.Code{sandbox.CodeUnavailable, sandbox.CodeInvalid} {
		err := b.FetchImage(t.Context(), coretest.Rival, "app:1")
		coretest.WantCode(t, err, want)
		if known, ok := err.(*sandbox.Error); !ok || known.Subject != "app:1" || known.Hint == "" { //nolint:errorlint // as it is printed
			t.Errorf("the error is %#v", err)
		}
		if want == sandbox.CodeUnavailable {
			a.round(t)
			a.spoil(t)
		}
	}
}

// A daemon that is killed between fetching an image and naming it names it later.
func TestFollowAfterCrash(t *testing.T) {
	for _, at := range []string{"fetchimage.stored", "imagename.followed"} {
		a := newGallery(t)
		b := a.other()
		a.shelf.put("app:1", one, "c-1")
		a.round(t)
		crashing(b.Core, at)
		b.content(t, "app:1", sandbox.CodeInternal)
		b.Fault = func(string) error { return nil }
		if got := b.content(t, "app:1", ""); got != "first" || b.shelf.accepted != 1 {
			t.Errorf("%s: it uses %q after %d were fetched", at, got, b.shelf.accepted)
		}
	}
}

// Two machines import one name at once. They end with the same image.
func TestImportAtOnce(t *testing.T) {
	a := newGallery(t)
	b := a.other()
	b.shelf.texts[two] = "second"
	a.shelf.put("app:1", one, "c-1")
	b.shelf.put("app:1", two, "c-2")
	both := make(chan error, 2)
	for _, g := range []*gallery{a, b} {
		go func() { both <- g.agreeAll(t.Context(), false) }()
	}
	for range 2 {
		coretest.OK(t, <-both)
	}
	for range 2 {
		a.round(t)
		b.round(t)
	}
	if x, y := a.content(t, "app:1", ""), b.content(t, "app:1", ""); x != y || x == "" {
		t.Errorf("they use %q and %q", x, y)
	}
}

// A removal is forgotten after a while, and a name is not.
func TestForgetRemovedNames(t *testing.T) {
	a := newGallery(t)
	a.shelf.put("app:1", one, "c-1")
	a.shelf.put("web:1", two, "c-2")
	a.round(t)
	a.shelf.put("web:1", "", "c-3")
	a.round(t)
	for _, after := range []time.Duration{removedNames - time.Hour, removedNames + time.Hour} {
		coretest.OK(t, a.Store.Update(t.Context(), func(tx *store.Tx) error {
			return tx.Operator().ForgetImageNames(t.Context(), a.Store.Now().Add(after-removedNames))
		}))
		if there := a.row(t, "web:1").Change != ""; there != (after < removedNames) {
			t.Errorf("after %v it is there: %v", after, there)
		}
	}
	if a.row(t, "app:1").Image != one {
		t.Error("a name was forgotten")
	}
}
