package daemon_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// imageSaved waits until an image of a tenant's templates is in the blob store.
func imageSaved(t *testing.T, s *store.Store, tenant, digest string) store.TemplateImage {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		i, err := store.Read(t.Context(), s, func(tx *store.Tx) (store.TemplateImage, error) {
			return tx.Templates().SavedImage(t.Context(), tenant, digest)
		})
		if err == nil {
			return i
		}
		if sandbox.CodeOf(err) != sandbox.CodeNotFound || time.Now().After(deadline) {
			t.Fatalf("the image is not saved: %v", err)
		}
	}
}

// loseImages removes all images of a machine.
func loseImages(t *testing.T, m *daemontest.Machine) {
	t.Helper()
	for _, dir := range []string{"images", "refs", "rootfs"} {
		ok(t, os.RemoveAll(filepath.Join(m.Dir, "images", dir)))
		ok(t, os.MkdirAll(filepath.Join(m.Dir, "images", dir), 0o700))
	}
}

// noImages fails if a machine has an image, or a part of one.
func noImages(t *testing.T, m *daemontest.Machine) {
	t.Helper()
	for _, dir := range []string{"images", "rootfs", "tmp"} {
		left, err := os.ReadDir(filepath.Join(m.Dir, "images", dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) != 0 {
			t.Errorf("the machine has %v in %s, %v; want nothing", left, dir, err)
		}
	}
}

// startControls starts two control daemons with one database, one blob store, one key
// of workspaces and one node. with has the options of them.
func startControls(t *testing.T, address, blobs string, node *nodeDaemon) (m1, m2 *daemontest.Machine, d1, d2 *daemon.Daemon, with func(*daemontest.Machine) func(*daemon.Options)) {
	t.Helper()
	keys := nodeKeys(t, node)
	m1, m2 = daemontest.New(t), daemontest.New(t)
	with = func(m *daemontest.Machine) func(*daemon.Options) {
		return func(o *daemon.Options) {
			withImages(m, "", o)
			o.Store, o.Blobs = address, blobs
			o.Fleet = &fleet.Config{Nodes: nodeList(node), KeyFile: keys, Every: 50 * time.Millisecond}
		}
	}
	d1 = m1.Start(t, with(m1))
	secret, err := os.ReadFile(filepath.Join(m1.Dir, "workspace.key"))
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(m2.Dir, "workspace.key"), secret, 0o600))
	return m1, m2, d1, m2.Start(t, with(m2)), with
}

// A template that one control daemon built is used through another one, also when the
// first one and its machine are lost: on its machine, on nodes and in builds. It comes
// from the blob store once. Other tenants get it if it is public. Removing the
// template removes it from the blob store.
func TestControlsShareTemplates(t *testing.T) {
	address, blobs := storetest.Postgres(t), t.TempDir()
	a := newNode(t, 32<<30)
	m1, m2, d1, d2, _ := startControls(t, address, blobs, a)
	tokens := map[string]string{}
	for _, tenant := range []string{"acme", "rival"} {
		k, err := daemontest.Client(t, d1).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: []string{"admin"}})
		ok(t, err)
		tokens[tenant] = k.Token
	}
	importBase(t, m1)
	digest := build(t, daemontest.Bearer(t, d1, tokens["acme"]), "tools")
	saved := imageSaved(t, openStore(t, address), "acme", digest)
	if !saved.Archived.Encrypted {
		t.Error("it is not encrypted")
	}
	ok(t, d1.Close())
	ok(t, os.RemoveAll(filepath.Join(m1.Dir, "images")))

	acme, rival := daemontest.Bearer(t, d2, tokens["acme"]), daemontest.Bearer(t, d2, tokens["rival"])
	for _, ref := range []string{"template:tools", "template:acme/tools", digest} {
		for _, provider := range []string{"fake", "node-a", ""} {
			_, err := rival.Create(t.Context(), sandbox.Spec{Image: ref, Provider: provider}, atoll.CreateOptions{})
			wantCode(t, err, sandbox.CodeNotFound)
		}
	}
	noImages(t, m2)
	if all := imagesOn(t, a); len(all) != 0 {
		t.Fatalf("the node has %+v", all)
	}
	for i, provider := range []string{"node-a", "fake", "node-a", ""} {
		create(t, acme, sandbox.Spec{Image: "template:tools", Provider: provider})
		if i == 0 {
			for _, pack := range packs(t, blobs) { // the others must not need them
				ok(t, os.Remove(pack))
			}
		}
	}
	if all := imagesOn(t, a); len(all) != 1 || all[0].Digest != saved.Lent || sent(t, a) != 1 {
		t.Errorf("the node has %+v after %d were sent, want %s, sent once", all, sent(t, a), saved.Lent)
	}
	made, err := acme.BuildTemplate(t.Context(), bytes.NewReader(filesTar(t, "Dockerfile", "FROM template:tools\nENV B=1\n")), atoll.BuildOptions{Name: "more"})
	ok(t, err)
	imageSaved(t, openStore(t, address), "acme", made.Image)
	_, err = acme.PublishTemplate(t.Context(), "more")
	ok(t, err)
	loseImages(t, m2)
	create(t, rival, sandbox.Spec{Image: "template:acme/more", Provider: "fake"})
	for _, name := range []string{"tools", "more"} {
		ok(t, acme.RemoveTemplate(t.Context(), name))
	}
	for deadline := time.Now().Add(time.Minute); len(packs(t, blobs)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the blob store still has %v", packs(t, blobs))
		}
	}
}

// A build comes first that needs the image of another daemon's template.
func TestBuildFromSavedTemplate(t *testing.T) {
	m, blobs := daemontest.New(t), t.TempDir()
	d := m.Start(t, func(o *daemon.Options) { o.Blobs = blobs })
	c := daemontest.Client(t, d)
	importBase(t, m)
	imageSaved(t, m.Store(t), "default", build(t, c, "tools"))
	loseImages(t, m)
	_, err := c.BuildTemplate(t.Context(), bytes.NewReader(filesTar(t, "Dockerfile", "FROM template:tools\nENV B=1\n")), atoll.BuildOptions{Name: "more"})
	ok(t, err)
}

// An attacker who can write to the bucket changes an image, or puts another one in
// its place. Nothing is started from that, and nothing of it is stored.
func TestAttackTemplateImageInBucket(t *testing.T) {
	for _, plain := range []bool{false, true} {
		m, blobs := daemontest.New(t), t.TempDir()
		d := m.Start(t, func(o *daemon.Options) {
			withImages(m, "", o)
			o.Blobs, o.PlainSnapshots = blobs, plain
		})
		c := daemontest.Client(t, d)
		importBase(t, m)
		first := build(t, c, "first")
		made, err := c.BuildTemplate(t.Context(), bytes.NewReader(filesTar(t, "Dockerfile", "FROM base:1\nENV EVIL=1\n")), atoll.BuildOptions{Name: "second"})
		ok(t, err)
		places := map[string]int{}
		for _, digest := range []string{first, made.Image} {
			places[digest] = imageSaved(t, m.Store(t), "default", digest).Archived.Version
		}
		loseImages(t, m)
		refused := func(what string) {
			t.Helper()
			before := len(running(t, m))
			_, err := c.Create(t.Context(), sandbox.Spec{Image: "template:first"}, atoll.CreateOptions{})
			wantCode(t, err, sandbox.CodeInvalid)
			if len(running(t, m)) != before {
				t.Errorf("%s: a sandbox was started", what)
			}
			noImages(t, m)
		}
		db := openSQL(t, filepath.Join(m.Dir, "atoll.db"))
		_, err = db.Exec("UPDATE template_images SET version = $1 WHERE image = $2", places[made.Image], first)
		ok(t, err)
		refused("another image in its place")
		// Also if the attacker knew how to make the digest of the archive fit.
		_, err = db.Exec("UPDATE template_images SET digest = (SELECT digest FROM template_images WHERE image = $1) WHERE image = $2", made.Image, first)
		ok(t, err)
		refused("another image with a digest of the archive that fits")
		_, err = db.Exec("UPDATE template_images SET version = $1, digest = (SELECT digest FROM template_images WHERE image = $2) WHERE image = $2", places[first], made.Image)
		ok(t, err)
		for _, pack := range packs(t, blobs) {
			data, err := os.ReadFile(pack)
			ok(t, err)
			for i := len(data) / 3; i < len(data)/2; i++ {
				data[i] ^= 0xff
			}
			ok(t, os.WriteFile(pack, data, 0o600))
		}
		refused("damage")
	}
}

// A daemon that is killed between saving an image and recording that saves it again,
// and leaves nothing of the first one.
func TestKilledWhileSavingTemplateImage(t *testing.T) {
	m, blobs := daemontest.New(t), t.TempDir()
	reached := make(chan struct{})
	var once atomic.Bool
	d := m.Start(t, func(o *daemon.Options) {
		withImages(m, "", o)
		o.Blobs = blobs
		o.Fault = func(at string) error {
			if at != "saveimage.stored" {
				return nil
			}
			if once.CompareAndSwap(false, true) {
				close(reached)
			}
			return errors.New("killed")
		}
	})
	base := importBase(t, m)
	digest := build(t, daemontest.Client(t, d), "tools")
	<-reached
	ok(t, d.Close())
	if len(packs(t, blobs)) == 0 {
		t.Fatal("nothing was stored")
	}
	d = m.Start(t, func(o *daemon.Options) {
		withImages(m, "", o)
		o.Blobs = blobs
	})
	imageSaved(t, m.Store(t), "default", digest)
	recorded(t, m.Store(t), "base:1", base.Digest)
	ok(t, imagesOf(t, m).Remove(t.Context(), "base:1"))
	recorded(t, m.Store(t), "base:1", "")
	loseImages(t, m)
	c := daemontest.Client(t, d)
	create(t, c, sandbox.Spec{Image: "template:tools"})
	ok(t, c.RemoveTemplate(t.Context(), "tools"))
	for deadline := time.Now().Add(time.Minute); len(packs(t, blobs)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the blob store still has %v", packs(t, blobs))
		}
	}
	if left, err := os.ReadDir(filepath.Join(m.Dir, ".transfers")); err == nil && len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}
