package daemon_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx", for an attacker with access to the database

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// tokenOf creates a key of a tenant and returns its token.
func tokenOf(t *testing.T, d *daemon.Daemon, tenant string, verbs ...string) string {
	t.Helper()
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: verbs})
	if err != nil {
		t.Fatal(err)
	}
	return k.Token
}

// TestAttackForgedEnvelopes resumes envelopes that name objects of another
// tenant or installation, that request more than their bearer may have, or that
// are invalid.
func TestAttackForgedEnvelopes(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	victim := bearer(t, d, "acme", "admin")
	s := openSession(t, victim, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo secret > /x")
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	stolen, err := s.Envelope(t.Context())
	if err != nil || stolen.Archive == nil {
		t.Fatalf("%+v, %v", stolen, err)
	}
	ok(t, ignoring(victim.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "theirs"})))
	ok(t, ignoring(victim.CreateProfile(t.Context(), sandbox.Profile{Name: "theirs"})))
	ok(t, ignoring(victim.CreateSecret(t.Context(), durable.NewSecret{Name: "theirs", Value: []byte("value-of-acme"), Hosts: []string{"a.example"}})))
	token := tokenOf(t, d, "evil", "admin")
	attacker := daemontest.Bearer(t, d, token)
	for name, change := range map[string]func(e *durable.Envelope){
		"a sandbox of another tenant": func(e *durable.Envelope) { e.Archive = nil },
		"its archive alone":           func(e *durable.Envelope) { e.Sandbox, e.State = "", nil },
		"its archive as the state of a provider": func(e *durable.Envelope) {
			e.Sandbox, e.State = "", json.RawMessage(`{"sandboxId":"`+stolen.Sandbox+`"}`)
		},
		"an archive by a path": func(e *durable.Envelope) { e.Sandbox, e.Archive.Ref = "", "../../../etc/passwd" },
		"a tar that is none": func(e *durable.Envelope) {
			e.Sandbox, e.Archive.Kind, e.Archive.Ref, e.Archive.Hash = "", "tar", "se-000000000000000000000000.1", "sha256:00"
		},
		"a tar of a negative number": func(e *durable.Envelope) { e.Sandbox, e.Archive.Kind, e.Archive.Ref = "", "tar", "se-0.-1" },
		"an archive of elsewhere":    func(e *durable.Envelope) { e.Sandbox, e.Archive.Binding = "", "another-installation" },
		"another installation":       func(e *durable.Envelope) { e.Archive, e.Binding = nil, "another-installation/account-1" },
		"no installation":            func(e *durable.Envelope) { e.Archive, e.Binding = nil, "" },
		"a workspace of another tenant": func(e *durable.Envelope) {
			e.Sandbox, e.Archive, e.Spec.Workspaces = "", nil, []sandbox.WorkspaceMount{{Name: "theirs", Path: "/w"}}
		},
		"a snapshot of another tenant": func(e *durable.Envelope) {
			e.Sandbox, e.Archive, e.Spec.Snapshot, e.Spec.Image = "", nil, stolen.Archive.Ref, ""
		},
		"a profile of another tenant": func(e *durable.Envelope) {
			e.Sandbox, e.Archive, e.Spec.Network = "", nil, sandbox.Network{Profile: "theirs"}
		},
		"a secret of another tenant": func(e *durable.Envelope) {
			e.Sandbox, e.Archive, e.Spec.Secrets = "", nil, []sandbox.SecretRef{{Name: "theirs", Env: "TOKEN"}}
		},
		"files of the machine": func(e *durable.Envelope) {
			e.Sandbox, e.Archive, e.Spec.Mounts = "", nil, []sandbox.Mount{{Source: "/", Target: "/host"}}
		},
		"a provider that is not there": func(e *durable.Envelope) { e.Sandbox, e.Archive, e.Backend = "", nil, "../host" },
		"the provider of the owner":    func(e *durable.Envelope) { e.Sandbox, e.Archive, e.Backend = "", nil, "host" },
		"labels that Atoll keeps": func(e *durable.Envelope) {
			e.Sandbox, e.Archive, e.Spec.Labels = "", nil, map[string]string{"atoll.session-archive": "x"}
		},
		"a lifetime that is over":       func(e *durable.Envelope) { e.Sandbox, e.Archive, e.Spec.Lifetime.Timeout = "", nil, -time.Second },
		"a sandbox of an odd name":      func(e *durable.Envelope) { e.Archive, e.Sandbox = nil, "../../agent" },
		"a sandbox of a very long name": func(e *durable.Envelope) { e.Archive, e.Sandbox = nil, strings.Repeat("x", 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			e := stolen
			archive := *stolen.Archive
			e.Archive = &archive
			change(&e)
			got, err := attacker.Sessions().Resume(t.Context(), e, atoll.SessionOptions{})
			if err == nil {
				t.Errorf("it was resumed: %+v", got.Receipt())
				_ = got.Close()
			} else if code := sandbox.CodeOf(err); code == sandbox.CodeInternal || code == "" {
				t.Errorf("an error without a code: %v", err)
			}
		})
	}
	for name, body := range map[string]string{
		"a huge one":      `{"envelope":{"version":1,"backend":"fake","spec":{},"state":"` + strings.Repeat("x", 16<<20) + `"}}`,
		"a deep one":      `{"envelope":{"version":1,"backend":"fake","spec":{},"state":` + strings.Repeat("[", 100_000) + `}}`,
		"a list":          `{"envelope":[]}`,
		"unknown members": `{"envelope":{"version":1,"backend":"fake","spec":{"privileged":true}}}`,
	} {
		if got := statusWith(t, d, token, http.MethodPost, "/v1/sessions/resume", body); got != http.StatusBadRequest && got != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d", name, got)
		}
	}
	for body, want := range map[string]int{ // without a holder nothing would be made at once
		`{"envelope":{"version":1,"backend":"fake","box":"` + stolen.Sandbox + `","binding":"` + stolen.Binding + `","spec":{}}}`: http.StatusNotFound,
		`{"envelope":{"version":1,"backend":"nowhere","spec":{}}}`:                                                                http.StatusBadRequest,
	} {
		if got := statusWith(t, d, token, http.MethodPost, "/v1/sessions/resume", body); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
	}
	if all := sandboxes(t, attacker); len(all) != 0 {
		t.Errorf("he got %+v", all)
	}
	if all, err := attacker.Sessions().List(t.Context(), nil); err != nil || len(all) != 0 {
		t.Errorf("he has the sessions %+v, %v", all, err)
	}
	reader := bearer(t, d, "acme", "read", "exec")
	_, err = reader.Sessions().Resume(t.Context(), stolen, atoll.SessionOptions{Name: "copy"})
	wantCode(t, err, sandbox.CodeDenied)
	if got := runShell(t, s, "cat /x"); got != "secret" {
		t.Errorf("the victim has %q", got)
	}
}

// TestAttackEnvelopeOfAFreerTime resumes an envelope from before the policies.
// Everything that they forbid is refused.
func TestAttackEnvelopeOfAFreerTime(t *testing.T) {
	file := t.TempDir() + "/policies.yaml"
	ok(t, os.WriteFile(file, []byte("policies:\n  - {name: small, memory: 16g}\n"), 0o600))
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Policies = file })
	c := bearer(t, d, "acme", "admin")
	s := openSession(t, c, sandbox.Spec{Resources: sandbox.Resources{Memory: 4 << 30}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo large > /x")
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	old, err := s.Envelope(t.Context())
	ok(t, err)
	ok(t, c.Remove(t.Context(), old.Sandbox))
	ok(t, os.WriteFile(file, []byte("policies:\n  - {name: small, memory: 1g}\n"), 0o600))
	ok(t, d.Reload(t.Context()))
	for name, change := range map[string]func(*durable.Envelope){
		"as it is":    func(*durable.Envelope) {},
		"no sandbox":  func(e *durable.Envelope) { e.Sandbox, e.State = "", nil },
		"only a spec": func(e *durable.Envelope) { e.Sandbox, e.State, e.Archive = "", nil, nil },
		"and a larger": func(e *durable.Envelope) {
			e.Sandbox, e.State, e.Archive, e.Spec.Resources.Memory = "", nil, nil, 8<<30
		},
	} {
		e := old
		change(&e)
		_, err = c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "again"})
		var refused *sandbox.Error
		if !errors.As(err, &refused) || refused.Code != sandbox.CodeDenied || !strings.HasPrefix(refused.Rule, "small.") {
			t.Errorf("%s: %v, want that the policy refuses it", name, err)
		}
	}
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
}

func ignoring[T any](_ T, err error) error { return err }

// TestAttackArchiveThatIsNone uses an envelope that presents a snapshot of the
// tenant as the archive of a session. Removing the session must not remove the
// snapshot.
func TestAttackArchiveThatIsNone(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := bearer(t, d, "acme", "admin")
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	e, err := s.Envelope(t.Context())
	ok(t, err)
	sb, err := c.Create(t.Context(), sandbox.Spec{Name: "golden"}, atoll.CreateOptions{})
	ok(t, err)
	_, err = sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: "golden"})
	ok(t, err)
	e.Sandbox, e.State = "", nil
	e.Archive = &durable.Archive{Kind: "snapshot", Ref: "golden", Provider: e.Backend, Binding: strings.Split(e.Binding, "/")[0]}
	forged, err := c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "forged"})
	ok(t, err)
	_, err = forged.Save(t.Context())
	ok(t, err)
	ok(t, forged.Destroy(t.Context()))
	for snap, err := range c.Snapshots(t.Context(), nil) {
		ok(t, err)
		if snap.Name == "golden" {
			return
		}
	}
	t.Error("the snapshot went with a session that was not its own")
}

// TestAttackHolders tries to hold, keep alive and release holders of a session
// with keys of another tenant, and with keys of fewer verbs.
func TestAttackHolders(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	s := openSession(t, bearer(t, d, "acme", "admin"), sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	var holder durable.Holder
	for _, h := range mustSession(t, bearer(t, d, "acme", "read"), "agent").Lease.Holders {
		holder = h
	}
	if holder.ID == "" {
		t.Fatal("nobody holds the session")
	}
	body := func(epoch string) string {
		return fmt.Sprintf(`{"kind":%q,"holder":%q,"epoch":%s}`, holder.Kind, holder.ID, epoch)
	}
	stranger, reader, owner := tokenOf(t, d, "evil", "admin"), tokenOf(t, d, "acme", "read"), tokenOf(t, d, "acme", "admin")
	for _, path := range []string{"acquire", "heartbeat", "release"} {
		for _, ref := range []string{"agent", s.ID()} {
			for token, want := range map[string]int{stranger: http.StatusNotFound, reader: http.StatusForbidden} {
				if got := statusWith(t, d, token, http.MethodPost, "/v1/sessions/"+ref+"/"+path, body("1")); got != want {
					t.Errorf("%s of %s: %d, want %d", path, ref, got, want)
				}
			}
		}
		for _, epoch := range []string{"-1", "9223372036854775808", "1e3", `"1"`, "0.5"} {
			if got := statusWith(t, d, owner, http.MethodPost, "/v1/sessions/agent/"+path, body(epoch)); got != http.StatusBadRequest {
				if epoch == "1e3" && got == http.StatusConflict { // it is a number
					continue
				}
				t.Errorf("%s at epoch %s: %d", path, epoch, got)
			}
		}
	}
	if got := statusWith(t, d, owner, http.MethodPost, "/v1/sessions/agent/heartbeat", body("9223372036854775807")); got != http.StatusConflict {
		t.Errorf("a heartbeat of a far epoch: %d", got)
	}
	if l := mustSession(t, bearer(t, d, "acme", "read"), "agent").Lease; l.Epoch != 1 || len(l.Holders) != 1 || l.Holders[0].ID != holder.ID {
		t.Errorf("the lease is %+v", l)
	}
	if got := runShell(t, s, "echo here"); got != "here" {
		t.Errorf("the session answers %q", got)
	}
}

func mustSession(t *testing.T, c *atoll.Client, name string) durable.Session {
	t.Helper()
	s, err := c.Sessions().Get(t.Context(), name)
	ok(t, err)
	return s.Info()
}

// TestAttackTwoReapers lets two daemons of one database manage the same
// sessions, while holders come and go. No epoch is used twice, no sandbox in
// use is ended, and no saved data is lost.
func TestAttackTwoReapers(t *testing.T) {
	address := storetest.Postgres(t)
	quick := func(o *daemon.Options) { o.Store, o.SessionGrace = address, time.Millisecond }
	m1, m2 := daemontest.New(t), daemontest.New(t)
	d1, d2 := m1.Start(t, quick), m2.Start(t, quick)
	token := tokenOf(t, d1, "acme", "admin")
	c1, c2 := daemontest.Bearer(t, d1, token), daemontest.Bearer(t, d2, token)
	const rounds = 6
	var wg sync.WaitGroup
	for i := range 3 {
		name := fmt.Sprint("agent-", i)
		wg.Go(func() {
			s, err := c1.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: name})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			last := s.Receipt().Epoch
			for round := range rounds {
				res, err := s.Run(t.Context(), sandbox.Command{Shell: fmt.Sprintf("echo %d >> /x; wc -l < /x", round)}, atoll.RunOptions{})
				if err != nil || strings.TrimSpace(string(res.Stdout)) != fmt.Sprint(round+1) {
					t.Errorf("%s has %q lines in round %d: %v", name, res.Stdout, round, err)
					return
				}
				if err := s.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
				// The other daemon requests it while it drains. It can neither use a
				// sandbox of another daemon nor replace it.
				if _, err := c2.Sessions().Attach(t.Context(), name, atoll.SessionOptions{}); err == nil {
					t.Errorf("%s was attached on a daemon that has no access to it", name)
				}
				r, err := s.Acquire(t.Context())
				if err != nil || r.Epoch < last {
					t.Errorf("%s got epoch %d after %d: %v", name, r.Epoch, last, err)
					return
				}
				last = r.Epoch
			}
		})
	}
	wg.Wait()
	for i := range 3 {
		seen := map[int64]bool{}
		for _, e := range mustSession(t, c1, fmt.Sprint("agent-", i)).Lease.History {
			if seen[e.Epoch] {
				t.Errorf("epoch %d was used twice", e.Epoch)
			}
			seen[e.Epoch] = true
		}
	}
}

// TestAttackReaderOfTheDatabase searches all rows of a shared database for
// secrets.
func TestAttackReaderOfTheDatabase(t *testing.T) {
	address := storetest.Postgres(t)
	d := daemontest.New(t).Start(t, on(address))
	const canary = "canary-51c0ffee-canary"
	token := tokenOf(t, d, "acme", "admin")
	c := daemontest.Bearer(t, d, token)
	ok(t, ignoring(c.CreateSecret(t.Context(), durable.NewSecret{Name: "token", Value: []byte(canary), Hosts: []string{"a.example"}})))
	sb, err := c.Create(t.Context(), sandbox.Spec{Name: "one", Env: map[string]string{"PASSWORD": canary}}, atoll.CreateOptions{IdempotencyKey: "k"})
	ok(t, err)
	ok(t, ignoring(sb.Run(t.Context(), sandbox.Command{Shell: "true " + canary, Env: map[string]string{"X": canary}}, atoll.RunOptions{})))
	ok(t, ignoring(sb.Files().Write(t.Context(), "/x", strings.NewReader(canary), atoll.WriteOptions{})))
	ok(t, ignoring(c.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "w", Encrypted: true})))
	s := openSession(t, c, sandbox.Spec{Env: map[string]string{"PASSWORD": canary}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo $PASSWORD")
	db, err := sql.Open("pgx", address)
	ok(t, err)
	defer db.Close()
	for table, rows := range everything(t, db) {
		for _, secret := range []string{canary, token, token[len("atoll_"):]} {
			if strings.Contains(rows, secret) || strings.Contains(rows, fmt.Sprintf("%x", secret)) {
				t.Errorf("table %s holds %q", table, secret)
			}
		}
	}
}

// everything returns all rows of all tables as text.
func everything(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	names, err := db.QueryContext(ctx, `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'`)
	ok(t, err)
	defer names.Close()
	var tables []string
	for names.Next() {
		var name string
		ok(t, names.Scan(&name))
		tables = append(tables, name)
	}
	ok(t, names.Err())
	if len(tables) < 20 {
		t.Fatalf("only %d tables", len(tables))
	}
	all := map[string]string{}
	for _, name := range tables {
		var text sql.NullString
		ok(t, db.QueryRowContext(ctx, `SELECT string_agg(r::text, E'\n') FROM "`+name+`" r`).Scan(&text))
		all[name] = text.String
	}
	return all
}
