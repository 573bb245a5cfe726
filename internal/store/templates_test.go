package store_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// templateStore is a store with the templates of two tenants.
type templateStore struct {
	t *testing.T
	s *store.Store
}

func (ts templateStore) set(tenant, name, tag, withheld string) (store.Template, error) {
	ctx := context.Background()
	return store.Write(ctx, ts.s, func(tx *store.Tx) (store.Template, error) {
		return tx.Templates().Set(ctx, store.Template{
			Template: durable.Template{Name: name, Tag: tag, Image: "sha256:1", Base: "sha256:0", Created: tx.Now()}, Tenant: tenant, Withheld: withheld,
		})
	})
}

func (ts templateStore) publish(tenant, name string, public bool) ([]store.Template, error) {
	ctx := context.Background()
	return store.Write(ctx, ts.s, func(tx *store.Tx) ([]store.Template, error) {
		return tx.Templates().Publish(ctx, tenant, name, public)
	})
}

func (ts templateStore) public(tenant, name, tag string) error {
	ctx := context.Background()
	_, err := store.Read(ctx, ts.s, func(tx *store.Tx) (store.Template, error) { return tx.Templates().GetPublic(ctx, tenant, name, tag) })
	return err
}

func eachTemplateStore(t *testing.T, f func(t *testing.T, ts templateStore)) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme", "rival")
		f(t, templateStore{t, s})
	})
}

// A public name has public tags: those it has, and those that it gets. A name
// whose last tag is gone is not public any more.
func TestPublicTemplates(t *testing.T) {
	eachTemplateStore(t, func(t *testing.T, ts templateStore) {
		for _, tag := range []string{"latest", "v1"} {
			made, err := ts.set("acme", "web", tag, "")
			ok(t, err)
			if made.Public {
				t.Error("a new template is public")
			}
		}
		_, err := ts.set("rival", "web", "latest", "")
		ok(t, err)
		_, err = ts.set("acme", "other", "latest", "")
		ok(t, err)
		wantCode(t, ts.public("acme", "web", "v1"), sandbox.CodeNotFound)
		_, err = ts.publish("acme", "none", true)
		wantCode(t, err, sandbox.CodeNotFound)

		all, err := ts.publish("acme", "web", true)
		ok(t, err)
		if len(all) != 2 || !all[0].Public || !all[1].Public {
			t.Errorf("published: %+v", all)
		}
		ok(t, ts.public("acme", "web", "v1"))
		made, err := ts.set("acme", "web", "v2", "")
		ok(t, err)
		if !made.Public {
			t.Error("a new tag of a public name is not public")
		}
		made, err = ts.set("acme", "web", "v1", "")
		ok(t, err)
		if !made.Public {
			t.Error("a tag that was built again is not public")
		}
		ok(t, ts.public("acme", "web", "v2"))
		for _, never := range [][3]string{{"acme", "other", "latest"}, {"rival", "web", "latest"}, {"acme", "web", "v3"}, {"nobody", "web", "latest"}} {
			wantCode(t, ts.public(never[0], never[1], never[2]), sandbox.CodeNotFound)
		}

		all, err = ts.publish("acme", "web", false)
		ok(t, err)
		if len(all) != 3 || all[0].Public || all[2].Public {
			t.Errorf("unpublished: %+v", all)
		}
		wantCode(t, ts.public("acme", "web", "v1"), sandbox.CodeNotFound)

		_, err = ts.publish("acme", "other", true)
		ok(t, err)
		ok(t, ts.s.Update(t.Context(), func(tx *store.Tx) error { return tx.Templates().Remove(t.Context(), "acme", "other", "latest") }))
		if made, err = ts.set("acme", "other", "latest", ""); err != nil || made.Public {
			t.Errorf("a name that was removed is public again: %v, %v", made.Public, err)
		}
	})
}

// The templates of a disabled tenant are not offered to others.
func TestPublicTemplatesOfADisabledTenant(t *testing.T) {
	eachTemplateStore(t, func(t *testing.T, ts templateStore) {
		_, err := ts.set("acme", "web", "latest", "")
		ok(t, err)
		_, err = ts.publish("acme", "web", true)
		ok(t, err)
		for _, disabled := range []bool{true, false} {
			ok(t, ts.s.Update(t.Context(), func(tx *store.Tx) error { return tx.Tenants().Disable(t.Context(), "acme", disabled) }))
			if err := ts.public("acme", "web", "latest"); (sandbox.CodeOf(err) == sandbox.CodeNotFound) != disabled {
				t.Errorf("disabled %v: %v", disabled, err)
			}
		}
	})
}

// A template that may not be shared cannot be published, and cannot become a
// tag of a public name.
func TestWithheldTemplates(t *testing.T) {
	eachTemplateStore(t, func(t *testing.T, ts templateStore) {
		for reason, says := range map[string]string{
			store.WithheldLogin: "needs a password", store.WithheldDigest: "by its digest", store.WithheldUnknown: "earlier version",
		} {
			name := "t-" + reason
			_, err := ts.set("acme", name, "latest", "")
			ok(t, err)
			_, err = ts.set("acme", name, "v1", reason)
			ok(t, err)
			_, err = ts.publish("acme", name, true)
			e := new(sandbox.Error)
			if !errors.As(err, &e) || e.Code != sandbox.CodeDenied || !strings.Contains(e.Message, says) || e.Hint == "" || !strings.Contains(e.Subject, ":v1") {
				t.Errorf("%s: %+v", reason, err)
			}
			ok(t, ts.s.Update(t.Context(), func(tx *store.Tx) error { return tx.Templates().Remove(t.Context(), "acme", name, "v1") }))
			_, err = ts.publish("acme", name, true)
			ok(t, err)
			for _, tag := range []string{"latest", "v1"} {
				_, err = ts.set("acme", name, tag, reason)
				wantCode(t, err, sandbox.CodeDenied)
			}
			_, err = ts.publish("acme", name, false)
			ok(t, err)
			_, err = ts.set("acme", name, "v1", reason)
			ok(t, err)
		}
	})
}

// Whatever comes first, a template that may not be shared is never public.
func TestPublishRace(t *testing.T) {
	eachTemplateStore(t, func(t *testing.T, ts templateStore) {
		for range 20 {
			_, err := ts.set("acme", "web", "latest", "")
			ok(t, err)
			var both sync.WaitGroup
			both.Go(func() { _, _ = ts.set("acme", "web", "private", store.WithheldLogin) })
			both.Go(func() { _, _ = ts.publish("acme", "web", true) })
			both.Wait()
			wantCode(t, ts.public("acme", "web", "private"), sandbox.CodeNotFound)

			both.Go(func() { _, _ = ts.set("acme", "web", "new", "") })
			both.Go(func() { _, _ = ts.publish("acme", "web", false) })
			both.Wait()
			wantCode(t, ts.public("acme", "web", "new"), sandbox.CodeNotFound)
			for _, tag := range []string{"latest", "private", "new"} {
				_ = ts.s.Update(t.Context(), func(tx *store.Tx) error { return tx.Templates().Remove(t.Context(), "acme", "web", tag) })
			}
		}
	})
}

// Who finds a saved image: the tenant of its templates, and others while one of them
// is public. The record goes with the last template of it, and there is one for each
// tenant.
func TestTemplateImages(t *testing.T) {
	eachTemplateStore(t, func(t *testing.T, ts templateStore) {
		ctx := context.Background()
		const digest = "sha256:1" // see set
		save := func(tenant string, version int) error {
			return ts.s.Update(ctx, func(tx *store.Tx) error {
				a, err := tx.Snapshots().EnsureArchive(ctx, store.Archive{ID: "ar-" + tenant, Tenant: tenant, Encrypted: true})
				if err != nil {
					return err
				}
				return tx.Templates().SaveImage(ctx, store.TemplateImage{Tenant: tenant, Image: digest, Lent: "sha256:9", Archived: store.Archived{Archive: a.ID, Version: version, Digest: "d", Stored: 7}})
			})
		}
		found := func(tenant string) string {
			i, err := store.Read(ctx, ts.s, func(tx *store.Tx) (store.TemplateImage, error) {
				return tx.Templates().SavedImage(ctx, tenant, digest)
			})
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return ""
			}
			ok(t, err)
			want := store.Archived{Archive: "ar-" + i.Tenant, Encrypted: true, Version: i.Archived.Version, Digest: "d", Stored: 7}
			if i.Image != digest || i.Lent != "sha256:9" || i.Archived != want {
				t.Errorf("the record is %+v", i)
			}
			return i.Tenant
		}
		unsaved := func(want ...string) {
			t.Helper()
			var got []string
			for after := (store.TemplateImage{}); ; {
				part, err := store.Read(ctx, ts.s, func(tx *store.Tx) ([]store.TemplateImage, error) { return tx.Operator().UnsavedImages(ctx, after, 1) })
				ok(t, err)
				if len(part) == 0 {
					break
				}
				after = part[0]
				got = append(got, after.Tenant+" "+after.Image)
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				t.Errorf("unsaved are %q, want %q", got, want)
			}
		}
		remove := func(tenant, tag string) {
			t.Helper()
			ok(t, ts.s.Update(ctx, func(tx *store.Tx) error { return tx.Templates().Remove(ctx, tenant, "web", tag) }))
		}
		if err := save("acme", 1); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("saving it without a template: %v", err)
		}
		for _, tag := range []string{"latest", "v1"} {
			_, err := ts.set("acme", "web", tag, "")
			ok(t, err)
		}
		unsaved("acme " + digest)
		ok(t, save("acme", 1))
		if err := save("acme", 2); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
			t.Errorf("saving it again: %v", err)
		}
		unsaved()
		if a, r := found("acme"), found("rival"); a != "acme" || r != "" {
			t.Errorf("acme finds that of %q, rival that of %q", a, r)
		}
		_, err := ts.publish("acme", "web", true)
		ok(t, err)
		if r := found("rival"); r != "acme" {
			t.Errorf("rival finds that of %q, though it is public", r)
		}
		_, err = ts.set("rival", "web", "latest", "")
		ok(t, err)
		unsaved("rival " + digest)
		ok(t, save("rival", 5))
		if r := found("rival"); r != "rival" {
			t.Errorf("rival finds that of %q", r)
		}
		for _, version := range []int{4, 5} { // of an archive that lost version 4, and then 5
			ok(t, ts.s.Update(ctx, func(tx *store.Tx) error {
				all, err := tx.Operator().FiledImages(ctx, "ar-rival")
				if err == nil && (len(all) != 1 || all[0] != store.Filed{Subject: digest, Version: 5}) {
					t.Errorf("the archive has %+v", all)
				}
				return errors.Join(err, tx.Operator().LoseImage(ctx, "ar-rival", store.Filed{Subject: digest, Version: version}))
			}))
		}
		unsaved("rival " + digest)
		ok(t, save("rival", 6))
		remove("acme", "v1")
		if a := found("acme"); a != "acme" {
			t.Errorf("acme finds that of %q, though a template has it", a)
		}
		remove("acme", "latest")
		if a, r := found("acme"), found("rival"); a != "" || r != "rival" {
			t.Errorf("acme finds that of %q, rival that of %q", a, r)
		}
		_, err = ts.set("acme", "web", "latest", "") // built again: what was saved is gone
		ok(t, err)
		unsaved("acme " + digest)
		if a := found("acme"); a != "" {
			t.Errorf("acme finds that of %q after it was removed", a)
		}
		err = ts.s.Update(ctx, func(tx *store.Tx) error { // its tag is moved
			_, err := tx.Templates().Set(ctx, store.Template{Tenant: "rival", Template: durable.Template{Name: "web", Tag: "latest", Image: "sha256:2", Created: tx.Now()}})
			return err
		})
		ok(t, err)
		if r := found("rival"); r != "" {
			t.Errorf("rival finds that of %q", r)
		}
		if err := ts.s.View(ctx, func(tx *store.Tx) error {
			_, err := tx.Operator().TemplateImage(ctx, "rival", digest)
			return err
		}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("no template has it, but: %v", err)
		}
	})
}

// The image of an imported name is saved for its tenant, and every tenant finds it. A
// change of a name follows the one before it. The record of the saved image goes with
// the last name and template of it.
func TestImageNames(t *testing.T) {
	eachTemplateStore(t, func(t *testing.T, ts templateStore) {
		ctx := context.Background()
		change := func(name, digest, to, over string, code sandbox.Code) {
			t.Helper()
			err := ts.s.Update(ctx, func(tx *store.Tx) error {
				return tx.Templates().SetImageName(ctx, store.ImageName{Name: name, Platform: "linux/amd64", Tenant: "acme", Image: digest, Change: to}, over)
			})
			if sandbox.CodeOf(err) != code {
				t.Errorf("%s over %q: %v, want %q", to, over, err, code)
			}
		}
		save := func(digest string) {
			t.Helper()
			ok(t, ts.s.Update(ctx, func(tx *store.Tx) error {
				a, err := tx.Snapshots().EnsureArchive(ctx, store.Archive{ID: "ar-acme", Tenant: "acme"})
				if err != nil {
					return err
				}
				return tx.Templates().SaveImage(ctx, store.TemplateImage{Tenant: "acme", Image: digest, Lent: "sha256:9", Archived: store.Archived{Archive: a.ID, Version: 1, Digest: "d"}})
			}))
		}
		found := func(digest string, want bool) {
			t.Helper()
			for _, tenant := range []string{"acme", "rival"} {
				_, err := store.Read(ctx, ts.s, func(tx *store.Tx) (store.TemplateImage, error) {
					return tx.Templates().SavedImage(ctx, tenant, digest)
				})
				has, err2 := store.Read(ctx, ts.s, func(tx *store.Tx) (bool, error) { return tx.Templates().HasImage(ctx, tenant, digest) })
				ok(t, err2)
				if (err == nil) != want || has != want {
					t.Errorf("%s finds %s: %v, may use it: %v, want %v", tenant, digest, err, has, want)
				}
			}
		}
		change("app:1", "sha256:1", "c1", "other", sandbox.CodeConflict)
		change("app:1", "sha256:1", "c1", "", "")
		change("app:1", "sha256:1", "c2", "", sandbox.CodeConflict)
		change("web:1", "sha256:1", "c1", "", "")
		part, err := store.Read(ctx, ts.s, func(tx *store.Tx) ([]store.TemplateImage, error) {
			return tx.Operator().UnsavedImages(ctx, store.TemplateImage{}, 9)
		})
		if ok(t, err); len(part) != 1 || part[0].Image != "sha256:1" || part[0].Tenant != "acme" {
			t.Errorf("unsaved are %+v", part)
		}
		save("sha256:1")
		found("sha256:1", true)
		change("app:1", "sha256:2", "c2", "c1", "")
		change("app:1", "sha256:3", "c3", "c1", sandbox.CodeConflict)
		found("sha256:1", true) // web:1
		change("web:1", "", "c2", "c1", "")
		found("sha256:1", false)
		save("sha256:2")
		_, err = ts.set("acme", "tools", "latest", "") // has sha256:1
		ok(t, err)
		part, err = store.Read(ctx, ts.s, func(tx *store.Tx) ([]store.TemplateImage, error) {
			return tx.Operator().UnsavedImages(ctx, store.TemplateImage{}, 9)
		})
		if ok(t, err); len(part) != 1 || part[0].Image != "sha256:1" { // its saved one has gone with the name
			t.Errorf("unsaved are %+v", part)
		}
		found("sha256:2", true)
		rows, err := store.Read(ctx, ts.s, func(tx *store.Tx) ([]store.ImageName, error) { return tx.Operator().ImageNames(ctx) })
		if ok(t, err); len(rows) != 2 || rows[0].Image != "sha256:2" || rows[1].Image != "" || rows[1].Change != "c2" {
			t.Errorf("the names are %+v", rows)
		}
	})
}
