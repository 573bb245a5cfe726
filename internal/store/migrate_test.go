package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

type statement struct {
	sql  string
	args []any
}

// written contains the statements of a program of each schema version, in
// addition to earlier ones. They never change, because they stand for existing
// databases.
var written = map[int64][]statement{
	1: {
		{"INSERT INTO tenants (id, created, limits_json) VALUES ('acme', 1, $1)", []any{`{"boxes":3}`}},
		{"INSERT INTO nodes (id, instance, started, heartbeat) VALUES ('n1', 'first', 1, 2)", nil},
		{
			`INSERT INTO sandboxes (id, tenant, name, state, provider, node, image, cpus, memory, labels_json, spec_json, created, updated, active, idle_after, idle_action)
			VALUES ('id-web', 'acme', 'web', 'running', 'fake', 'n1', 'host', 0.5, 1024, $1, $2, 5, 6, 7, 60, 'pause')`,
			[]any{`{"team":"red"}`, `{"name":"web","image":"host","env":{"A":""}}`},
		},
		{"INSERT INTO sandbox_labels (sandbox, tenant, name, value) VALUES ('id-web', 'acme', 'team', 'red')", nil},
		{"INSERT INTO keys (id, tenant, hash, verbs, created) VALUES ('k1', 'acme', $1, 'read exec', 9)", []any{[]byte("hash")}},
		{"INSERT INTO idempotency (tenant, key_hash, fingerprint, sandbox, created) VALUES ('acme', $1, $2, 'id-web', 9)", []any{[]byte("k"), []byte("f")}},
	},
	2: {
		{"INSERT INTO events (tenant, seq, time, type, op, sandbox, code, body, hash) VALUES ('acme', 1, 9, 'attempted', 'files.read', 'id-web', '', '{}', $1)", []any{[]byte("hash")}},
		{"INSERT INTO event_heads (tenant, seq, hash) VALUES ('acme', 1, $1)", []any{[]byte("hash")}},
		{"INSERT INTO intents (tenant, seq, node, op, sandbox) VALUES ('acme', 1, 'n1', 'files.read', 'id-web')", nil},
	},
	3: {
		{"UPDATE sandboxes SET origin = 'sn-1', time_left = 5 WHERE id = 'id-web'", nil},
		{"INSERT INTO snapshots (id, tenant, name, ready, size, parent, node, created) VALUES ('sn-1', 'acme', 'before', 1, 10, 'id-web', 'n1', 8)", nil},
	},
	4: {
		{"INSERT INTO profiles (tenant, name, version, doc, created, updated) VALUES ('acme', 'ci', 2, $1, 3, 4)", []any{`{"name":"ci","rules":[{"action":"allow","hosts":["example.com"]}]}`}},
		{"INSERT INTO profile_versions (tenant, name, version, doc, created) VALUES ('acme', 'ci', 2, $1, 4)", []any{`{"name":"ci"}`}},
		{"INSERT INTO profile_uses (sandbox, tenant, profile) VALUES ('id-web', 'acme', 'ci')", nil},
	},
	5: {
		{"INSERT INTO secrets (tenant, name, version, hosts_json, key_id, sealed, created, updated) VALUES ('acme', 'token', 3, $1, 'k', $2, 5, 6)", []any{`["example.com"]`, []byte("sealed")}},
		{"INSERT INTO secret_uses (sandbox, variable, tenant, secret, placeholder) VALUES ('id-web', 'TOKEN', 'acme', 'token', 'p')", nil},
	},
	6: {
		{"INSERT INTO templates (tenant, name, tag, image, base, size, steps, created) VALUES ('acme', 'tools', 'latest', 'sha256:1', 'sha256:0', 10, 2, 9)", nil},
	},
	7: {
		{"INSERT INTO workspaces (id, tenant, name, created) VALUES ('ws-1', 'acme', 'notes', 9)", nil},
		{"INSERT INTO attachments (sandbox, workspace, node, mode, created) VALUES ('id-web', 'ws-1', 'n1', 'exclusive', 9)", nil},
		{"UPDATE sandboxes SET spec_json = $1 WHERE id = 'id-web'", []any{`{"name":"web","image":"host","env":{"A":""},"workspace":{"name":"notes","path":"/notes"}}`}},
	},
	8: {
		{"INSERT INTO event_cursors (node, tenant, seq) VALUES ('n1', 'acme', 1)", nil},
		{"INSERT INTO event_cuts (tenant, seq, hash, time, seal) VALUES ('acme', 0, $1, 9, $2)", []any{[]byte("hash"), []byte("seal")}},
	},
	10: {
		{"UPDATE templates SET start = 'serve', ready = 'true', snapshot = 'sn-1' WHERE name = 'tools'", nil},
	},
	11: {
		{"INSERT INTO archives (id, tenant, encrypted, created) VALUES ('ar-1', 'acme', 1, 9)", nil},
		{"UPDATE snapshots SET archive = 'ar-1', version = 4, digest = 'd', stored = 5 WHERE id = 'sn-1'", nil},
	},
	13: {
		{"UPDATE secrets SET labels_json = $1 WHERE name = 'token'", []any{`{"team":"red"}`}},
		{"UPDATE templates SET build = '0b1d6c8e-0000-8000-8000-000000000000' WHERE name = 'tools'", nil},
	},
	20: {
		{"INSERT INTO workspaces (id, tenant, name, bucket, created) VALUES ('ws-2', 'acme', 'data', 'data', 9)", nil},
	},
	21: {
		{"INSERT INTO workspaces (id, tenant, name, created) VALUES ('ws-3', 'acme', 'more', 9)", nil},
		{"INSERT INTO attachments (sandbox, workspace, node, mode, created) VALUES ('id-web', 'ws-3', 'n1', 'exclusive', 9)", nil},
		{"UPDATE sandboxes SET spec_json = $1 WHERE id = 'id-web'", []any{`{"name":"web","image":"host","env":{"A":""},"workspaces":[{"name":"notes","path":"/notes"}],"lifetime":{"timeout":3600000000000,"idleAction":"stop"}}`}},
	},
	22: {
		{"UPDATE sandboxes SET spec_json = $1 WHERE id = 'id-web'", []any{`{"name":"web","image":"host","env":{"A":""},"workspaces":[{"name":"notes","path":"/notes"}],"lifetime":{"timeoutMs":3600000,"idleAction":"stop"}}`}},
	},
	30: {
		{"INSERT INTO sessions (tenant, id, name, grp, session_json, prior_json, created, updated) VALUES ('acme', 'se-1', 'agent', 'g', $1, '', 9, 9)", []any{`{"provider":"gvisor"}`}},
		{"INSERT INTO leases (tenant, grp, state, lease_json, updated) VALUES ('acme', 'g', 'warm', $1, 9)", []any{`{"group":"g","state":"warm","epoch":3}`}},
		{"INSERT INTO warm_time (tenant, grp, provider, labels_json, hour, warm) VALUES ('acme', 'g', 'gvisor', '{}', 0, 9)", nil},
	},
	23: {
		{"UPDATE sandboxes SET binding = 'https://api.example.com#1', limits_json = $1 WHERE id = 'id-web'", []any{`{"memory":{"enforced":false,"why":"the service decides"}}`}},
	},
	32: {
		{"UPDATE attachments SET bridge = 2 WHERE sandbox = 'id-web'", nil},
	},
	33: {
		{"INSERT INTO session_archives (tenant, ref, grp, archive_json, state, tries, due) VALUES ('acme', 'ar', 'g', '{}', 'current', 0, 9)", nil},
		{"INSERT INTO lease_epochs (tenant, grp, epoch, provider, sandbox, holders, began, ended, why) VALUES ('acme', 'g', 1, 'p', 'sb', '', 9, 0, '')", nil},
	},
	34: {
		{"UPDATE templates SET public = 1, withheld = '' WHERE name = 'tools'", nil},
	},
	35: {
		{"UPDATE sandboxes SET metered = 6 WHERE id = 'id-web'", nil},
		{"INSERT INTO sandbox_time (tenant, provider, labels_json, since, until, time) VALUES ('acme', 'gvisor', '{}', 0, 3600000000000, 9)", nil},
	},
	36: {
		{"INSERT INTO recordings (tenant, id, created, sandbox, name, session, state, node, kept, recording_json) VALUES ('acme', 'rec-1', 9, 'id-web', 'web', '', 'available', 'n1', 9, '{}')", nil},
	},
	37: {
		{"INSERT INTO machines (id, tenant, state, public_key, secret, whole, created, expires, machine_json) VALUES ('m-1', 'acme', 'active', 'U1', '', 0, 9, 0, '{}')", nil},
	},
	39: {
		{"UPDATE sandboxes SET isolation = 'hardware' WHERE id = 'id-web'", nil},
	},
	40: {
		{"INSERT INTO template_images (tenant, image, lent, archive, version, digest, stored) VALUES ('acme', 'sha256:1', 'sha256:2', 'ar-1', 3, 'd', 9)", nil},
	},
	41: {
		{"INSERT INTO image_names (name, platform, tenant, image, change, changed) VALUES ('app:1', 'linux/amd64', 'acme', 'sha256:1', 'c', 9)", nil},
	},
	38: {
		{"INSERT INTO fleet (name, url, binding, state, lost, added, removed, cleared) VALUES ('a', 'http://127.0.0.1:1', 'b', 'active', 0, 9, 0, 0)", nil},
	},
	31: {
		{"UPDATE snapshots SET ref_json = $1, binding = 'local#1' WHERE id = 'sn-1'", []any{`{"provider":"gvisor","kind":"memory","data":"sn-1"}`}},
	},
}

// addresses returns a function that returns the address of a new, empty database.
var addresses = map[string]func(t *testing.T) string{
	"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "atoll.db") },
	"postgres": func(t *testing.T) string { return storetest.Postgres(t) },
}

// TestMigrate migrates databases of every earlier schema, with data, to the
// present one.
func TestMigrate(t *testing.T) {
	ctx := context.Background()
	for dialect, address := range addresses {
		versions := store.Schemas(dialect)
		if len(versions) != len(written) {
			t.Fatalf("%s has %d schemas, and data for %d of them", dialect, len(versions), len(written))
		}
		for _, from := range versions {
			t.Run(fmt.Sprintf("%s from %d", dialect, from), func(t *testing.T) {
				t.Parallel()
				url := address(t)
				old, err := store.OpenAt(ctx, url, from)
				ok(t, err)
				for _, v := range versions[:slices.Index(versions, from)+1] {
					for _, st := range written[v] {
						if err := old.Exec(ctx, st.sql, st.args...); err != nil {
							t.Fatalf("%s: %v", st.sql, err)
						}
					}
				}
				ok(t, old.Close())
				s, err := store.Open(ctx, url, store.Options{})
				ok(t, err)
				defer func() { ok(t, s.Close()) }()
				checkMigrated(t, s, from)
			})
		}
	}
}

func checkMigrated(t *testing.T, s *store.Store, from int64) {
	t.Helper()
	ctx := context.Background()
	b, err := get(s, "acme", "id-web")
	ok(t, err)
	if b.State != sandbox.Running || b.Labels["team"] != "red" || b.Resources.CPUs != 0.5 || b.Idle.Action != "pause" || b.Created.UnixNano() != 5 || b.Version != 1 {
		t.Errorf("the sandbox became %+v", b)
	}
	if from >= 30 {
		session, err := store.Read(ctx, s, func(tx *store.Tx) (store.Session, error) { return tx.Sessions().Get(ctx, "acme", "agent") })
		ok(t, err)
		l, err := store.Read(ctx, s, func(tx *store.Tx) (lease.Lease, error) { return tx.Sessions().Lease(ctx, "acme", "g") })
		ok(t, err)
		if session.Provider != "gvisor" || l.State != lease.Warm || l.Epoch != 3 {
			t.Errorf("the session became %+v, its lease %+v", session, l)
		}
	}
	held, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Held, error) { return tx.Workspaces().Held(ctx, "id-web") })
	ok(t, err)
	if from >= 7 && (len(b.Spec.Workspaces) != 1 || b.Spec.Workspaces[0].Name != "notes" || b.Spec.Workspaces[0].Path != "/notes" || b.Spec.Name != "web" || len(held) == 0) {
		t.Errorf("its workspaces became %+v, %+v", b.Spec, held)
	}
	if l := b.Spec.Lifetime; from >= 21 && l != (sandbox.Lifetime{Timeout: time.Hour, IdleAction: sandbox.IdleStop}) {
		t.Errorf("its lifetime became %+v", l)
	}
	if got := listAll(t, s, "acme", store.Filter{Labels: map[string]string{"team": "red"}}, 10); len(got) != 1 {
		t.Errorf("found by label: %v", got)
	}
	tenant, err := store.Read(ctx, s, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, "acme") })
	ok(t, err)
	if tenant.Limits != (operator.Limits{Sandboxes: 3}) {
		t.Errorf("the tenant became %+v", tenant)
	}
	k, err := store.Read(ctx, s, func(tx *store.Tx) (store.Key, error) { return tx.Operator().Key(ctx, "k1") })
	ok(t, err)
	if string(k.Hash) != "hash" || strings.Join(k.Verbs, " ") != "read exec" {
		t.Errorf("the key became %+v", k)
	}
	rows, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.EventRow, error) {
		return tx.Events().List(ctx, "acme", store.EventFilter{}, 0, 10)
	})
	ok(t, err)
	open, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.OpenIntent, error) { return tx.Operator().OpenIntents(ctx, "n1", 10) })
	ok(t, err)
	if want := int(min(from-1, 1)); len(rows) != want || len(open) != want {
		t.Errorf("%d events and %d intents, want %d", len(rows), len(open), want)
	}
	if from >= 3 {
		snap, err := store.Read(ctx, s, func(tx *store.Tx) (store.Snapshot, error) { return tx.Snapshots().Get(ctx, "acme", "before") })
		ok(t, err)
		if snap.Size != 10 || (snap.Ref != "") != (from >= 31) || (snap.Binding != "") != (from >= 31) {
			t.Errorf("the snapshot became %+v", snap)
		}
	}
	if time := ran(t, s, b.Created, b.Created); time["red"] <= 0 || (time[""] == 9) != (from >= 35) { // in the first hour
		t.Errorf("the time of sandboxes became %v", time)
	}
	if want := map[bool]sandbox.Isolation{true: sandbox.IsolationHardware}[from >= 39]; b.Isolation != want {
		t.Errorf("the isolation became %q, want %q", b.Isolation, want)
	}
	checkPolicy(t, s, from)
	// The database works like any other.
	_, err = update(s, "acme", "id-web", store.Expect{Version: 1}, setState(sandbox.Stopped))
	ok(t, err)
	mustCreate(t, s, "acme", testSandbox("db"))
}

func checkPolicy(t *testing.T, s *store.Store, from int64) {
	t.Helper()
	ctx := context.Background()
	profiles, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Profile, error) { return tx.Profiles().List(ctx, "acme") })
	ok(t, err)
	secrets, err := store.Read(ctx, s, func(tx *store.Tx) ([]store.Secret, error) { return tx.Secrets().List(ctx, "acme") })
	ok(t, err)
	if from >= 4 && (len(profiles) != 1 || profiles[0].Version != 2 || profiles[0].Uses != 1 || profiles[0].Profile.Rules[0].Hosts[0] != "example.com") {
		t.Errorf("the profiles became %+v", profiles)
	}
	if from >= 3 {
		snap, err := store.Read(ctx, s, func(tx *store.Tx) (store.Snapshot, error) { return tx.Snapshots().Get(ctx, "acme", "before") })
		ok(t, err)
		want := store.Archived{}
		if from >= 11 {
			want = store.Archived{Archive: "ar-1", Encrypted: true, Version: 4, Digest: "d", Stored: 5}
		}
		if !snap.Ready || snap.Size != 10 || snap.Archived != want {
			t.Errorf("the snapshot became %+v", snap)
		}
	}
	if from >= 5 && (len(secrets) != 1 || secrets[0].Version != 3 || secrets[0].Uses != 1 || string(secrets[0].Sealed) != "sealed" || secrets[0].Hosts[0] != "example.com") {
		t.Errorf("the secrets became %+v", secrets)
	}
}

func TestNewerDatabase(t *testing.T) {
	ctx := context.Background()
	for dialect, address := range addresses {
		t.Run(dialect, func(t *testing.T) {
			url := address(t)
			s, err := store.Open(ctx, url, store.Options{})
			ok(t, err)
			ok(t, s.Exec(ctx, "INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, $2)", slices.Max(store.Schemas(dialect))+1, true))
			ok(t, s.Close())
			s, err = store.Open(ctx, url, store.Options{})
			if s != nil {
				t.Fatal("a newer database was opened")
			}
			wantCode(t, err, sandbox.CodeUnavailable)
			newest := slices.Max(store.Schemas(dialect))
			for _, part := range []string{"newer release", fmt.Sprintf("schema is %d", newest+1), fmt.Sprintf("knows %d", newest)} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the refusal says %q", err)
				}
			}
		})
	}
}

// TestMigrateUnfinished: a database with a schema that does not match its
// number is refused with a description.
func TestMigrateUnfinished(t *testing.T) {
	ctx := context.Background()
	for dialect, address := range addresses {
		t.Run(dialect, func(t *testing.T) {
			url := address(t)
			versions := store.Schemas(dialect)
			s, err := store.Open(ctx, url, store.Options{})
			ok(t, err)
			ok(t, s.Exec(ctx, "DELETE FROM goose_db_version WHERE version_id > $1", versions[0]))
			ok(t, s.Close())
			s, err = store.Open(ctx, url, store.Options{})
			if s != nil {
				t.Fatal("it was opened")
			}
			wantCode(t, err, sandbox.CodeUnavailable)
			var e *sandbox.Error
			if !errors.As(err, &e) || !strings.Contains(e.Message, fmt.Sprintf("schema %d,", versions[0])) || e.Hint == "" {
				t.Errorf("the refusal says %q", err)
			}
		})
	}
}

// TestMigrateTogether: several daemons can start at the same time on an empty
// database.
func TestMigrateTogether(t *testing.T) {
	ctx := context.Background()
	for dialect, address := range addresses {
		t.Run(dialect, func(t *testing.T) {
			url := address(t)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					s, err := store.Open(ctx, url, store.Options{})
					if err != nil {
						t.Errorf("%v (%v)", err, sandboxCause(err))
						return
					}
					if err := s.Ping(ctx); err != nil {
						t.Error(err)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
	}
}
