package gvisor_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// TestMemoryOutlivesGuest restores memory under an Atoll with another guest.
// The sandbox keeps its own guest and can be saved and restored again.
func TestMemoryOutlivesGuest(t *testing.T) {
	other := os.Getenv("ATOLL_KERNEL") // an atoll binary is a guest, too
	state := t.TempDir()
	first := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	second := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	second.UseGuest(other)

	in := create(t, first, sandbox.Spec{ID: "first", Image: "host"})
	own := in.(*gvisor.Instance).GuestDigest()
	proc := background(t, in, repl)
	if got := ask(t, proc, bufio.NewReader(proc.Stdout()), "x = 41"); got != "ok" {
		t.Fatalf("the source answers %q", got)
	}
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	if fresh := create(t, second, sandbox.Spec{ID: "fresh", Image: "host"}).(*gvisor.Instance); fresh.GuestDigest() == own {
		t.Fatal("both providers have the same guest")
	}
	for id, p := range map[sandbox.ID]*gvisor.Provider{"second": second, "third": first} {
		twin, how := restore(t, p, dir, sandbox.Spec{ID: id, Image: "host"})
		if !how.Memory {
			t.Fatalf("%s: the memory was not restored: %s", id, how.Why)
		}
		if got := twin.(*gvisor.Instance).GuestDigest(); got != own {
			t.Errorf("%s: its guest is %s, want that of the snapshot, %s", id, got, own)
		}
		again, out := reconnect(t, twin, proc.Info().ID, len("ok\n"))
		if got := ask(t, again, out, "x + 1"); got != "42" {
			t.Errorf("%s: it answers %q", id, got)
		}
		if got := sh(t, twin, "echo new").stdout; got != "new\n" {
			t.Errorf("%s: a new command says %q", id, got)
		}
		dir = snapshot(t, twin, driver.SnapshotOptions{Memory: true, Transient: true})
	}
}

// otherEngine changes the engine in a sandbox's record and attaches to the
// sandbox again.
func otherEngine(t *testing.T, state string, id sandbox.ID) driver.Instance {
	t.Helper()
	file := filepath.Join(state, "boxes", string(id), "record.json")
	js, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(js, &record); err != nil {
		t.Fatal(err)
	}
	record["engine"] = "v0.0.0-20200101000000-000000000000+0"
	if js, err = json.Marshal(record); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, js, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	in, err := p.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestMemoryOfAnotherEngine checks that a snapshot of memory that this Atoll
// could not restore is refused without side effects, and that a snapshot of the
// files works.
func TestMemoryOfAnotherEngine(t *testing.T) {
	state := t.TempDir()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	create(t, p, sandbox.Spec{ID: "old", Image: "host"})
	in := otherEngine(t, state, "old")
	sh(t, in, "echo kept >/root/file; sleep 1000 >/dev/null 2>&1 </dev/null &")
	for _, opts := range []driver.SnapshotOptions{{Memory: true}, {Memory: true, Stop: true}, {Memory: true, Transient: true}} {
		opts.ID = newSnapshotID()
		_, err := in.(driver.Snapshotter).Snapshot(t.Context(), opts)
		if code := p.ErrorCode(err); code != sandbox.CodeUnsupported {
			t.Errorf("%+v: got %v, want unsupported", opts, err)
		}
		for f, err := range p.Snapshots(t.Context()) {
			if err != nil || f.ID == opts.ID {
				t.Errorf("%+v: it wrote %+v (%v)", opts, f, err)
			}
		}
		if got := sh(t, in, "cat /root/file").stdout; got != "kept\n" {
			t.Errorf("%+v: the sandbox says %q afterwards", opts, got)
		}
	}
	dir := snapshot(t, in, driver.SnapshotOptions{})
	twin, _ := restore(t, p, dir, sandbox.Spec{ID: "new", Image: "host"})
	if got := sh(t, twin, "cat /root/file").stdout; got != "kept\n" {
		t.Errorf("the copy of its files says %q", got)
	}
}

// TestStateFormat checks that the inputs of the state format are unchanged.
func TestStateFormat(t *testing.T) {
	const format, digest = "2", "1d072cf52699439d"
	bundle, err := gvisor.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(bundle))
	if got := hex.EncodeToString(sum[:8]); kernel.StateFormat != format || got != digest {
		t.Errorf("kernels are started with\n%s\nwhose digest is %s, and was %s in format %s; this is %s.\nIf what was saved before cannot be restored any more, raise kernel.StateFormat. Then put both values here.",
			strings.ReplaceAll(bundle, " ", "\n"), got, digest, format, kernel.StateFormat)
	}
}
