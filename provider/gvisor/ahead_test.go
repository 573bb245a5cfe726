package gvisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// TestForkStartsAhead: a kernel is started for a copy while its parent is
// written down, is a sandbox of its own like any other, and is used once.
func TestForkStartsAhead(t *testing.T) {
	p, _, from := pooled(t, 0)
	source := create(t, p, sandbox.Spec{ID: "source", Image: "host", Hostname: "source"})
	sh(t, source, "echo parent > /root/mark")
	dir := snapshot(t, source, driver.SnapshotOptions{Memory: true, Brief: true, Copies: 1})
	twin, how := restore(t, p, dir, sandbox.Spec{ID: "first", Image: "host", Hostname: "first", Env: map[string]string{"WHO": "first"}})
	if !how.Memory || !from("first") {
		t.Errorf("the copy that was announced: %+v, made ahead: %v", how, from("first"))
	}
	if o := sh(t, twin, "hostname; echo $WHO; cat /root/mark"); o.stdout != "first\nfirst\nparent\n" {
		t.Errorf("it says %+v", o)
	}
	twin, how = restore(t, p, dir, sandbox.Spec{ID: "second", Image: "host", Hostname: "second"})
	if !how.Memory || from("second") {
		t.Errorf("a copy that was not announced: %+v, made ahead: %v", how, from("second"))
	}
	stillWorks(t, twin)
}

// TestAheadIsLetGo: kernels for copies that are not made do not stay.
func TestAheadIsLetGo(t *testing.T) {
	state := t.TempDir()
	boxes := func() (names []string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(state, "boxes"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	source := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	opts := driver.SnapshotOptions{Memory: true, Brief: true, Copies: 3}

	// A snapshot that fails: its directory has something in it.
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "kernel"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := source.(driver.Snapshotter).Snapshot(t.Context(), full, opts); err == nil {
		t.Fatal("a snapshot was written over another one")
	}
	stillWorks(t, source)

	// One that no copy is made of, and one whose copy cannot use it.
	snapshot(t, source, opts)
	dir := snapshot(t, source, opts)
	small, how := restore(t, p, dir, sandbox.Spec{ID: "small", Image: "host", Resources: sandbox.Resources{Memory: 512 << 20}})
	if !how.Memory {
		t.Errorf("a copy with another limit: %+v", how)
	}
	stillWorks(t, small)
	if err := small.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := source.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if left := boxes(); len(left) > 0 {
		t.Errorf("left are %s", strings.Join(left, ", "))
	}
}
