package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// snapshotsOn returns the snapshots that a node has, whoever took them.
func snapshotsOn(t *testing.T, n *nodeDaemon) (all []durable.Snapshot) {
	t.Helper()
	for s, err := range n.client(t).Snapshots(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// newIsleWith is newIsle with a blob store of the control daemon.
func newIsleWith(t *testing.T, blobs string, plain bool) *isle {
	t.Helper()
	s := &isle{m: daemontest.New(t), a: newNode(t, 32<<30), b: newNode(t, 16<<30), blobs: blobs, plain: plain}
	s.start(t)
	return s
}

// A snapshot that was saved on one node starts sandboxes on another one, also if
// the first one is dead, and that one fetches it once. Removing it removes all of
// its copies.
func TestNodesShareSnapshots(t *testing.T) {
	blobs := t.TempDir()
	s := newIsleWith(t, blobs, false)
	sb := s.create(t, sandbox.Spec{Name: "one", Env: map[string]string{"TOKEN": "t"}})
	if sb.Info().Provider != "node-a" {
		t.Fatalf("placed: %+v; want it on a", sb.Info())
	}
	shell(t, sb, "echo far > /f")
	snap := saved(t, sb, "before")
	if !snap.Encrypted {
		t.Error("it is not encrypted")
	}
	if out := shell(t, s.create(t, sandbox.Spec{Snapshot: "before"}), "cat /f"); out != "far\n" {
		t.Errorf("on its own node: %q", out)
	}
	if len(snapshotsOn(t, s.b)) != 0 {
		t.Error("b has a copy that it does not need yet")
	}

	s.a.kill(t)
	s.state(t, "a", operator.NodeUnreachable)
	for i := range 2 {
		got := s.create(t, sandbox.Spec{Snapshot: "before"})
		if got.Info().Provider != "node-b" {
			t.Fatalf("placed: %+v; want it on b, because a is dead", got.Info())
		}
		if out := shell(t, got, "cat /f; echo $TOKEN"); out != "far\nt\n" {
			t.Errorf("sandbox %d on the other node: %q", i, out)
		}
		copies, err := got.Fork(t.Context(), durable.ForkRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if out := shell(t, copies[0], "cat /f"); out != "far\n" || copies[0].Info().Provider != "node-b" {
			t.Errorf("its fork, %+v: %q", copies[0].Info(), out)
		}
		all := packs(t, blobs)
		if i == 0 && len(all) == 0 {
			t.Fatal("the blob store has no pack")
		}
		for _, pack := range all { // the second one must not need them
			if err := os.Remove(pack); err != nil {
				t.Fatal(err)
			}
		}
	}
	if all := snapshotsOn(t, s.b); len(all) != 1 || all[0].Name != snap.ID {
		t.Errorf("b has %+v, want one copy", all)
	}

	s.a.start(t)
	s.state(t, "a", operator.NodeReady)
	if err := s.RemoveSnapshot(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*nodeDaemon{s.a, s.b} {
		if all := snapshotsOn(t, n); len(all) != 0 {
			t.Errorf("a node has %+v after the removal", all)
		}
	}
}

// The same without encryption. A node that is only cordoned lends its snapshots,
// too, and a node can be named. What is not a node cannot use them.
func TestNodesLendSnapshots(t *testing.T) {
	s := newIsleWith(t, t.TempDir(), true)
	sb := s.create(t, sandbox.Spec{Name: "one"})
	shell(t, sb, "echo far > /f")
	saved(t, sb, "before")
	named := s.create(t, sandbox.Spec{Snapshot: "before", Provider: "node-b"})
	if out := shell(t, named, "cat /f"); out != "far\n" || named.Info().Provider != "node-b" {
		t.Errorf("with the node named, %+v: %q", named.Info(), out)
	}
	_, err := s.Create(t.Context(), sandbox.Spec{Snapshot: "before", Provider: "fake"})
	wantCode(t, err, sandbox.CodeInvalid)
	s.cordon(t, "a", true)
	if got := s.create(t, sandbox.Spec{Snapshot: "before"}); got.Info().Provider != "node-b" {
		t.Errorf("placed: %+v; want it on b, because a is cordoned", got.Info())
	}
	// A snapshot of what came from a copy is one like any other.
	saved(t, named, "later")
	s.cordon(t, "a", false)
	if out := shell(t, s.create(t, sandbox.Spec{Snapshot: "later", Provider: "node-a"}), "cat /f"); out != "far\n" {
		t.Errorf("back on a: %q", out)
	}
}

// An attacker who can write to the bucket changes a snapshot, or puts another one
// in its place. Nothing is started from that on any node.
func TestAttackNodesSnapshotInBucket(t *testing.T) {
	for _, plain := range []bool{false, true} {
		blobs := t.TempDir()
		s := newIsleWith(t, blobs, plain)
		sb := s.create(t, sandbox.Spec{Name: "one"})
		shell(t, sb, "echo first > /f")
		saved(t, sb, "first")
		shell(t, sb, "echo second > /f")
		saved(t, sb, "second")
		db := openSQL(t, filepath.Join(s.m.Dir, "atoll.db"))
		if _, err := db.Exec("UPDATE snapshots SET version = (SELECT version FROM snapshots WHERE name = 'first') WHERE name = 'second'"); err != nil {
			t.Fatal(err)
		}
		_, err := s.Create(t.Context(), sandbox.Spec{Snapshot: "second", Provider: "node-b"})
		wantCode(t, err, sandbox.CodeInvalid)
		if err == nil || !strings.Contains(err.Error(), "another one is in its place") {
			t.Errorf("%v", err)
		}
		for _, pack := range packs(t, blobs) {
			data, err := os.ReadFile(pack)
			if err != nil {
				t.Fatal(err)
			}
			for i := len(data) / 3; i < len(data)/2; i++ {
				data[i] ^= 0xff
			}
			if err := os.WriteFile(pack, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.Create(t.Context(), sandbox.Spec{Snapshot: "first", Provider: "node-b"})
		wantCode(t, err, sandbox.CodeInvalid)
		if n := livingOn(t, s.b); n != 0 {
			t.Errorf("%d sandboxes were started from it", n)
		}
		if all := snapshotsOn(t, s.b); len(all) != 0 {
			t.Errorf("b has %+v", all)
		}
	}
}

// Memory of a snapshot is trusted, so other tenants of a node cannot import any.
// They cannot export those of others, and are refused before names are looked up.
// What is not complete, or not a snapshot, leaves nothing.
func TestAttackSnapshotImport(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	sb := create(t, c, sandbox.Spec{Name: "one"})
	shell(t, sb, "echo secret > /f")
	if _, err := sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: "before"}); err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if err := c.ExportSnapshot(t.Context(), "before", &whole); err != nil {
		t.Fatal(err)
	}
	keyOf := func(tenant string, verbs ...string) *atoll.Client {
		k, err := c.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: verbs})
		if err != nil {
			t.Fatal(err)
		}
		return daemontest.Bearer(t, d, k.Token)
	}
	other := keyOf("other", "admin")
	for _, name := range []string{"before", "fresh"} {
		_, err := other.ImportSnapshot(t.Context(), name, nil, bytes.NewReader(whole.Bytes()))
		wantCode(t, err, sandbox.CodeDenied)
		wantCode(t, other.ExportSnapshot(t.Context(), name, new(bytes.Buffer)), sandbox.CodeNotFound)
	}
	for verb, may := range map[string]struct{ in, out bool }{"read": {}, "write": {in: true}, "exec": {}, "admin": {in: true, out: true}} {
		k := keyOf("", verb)
		if err := k.ExportSnapshot(t.Context(), "before", new(bytes.Buffer)); (err == nil) != may.out {
			t.Errorf("a key with %s exports: %v", verb, err)
		}
		if _, err := k.ImportSnapshot(t.Context(), "by-"+verb, nil, bytes.NewReader(whole.Bytes())); (err == nil) != may.in {
			t.Errorf("a key with %s imports: %v", verb, err)
		}
	}
	if err := keyOf("", "read", "exec").ExportSnapshot(t.Context(), "before", new(bytes.Buffer)); err != nil {
		t.Errorf("a key with read and exec exports: %v", err)
	}
	bad := map[string][]byte{"nothing": nil, "text": []byte(strings.Repeat("no snapshot ", 1000))}
	for _, n := range []int{1, 511, 512, 600, whole.Len() / 2, whole.Len() - 1025} {
		bad[fmt.Sprint("cut at ", n)] = whole.Bytes()[:n]
	}
	for _, change := range [][2]string{{`"provider":"fake"`, `"provider":"none"`}, {`"provider":`, `"unknown_":`}, {`"provider":"fake"`, `"provider":"hos",`}} {
		bad[change[1]] = bytes.Replace(whole.Bytes(), []byte(change[0]), []byte(change[1]), 1)
	}
	for what, data := range bad {
		if _, err := c.ImportSnapshot(t.Context(), "bad", nil, bytes.NewReader(data)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v, want it invalid", what, err)
		}
		if _, err := c.GetSnapshot(t.Context(), "bad"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s left a snapshot: %v", what, err)
		}
	}
	agree(t, m, c)
	_, err := c.ImportSnapshot(t.Context(), "before", nil, bytes.NewReader(whole.Bytes()))
	wantCode(t, err, sandbox.CodeAlreadyExists)
	if out := shell(t, create(t, c, sandbox.Spec{Snapshot: "by-admin"}), "cat /f"); out != "secret\n" {
		t.Errorf("an imported snapshot has %q", out)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if s, err := c.GetSnapshot(t.Context(), "by-admin"); err != nil || s.Saved {
			return
		}
	}
	t.Error("an imported snapshot is not saved")
}
