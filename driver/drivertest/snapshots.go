package drivertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

func newSnapshotID() string { return IDPrefix + "sn-" + strings.ToLower(rand.Text()[:13]) }

func (t *caseT) keeper() driver.SnapshotKeeper { return t.keeperOf(t.provider) }

func (t *caseT) keeperOf(p driver.Provider) driver.SnapshotKeeper {
	k, ok := driver.As[driver.SnapshotKeeper](p)
	if !ok {
		t.Fatalf("snapshot is declared, but the provider is no driver.SnapshotKeeper")
	}
	return k
}

// removeLater removes a snapshot when the case ends.
func (t *caseT) removeLater(ref driver.SnapshotRef) {
	t.Cleanup(func(ctx context.Context) { t.ok("RemoveSnapshot", t.keeper().RemoveSnapshot(ctx, ref)) })
}

// listedSnapshot finds a snapshot in the list.
func (t *caseT) listedSnapshot(p driver.Provider, id string) (f driver.FoundSnapshot, there bool) {
	for one, err := range t.keeperOf(p).Snapshots(t.ctx) {
		t.ok("Snapshots", err)
		if one.ID == id {
			f, there = one, true
		}
	}
	return f, there
}

// wantLost checks that an error says that the snapshot is missing.
func (t *caseT) wantLost(what string, err error) {
	t.wantCode(what, err, sandbox.CodeNotFound)
	if !errors.Is(err, driver.ErrSnapshotLost) {
		t.Errorf("%s: the error is no driver.ErrSnapshotLost: %v", what, err)
	}
}

var keeperCases = []testCase{
	{"restore/elsewhere", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh("echo kept >kept")
		text, err := json.Marshal(b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)}))
		t.ok("Marshal", err)
		var ref driver.SnapshotRef
		t.ok("Unmarshal", json.Unmarshal(text, &ref))
		r, _ := driver.As[driver.Restorer](t.connect())
		inst, _, err := r.Restore(t.ctx, t.spec(), ref)
		if err != nil {
			t.Fatalf("Restore in another process: %v", t.vet(err))
		}
		t.Cleanup(func(ctx context.Context) { t.ok("Destroy", inst.Destroy(ctx)) })
		twin := t.attach(inst)
		twin.dir = b.dir
		t.want(twin.sh("cat kept"), "kept\n")
	}},
	{"restore/removed", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh("echo kept >kept")
		ref := b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
		twin, _ := t.restore(ref)
		twin.dir = b.dir
		for range 2 {
			t.ok("RemoveSnapshot", t.keeper().RemoveSnapshot(t.ctx, ref))
		}
		t.want(twin.sh("cat kept"), "kept\n")
		_, _, err := t.tryRestore(t.spec(), ref)
		t.wantLost("Restore of a removed snapshot", err)
	}},
	{"restore/foreign", capSnapshot, func(t *caseT) {
		good := t.fresh().snapshot(driver.SnapshotOptions{})
		if good.Provider == "" || good.Data == "" {
			t.Errorf("a snapshot is referred to as %+v", good)
		}
		foreign := good
		foreign.Provider += "-other"
		t.refusesRestore("a snapshot of another provider", foreign, sandbox.CodeInvalid)
		t.wantCode("RemoveSnapshot of another provider", t.keeper().RemoveSnapshot(t.ctx, foreign), sandbox.CodeInvalid)
		for _, data := range []string{"", "..", "../../etc", "/", "a/b", strings.Repeat("x", 5000), "no-such-snapshot"} {
			bad := good
			bad.Data = data
			t.refusesRestore("an invalid reference", bad, sandbox.CodeInvalid, sandbox.CodeNotFound)
		}
		twin, _ := t.restore(good)
		t.want(twin.argv("echo", "alive"), "alive\n")
	}},
	{"snapshot/found", capSnapshot, func(t *caseT) {
		id := newSnapshotID()
		s := t.fresh().fullSnapshot(driver.SnapshotOptions{ID: id, Memory: t.declared(capMemory)})
		other := t.connect()
		found, err := t.keeperOf(other).FindSnapshot(t.ctx, id)
		t.ok("FindSnapshot", err)
		if found.Ref != s.Ref || found.Size != s.Size {
			t.Errorf("a snapshot is found as %+v, want %+v", found, s)
		}
		if f, ok := t.listedSnapshot(other, id); !ok || f.Ref != s.Ref || f.Size != s.Size {
			t.Errorf("a snapshot is listed as %+v, %v, want %+v", f, ok, s)
		}
		t.ok("RemoveSnapshot", t.keeperOf(other).RemoveSnapshot(t.ctx, s.Ref))
		_, err = t.keeper().FindSnapshot(t.ctx, id)
		t.wantLost("FindSnapshot of a removed snapshot", err)
		if f, ok := t.listedSnapshot(t.provider, id); ok {
			t.Errorf("a removed snapshot is listed as %+v", f)
		}
	}},
	{"snapshot/taken-id", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh("echo first >who")
		id := newSnapshotID()
		ref := b.snapshot(driver.SnapshotOptions{ID: id})
		b.mustSh("echo second >who")
		_, err := b.trySnapshot(driver.SnapshotOptions{ID: id})
		t.wantCode("Snapshot with the ID of another", err, sandbox.CodeAlreadyExists)
		twin, _ := t.restore(ref)
		twin.dir = b.dir
		t.want(twin.sh("cat who"), "first\n")
	}},
	{"snapshot/copied", capSnapshot, func(t *caseT) {
		c, ok := driver.As[driver.SnapshotCopier](t.provider)
		if !ok {
			return
		}
		b := t.fresh()
		b.mustSh("echo kept >kept")
		ref := b.snapshot(driver.SnapshotOptions{})
		s, err := c.CopySnapshot(t.ctx, ref, newSnapshotID())
		t.ok("CopySnapshot", err)
		t.removeLater(s.Ref)
		t.ok("RemoveSnapshot", t.keeper().RemoveSnapshot(t.ctx, ref))
		_, err = c.CopySnapshot(t.ctx, ref, newSnapshotID())
		t.wantLost("CopySnapshot of a removed snapshot", err)
		twin, _ := t.restore(s.Ref)
		twin.dir = b.dir
		t.want(twin.sh("cat kept"), "kept\n")
	}},
	{"snapshot/exported", capSnapshot, exportAndImport},
}

// exportMarker appears in the bytes of a snapshot, unless they are compressed.
const exportMarker = "drivertest-marker-in-a-file"

func exportAndImport(t *caseT) {
	from, ok := driver.As[driver.SnapshotExporter](t.provider)
	if !ok {
		return
	}
	b := t.fresh()
	b.mustSh("echo " + exportMarker + " >file")
	opts := driver.SnapshotOptions{Memory: t.declared(capMemory)}
	ref := b.snapshot(opts)
	var packed bytes.Buffer
	t.ok("ExportSnapshot", from.ExportSnapshot(t.ctx, ref, &packed))
	t.ok("RemoveSnapshot", t.keeper().RemoveSnapshot(t.ctx, ref))
	t.wantLost("ExportSnapshot of a removed snapshot", from.ExportSnapshot(t.ctx, ref, new(bytes.Buffer)))

	into, _ := driver.As[driver.SnapshotExporter](t.connect())
	id := newSnapshotID()
	whole := packed.Bytes()
	for _, n := range []int{0, 1, len(whole) / 2, len(whole) - 1025} {
		_, err := into.ImportSnapshot(t.ctx, id, bytes.NewReader(whole[:n]))
		t.wantCode("ImportSnapshot of what is cut off", err, sandbox.CodeInvalid)
	}
	_, err := into.ImportSnapshot(t.ctx, id, strings.NewReader(strings.Repeat("this is no snapshot ", 1000)))
	t.wantCode("ImportSnapshot of something else", err, sandbox.CodeInvalid)
	if f, ok := t.listedSnapshot(t.provider, id); ok {
		t.Errorf("the failed import left %+v", f)
	}
	t.refusesAltered(into, whole)

	s, err := into.ImportSnapshot(t.ctx, id, bytes.NewReader(whole))
	t.ok("ImportSnapshot", err)
	t.removeLater(s.Ref)
	if s.Ref.Kind != kindOf(opts) || s.Size <= 0 {
		t.Errorf("an imported snapshot is described as %+v", s)
	}
	_, err = into.ImportSnapshot(t.ctx, id, bytes.NewReader(whole))
	t.wantCode("ImportSnapshot under an ID that is taken", err, sandbox.CodeAlreadyExists)
	twin, how := t.restore(s.Ref)
	if how.Memory != opts.Memory {
		t.Errorf("an imported snapshot is restored as %+v", how)
	}
	twin.dir = b.dir
	t.want(twin.sh("cat file"), exportMarker+"\n")
}

// refusesAltered checks that a snapshot with a changed byte is rejected, at the
// latest when it is restored.
func (t *caseT) refusesAltered(into driver.SnapshotExporter, whole []byte) {
	at := bytes.Index(whole, []byte(exportMarker))
	if at < 0 {
		at = len(whole) / 2
	}
	altered := bytes.Clone(whole)
	altered[at] ^= 0x20
	s, err := into.ImportSnapshot(t.ctx, newSnapshotID(), bytes.NewReader(altered))
	if err != nil {
		t.wantCode("ImportSnapshot of what was altered", err, sandbox.CodeInvalid)
		return
	}
	t.removeLater(s.Ref)
	t.refusesRestore("an imported snapshot that was altered", s.Ref, sandbox.CodeInvalid)
}
