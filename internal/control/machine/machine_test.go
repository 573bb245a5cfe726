package machine_test

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/machine"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func open(t *testing.T) (*machine.Service, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, &coretest.Provider{})
	return machine.New(r.Core, machine.Config{
		Scratch: t.TempDir(), Sandboxes: r.Records, Providers: r.Providers,
		Memory:    func() (free, total int64) { return 3, 8 },
		Images:    func(context.Context) ([]string, error) { return []string{"alpine:3", "debian:12", "private:1"}, nil },
		ImageName: func(image string) string { return image },
	}), r
}

// add records a sandbox of a tenant that has an image.
func add(t *testing.T, r *sandboxtest.Rig, tenant string, id sandbox.ID, state sandbox.State, image string) {
	t.Helper()
	var b store.Sandbox
	b.ID, b.State, b.Image, b.Spec.Image, b.Resources.Memory = id, state, image, image, 1
	if state == sandbox.Stopped {
		b.Rest.Kept = "sn-" + string(id)
	}
	coretest.Add(t, r.Core, tenant, b)
}

// A tenant learns nothing of the sandboxes and images of others. The owner of the
// machine and the owner's keys see all.
func TestLoad(t *testing.T) {
	s, r := open(t)
	add(t, r, coretest.Acme, "sb-1", sandbox.Running, "debian:12")
	add(t, r, coretest.Rival, "sb-2", sandbox.Running, "private:1")
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		count  int
		images []string
	}{
		{"the owner of the machine", coretest.Owner(t), 2, []string{"alpine:3", "debian:12", "private:1"}},
		{"a key of the owner", coretest.As(t, key.DefaultTenant, key.Read), 2, []string{"alpine:3", "debian:12", "private:1"}},
		{"a tenant", coretest.As(t, coretest.Acme, key.Read), 1, []string{"debian:12"}},
		{"another tenant", coretest.As(t, coretest.Rival, key.Read), 1, []string{"private:1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := s.Load(tt.ctx)
			coretest.OK(t, err)
			if l.Sandboxes != tt.count || !slices.Equal(l.Images, tt.images) {
				t.Errorf("there are %d sandboxes and the images %v, want %d and %v", l.Sandboxes, l.Images, tt.count, tt.images)
			}
			if l.MemoryFree != 3 || l.MemoryTotal != 8 || l.Isolation != sandbox.IsolationKernel {
				t.Errorf("the machine has %d of %d bytes free and gives %s, want 3 of 8 and kernel", l.MemoryFree, l.MemoryTotal, l.Isolation)
			}
		})
	}
}

// Data about all tenants is for the owner of the machine.
func TestOwnersOnly(t *testing.T) {
	s, _ := open(t)
	for name, tt := range map[string]struct {
		do         func(context.Context) error
		ownersKeys bool // keys of the owner may, too
	}{
		"observe":  {s.MayObserve, true},
		"diagnose": {s.MayDiagnose, false},
		"backup":   {func(ctx context.Context) error { return backup(s, ctx) }, false},
		"images":   {func(ctx context.Context) error { _, err := s.ImageUses(ctx); return err }, false},
	} {
		t.Run(name, func(t *testing.T) {
			coretest.OK(t, tt.do(coretest.Owner(t)))
			coretest.WantCode(t, tt.do(coretest.As(t, coretest.Acme, key.Admin)), sandbox.CodeDenied)
			want := sandbox.CodeDenied
			if tt.ownersKeys {
				want = ""
			}
			coretest.WantCode(t, tt.do(coretest.As(t, key.DefaultTenant, key.Read)), want)
		})
	}
}

func backup(s *machine.Service, ctx context.Context) error {
	copied, err := s.Backup(ctx)
	if err != nil {
		return err
	}
	return copied.Close()
}

// An image is needed by what would be made from it again. Running sandboxes have
// theirs already, and saved states belong to their sandboxes.
func TestNeededImages(t *testing.T) {
	s, r := open(t)
	add(t, r, coretest.Acme, "sb-1", sandbox.Running, "sha256:running")
	add(t, r, coretest.Acme, "sb-2", sandbox.Stopped, "sha256:stopped")
	add(t, r, key.DefaultTenant, "sb-3", sandbox.Stopped, "host")
	for id, owner := range map[string]sandbox.ID{"named": "", "kept": "sb-2"} {
		snapshot := store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-" + id, Name: id}, Owner: owner, Spec: sandbox.Spec{Image: "sha256:" + id}}
		if owner != "" {
			snapshot.Name = ""
		}
		r.Save(t, coretest.Acme, snapshot, true)
	}
	_, err := store.Write(t.Context(), r.Core.Store, func(tx *store.Tx) (store.Template, error) {
		return tx.Templates().Set(t.Context(), store.Template{Tenant: key.DefaultTenant, Template: durable.Template{Name: "base", Tag: "v1", Image: "sha256:template"}})
	})
	coretest.OK(t, err)
	all, err := s.NeededImages(t.Context())
	coretest.OK(t, err)
	want := []operator.ImageUse{
		{Image: "sha256:stopped", By: "the sandbox sb-2, which is stopped of the tenant acme"},
		{Image: "sha256:named", By: "the snapshot named of the tenant acme"},
		{Image: "sha256:template", By: "the template base:v1"},
	}
	if !slices.Equal(all, want) {
		t.Errorf("needed are %+v, want %+v", all, want)
	}
}

// Copies that a daemon left behind are removed, and nothing else.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".backup-1", ".backup-2", "image"} {
		coretest.OK(t, os.MkdirAll(dir+"/"+name+"/x", 0o700))
	}
	coretest.OK(t, machine.Sweep(dir))
	left, err := os.ReadDir(dir)
	coretest.OK(t, err)
	if len(left) != 1 || left[0].Name() != "image" {
		t.Errorf("left are %v, want the image alone", left)
	}
}
