package fake_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

func as[T any](t testing.TB, v any) T {
	t.Helper()
	out, ok := driver.As[T](v)
	if !ok {
		t.Fatalf("%T lacks an interface", v)
	}
	return out
}

// A paused sandbox does nothing for any time, and continues where it was.
func TestPauseStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inst := instance(t, fake.New(fake.Options{}))
		p, err := inst.Exec(t.Context(), &sandbox.Command{Shell: "while :; do echo x >> /tmp/ticks; sleep 1; done", Background: true})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		time.Sleep(3500 * time.Millisecond)
		pauser, files := as[driver.Pauser](t, inst), as[driver.FileSystem](t, inst)
		if err := pauser.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := files.Stat(short, "/tmp/ticks"); sandbox.CodeOf(err) != sandbox.CodeTimeout {
			t.Errorf("a paused sandbox answered: %v", err)
		}
		if err := pauser.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		info, err := files.Stat(t.Context(), "/tmp/ticks")
		if err != nil || info.Size < 8 || info.Size > 12 {
			t.Errorf("it went on meanwhile: %d bytes, %v", info.Size, err)
		}
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSnapshotRestore(t *testing.T) {
	root := t.TempDir()
	p := fake.New(fake.Options{SnapshotDir: root})
	inst := instance(t, p)
	if _, exit := run(t, inst, "echo kept > /tmp/f; chmod 600 /tmp/f; mkdir /new; rm /bin/wc; ln -s /tmp/f /link"); exit.Code != 0 {
		t.Fatalf("%+v", exit)
	}
	dir := filepath.Join(root, "snap", "files")
	snap, err := as[driver.Snapshotter](t, inst).Snapshot(t.Context(), driver.SnapshotOptions{ID: "snap"})
	if err != nil || snap.Ref.Kind != driver.SnapshotFilesystem || snap.Size == 0 {
		t.Fatalf("%+v %v", snap, err)
	}
	if out, _ := run(t, inst, "echo on"); out != "on\n" {
		t.Errorf("the sandbox does not go on: %q", out)
	}
	restorer := as[driver.Restorer](t, p)
	again, restored, err := restorer.Restore(t.Context(), &sandbox.Spec{ID: "two", Name: "two"}, snap.Ref)
	if err != nil || restored.Memory {
		t.Fatalf("%+v %v", restored, err)
	}
	defer func() { _ = again.Destroy(t.Context()) }()
	if out, exit := run(t, again, "cat /link /etc/hostname; ls -d /new; wc /tmp/f"); !strings.HasPrefix(out, "kept\ntwo\n/new\n") || exit.Code != 127 {
		t.Errorf("%q %+v", out, exit)
	}
	tree := filepath.Join(dir, "tree.tar")
	data, err := os.ReadFile(tree)
	if err != nil {
		t.Fatal(err)
	}
	altered := append([]byte(nil), data...)
	altered[len(altered)/2] ^= 1
	for what, content := range map[string][]byte{"truncated": data[:len(data)-1], "altered": altered} {
		if err := os.WriteFile(tree, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := restorer.Restore(t.Context(), &sandbox.Spec{ID: "three"}, snap.Ref); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestSnapshotAndStop(t *testing.T) {
	p := fake.New(fake.Options{SnapshotDir: t.TempDir()})
	inst := instance(t, p)
	if _, err := as[driver.Snapshotter](t, inst).Snapshot(t.Context(), driver.SnapshotOptions{ID: "snap", Stop: true}); err != nil {
		t.Fatal(err)
	}
	if exit, err := inst.Wait(t.Context()); err != nil || exit.Reason != sandbox.ReasonKilled {
		t.Errorf("%+v %v", exit, err)
	}
}
