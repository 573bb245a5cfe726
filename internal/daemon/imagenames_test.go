package daemon_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// noRegistry is the name of an image that no registry can have.
const noRegistry = "127.0.0.1:1/app:1"

// importAs imports a file system on a machine, as atoll image import does.
func importAs(t *testing.T, m *daemontest.Machine, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.tar")
	ok(t, os.WriteFile(path, filesTar(t, "bin/sh", strings.Repeat(content, 1<<16)), 0o600))
	img, err := imagesOf(t, m).Import(t.Context(), "tar:"+path, name, image.GetOptions{})
	ok(t, err)
	return img.Digest
}

// recorded waits until a name is in the database as an image, empty for removed, and
// the image is saved.
func recorded(t *testing.T, s *store.Store, name, digest string) {
	t.Helper()
	repeat(t, "recording "+name, func() error {
		rows, err := store.Read(t.Context(), s, func(tx *store.Tx) ([]store.ImageName, error) { return tx.Operator().ImageNames(t.Context()) })
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(rows, func(n store.ImageName) bool { return n.Name == name && n.Image == digest }) {
			return errors.New("it is not recorded")
		}
		return nil
	})
	if digest != "" {
		imageSaved(t, s, "default", digest)
	}
}

// uses makes a sandbox of a name, and returns the digest that the name has then on the
// machine.
func uses(t *testing.T, m *daemontest.Machine, c *atoll.Client, provider string) string {
	t.Helper()
	create(t, c, sandbox.Spec{Image: noRegistry, Provider: provider})
	return meaning(t, m)
}

func meaning(t *testing.T, m *daemontest.Machine) string {
	t.Helper()
	names, err := imagesOf(t, m).Names(noRegistry)
	ok(t, err)
	return names[0].Digest
}

// Two control daemons with one database and one blob store know the images that were
// imported on each of them: for their machine, for nodes and for builds. The last
// import is what a name means, and a removal removes it on both. An image outlives the
// machine where it was imported.
func TestControlsShareImports(t *testing.T) {
	address, blobs := storetest.Postgres(t), t.TempDir()
	a := newNode(t, 32<<30)
	m1, m2, d1, d2, with := startControls(t, address, blobs, a)
	db := openStore(t, address)
	k, err := daemontest.Client(t, d1).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	ok(t, err)
	owner, acme := daemontest.Client(t, d2), daemontest.Bearer(t, d2, k.Token)
	refused := func(c *atoll.Client, ref string) {
		t.Helper()
		for _, provider := range []string{"fake", "node-a"} {
			if _, err := c.Create(t.Context(), sandbox.Spec{Image: ref, Provider: provider}, atoll.CreateOptions{}); err == nil {
				t.Errorf("%s gives a sandbox on %s", ref, provider)
			}
		}
	}
	refused(owner, noRegistry)

	first := importAs(t, m1, noRegistry, "first")
	recorded(t, db, noRegistry, first)
	noImages(t, m2)
	for _, c := range []*atoll.Client{acme, owner} {
		if got := uses(t, m2, c, "fake"); got != first {
			t.Errorf("the name means %s, want %s", got, first)
		}
	}
	uses(t, m2, acme, "node-a")
	if all := imagesOn(t, a); len(all) != 1 || sent(t, a) != 1 {
		t.Errorf("the node has %d images after %d were sent, want one", len(all), sent(t, a))
	}
	made, err := acme.BuildTemplate(t.Context(), bytes.NewReader(filesTar(t, "Dockerfile", "FROM "+noRegistry+"\nENV B=1\n")), atoll.BuildOptions{Name: "tools"})
	ok(t, err)
	imageSaved(t, db, "acme", made.Image)
	rows, err := store.Read(t.Context(), db, func(tx *store.Tx) ([]store.ImageName, error) { return tx.Operator().ImageNames(t.Context()) })
	ok(t, err)
	if len(rows) != 1 {
		t.Errorf("recorded are %+v, want only the imported name", rows)
	}
	if acmes, err := store.Read(t.Context(), db, func(tx *store.Tx) (store.TemplateImage, error) {
		return tx.Operator().TemplateImage(t.Context(), "acme", first)
	}); err == nil {
		t.Errorf("the tenant has the imported image: %+v", acmes)
	}

	second := importAs(t, m2, noRegistry, "second")
	recorded(t, db, noRegistry, second)
	if got := uses(t, m1, daemontest.Client(t, d1), "fake"); got != second {
		t.Errorf("after another import elsewhere the name means %s, want %s", got, second)
	}
	ok(t, d2.Close()) // with its machine
	ok(t, os.RemoveAll(filepath.Join(m2.Dir, "images")))
	loseImages(t, m1)
	c1 := daemontest.Client(t, d1)
	uses(t, m1, c1, "node-a")
	if got := uses(t, m1, c1, "fake"); got != second {
		t.Errorf("after the loss of its machine the name means %s, want %s", got, second)
	}
	d2 = m2.Start(t, with(m2)) // with an empty image store
	owner, acme = daemontest.Client(t, d2), daemontest.Bearer(t, d2, k.Token)
	create(t, acme, sandbox.Spec{Image: second, Provider: "fake"})
	if got := uses(t, m2, acme, "fake"); got != second {
		t.Errorf("after a new start the name means %s, want %s", got, second)
	}

	ok(t, imagesOf(t, m1).Remove(t.Context(), noRegistry))
	recorded(t, db, noRegistry, "")
	refused(owner, noRegistry)
	refused(acme, noRegistry)
	refused(daemontest.Client(t, d1), noRegistry)
	refused(acme, first)
	ok(t, acme.RemoveTemplate(t.Context(), "tools"))
	repeat(t, "sweeping the blob store", func() error {
		if left := packs(t, blobs); len(left) > 0 {
			return errors.New(strings.Join(left, " "))
		}
		return nil
	})
}

// Two machines import one name at once: both end with the same image.
func TestControlsImportAtOnce(t *testing.T) {
	address, blobs := storetest.Postgres(t), t.TempDir()
	machines := []*daemontest.Machine{daemontest.New(t), daemontest.New(t)}
	var clients []*atoll.Client
	for _, m := range machines {
		clients = append(clients, daemontest.Client(t, m.Start(t, func(o *daemon.Options) {
			withImages(m, "", o)
			o.Store, o.Blobs, o.PlainSnapshots = address, blobs, true
		})))
	}
	db := openStore(t, address)
	for round := range 3 {
		var both sync.WaitGroup
		for i, m := range machines {
			both.Go(func() { importAs(t, m, noRegistry, string(rune('a'+2*round+i))) })
		}
		both.Wait()
		repeat(t, "agreeing", func() error {
			var digests []string
			for _, m := range machines {
				names, err := imagesOf(t, m).Names(noRegistry)
				if err != nil || len(names) != 1 || names[0].New {
					return errors.New("an import was not seen yet")
				}
			}
			for i, c := range clients {
				if _, err := c.Create(t.Context(), sandbox.Spec{Image: noRegistry}, atoll.CreateOptions{}); err != nil {
					return err
				}
				digests = append(digests, meaning(t, machines[i]))
			}
			rows, err := store.Read(t.Context(), db, func(tx *store.Tx) ([]store.ImageName, error) { return tx.Operator().ImageNames(t.Context()) })
			if err != nil || len(rows) != 1 || digests[0] != digests[1] || digests[0] != rows[0].Image {
				return errors.New("they use " + strings.Join(digests, " and "))
			}
			return nil
		})
	}
}

// The same, with a daemon that is alone: what was imported while it did not run, and by
// an earlier version, is saved, and comes back after its image store was lost. Damage
// is refused.
func TestImportOutlivesImageStore(t *testing.T) {
	for _, plain := range []bool{false, true} {
		m, blobs := daemontest.New(t), t.TempDir()
		digest := importAs(t, m, noRegistry, "first")
		with := func(o *daemon.Options) {
			withImages(m, "", o)
			o.Blobs, o.PlainSnapshots = blobs, plain
		}
		d := m.Start(t, with)
		recorded(t, m.Store(t), noRegistry, digest)
		if saved := imageSaved(t, m.Store(t), "default", digest); saved.Archived.Encrypted == plain {
			t.Errorf("it is encrypted: %v", saved.Archived.Encrypted)
		}
		loseImages(t, m)
		if got := uses(t, m, daemontest.Client(t, d), ""); got != digest {
			t.Errorf("the name means %s, want %s", got, digest)
		}
		ok(t, d.Close())
		loseImages(t, m)
		all := packs(t, blobs)
		for _, pack := range all {
			data, err := os.ReadFile(pack)
			ok(t, err)
			for i := len(data) / 3; i < len(data)/2; i++ {
				data[i] ^= 0xff
			}
			ok(t, os.WriteFile(pack, data, 0o600))
		}
		d = m.Start(t, with)
		_, err := daemontest.Client(t, d).Create(t.Context(), sandbox.Spec{Image: noRegistry}, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeInvalid)
		for _, pack := range all { // cut off
			ok(t, os.Truncate(pack, 100))
		}
		_, err = daemontest.Client(t, d).Create(t.Context(), sandbox.Spec{Image: noRegistry}, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeInvalid)
		noImages(t, m)
	}
}

// Without --blobs nothing is recorded, and a removed name leaves nothing.
func TestImportsWithoutBlobs(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { withImages(m, "", o) })
	digest := importAs(t, m, noRegistry, "first")
	if got := uses(t, m, daemontest.Client(t, d), ""); got != digest {
		t.Errorf("the name means %s, want %s", got, digest)
	}
	ok(t, imagesOf(t, m).Remove(t.Context(), noRegistry))
	rows, err := store.Read(t.Context(), m.Store(t), func(tx *store.Tx) ([]store.ImageName, error) { return tx.Operator().ImageNames(t.Context()) })
	ok(t, err)
	left, err := os.ReadDir(filepath.Join(m.Dir, "images", "refs"))
	ok(t, err)
	if len(rows) != 0 || len(left) != 0 {
		t.Errorf("recorded is %+v, and %v is left", rows, left)
	}
}

// A daemon that is killed while it records an import or a removal does that after its
// next start, and saves the image once.
func TestKilledWhileRecordingImport(t *testing.T) {
	for _, point := range []string{"imagename.marked", "imagename.recorded", "saveimage.stored"} {
		m, blobs := daemontest.New(t), t.TempDir()
		killed := func(change func()) {
			t.Helper()
			reached := make(chan struct{})
			once := sync.OnceFunc(func() { close(reached) })
			d := m.Start(t, func(o *daemon.Options) {
				withImages(m, "", o)
				o.Blobs = blobs
				o.Fault = func(at string) error {
					if at != point {
						return nil
					}
					once()
					return errors.New("killed")
				}
			})
			change()
			<-reached
			ok(t, d.Close())
		}
		digest := ""
		killed(func() { digest = importAs(t, m, noRegistry, "first") })
		with := func(o *daemon.Options) {
			withImages(m, "", o)
			o.Blobs = blobs
		}
		d := m.Start(t, with)
		recorded(t, m.Store(t), noRegistry, digest)
		loseImages(t, m)
		if got := uses(t, m, daemontest.Client(t, d), ""); got != digest {
			t.Errorf("%s: the name means %s, want %s", point, got, digest)
		}
		ok(t, d.Close())
		if point == "saveimage.stored" {
			ok(t, imagesOf(t, m).Remove(t.Context(), noRegistry))
		} else {
			killed(func() { ok(t, imagesOf(t, m).Remove(t.Context(), noRegistry)) })
		}
		m.Start(t, with)
		recorded(t, m.Store(t), noRegistry, "")
		repeat(t, "sweeping the blob store", func() error {
			if left := packs(t, blobs); len(left) > 0 {
				return errors.New(strings.Join(left, " "))
			}
			return nil
		})
	}
}
