package daemon_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// open is something that lasts, and a function that waits for its end.
type open map[string]func() error

// openAll opens streams and connections in a sandbox that last until they are
// closed.
func openAll(t *testing.T, c *atoll.Client, id sandbox.ID, port uint16) open {
	t.Helper()
	ctx, s := t.Context(), atoll.Handle(c, id)
	p, err := s.Exec(ctx, sandbox.Command{Args: []string{"sleep", "600"}})
	ok(t, err)
	held, err := s.Exec(ctx, sandbox.Command{Args: []string{"sleep", "600"}, Hold: time.Hour})
	ok(t, err)
	back, err := s.Exec(ctx, sandbox.Command{Args: []string{"sleep", "600"}, Background: true})
	ok(t, err)
	logs, err := s.Logs(ctx, back.Info().ID, atoll.LogOptions{Follow: true})
	ok(t, err)
	conn, err := s.Dial(ctx, port)
	ok(t, err)
	changes, err := s.Files().Watch(ctx, "/", false)
	ok(t, err)
	t.Cleanup(func() {
		for _, c := range []io.Closer{p, held, back, logs, conn} {
			_ = c.Close()
		}
	})
	return open{
		"command":            func() error { _, err := p.Wait(ctx); return err },
		"held command":       func() error { _, err := held.Wait(ctx); return err },
		"background command": func() error { _, err := back.Wait(ctx); return err },
		"one call": begun(t, func() error {
			_, err := s.Run(ctx, sandbox.Command{Args: []string{"sleep", "600"}}, atoll.RunOptions{})
			return err
		}),
		"wait":       begun(t, func() error { _, err := s.Wait(ctx); return err }),
		"logs":       func() error { _, err := logs.Next(); return err },
		"connection": func() error { _, err := conn.Read(make([]byte, 1)); return ended(err) },
		"files": begun(t, func() error {
			for range changes {
			}
			return errors.New("no more changes")
		}),
		"upload": begun(t, func() error { return stalledUpload(ctx, s) }),
		"events": begun(t, func() error {
			for _, err := range c.FollowEvents(ctx, sandbox.EventQuery{}) {
				if err != nil {
					return err
				}
			}
			return errors.New("the events ended without a reason")
		}),
	}
}

// begun starts f in the background, and returns what waits for it.
func begun(t *testing.T, f func() error) func() error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error { return <-done }
}

// ended returns an error for a normal end, too.
func ended(err error) error {
	if err == nil {
		return errors.New("it goes on")
	}
	return err
}

// stalledUpload writes a file without ever completing it.
func stalledUpload(ctx context.Context, s *atoll.Sandbox) error {
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write([]byte("beginning")) }()
	_, err := s.Files().Write(ctx, "/stalled", r, atoll.WriteOptions{})
	return err
}

// TestKeysEndWhatTheyOpened: requests in progress of a key end when the key
// ends, for any reason, and others do not.
func TestKeysEndWhatTheyOpened(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, m *daemontest.Machine, d *daemon.Daemon, id string){
		"revoked": func(t *testing.T, _ *daemontest.Machine, d *daemon.Daemon, id string) {
			ok(t, bearer(t, d, "acme", "admin").Admin().RevokeKey(t.Context(), id))
		},
		"revoked by another daemon": func(t *testing.T, m *daemontest.Machine, _ *daemon.Daemon, id string) {
			ok(t, m.Store(t).Update(t.Context(), func(tx *store.Tx) error { return tx.Tenants().RevokeKey(context.Background(), "acme", id) }))
		},
		"tenant disabled": func(t *testing.T, _ *daemontest.Machine, d *daemon.Daemon, _ string) {
			yes := true
			_, err := daemontest.Client(t, d).Admin().UpdateTenant(t.Context(), "acme", operator.TenantChange{Disabled: &yes})
			ok(t, err)
		},
		"expired": func(t *testing.T, m *daemontest.Machine, _ *daemon.Daemon, id string) {
			db, err := sql.Open("sqlite", "file:"+m.Dir+"/atoll.db?_pragma=busy_timeout(10000)")
			ok(t, err)
			defer db.Close()
			_, err = db.Exec("UPDATE keys SET expires = 1 WHERE id = ?", id)
			ok(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := daemontest.New(t)
			d := m.Start(t, nil)
			owner := daemontest.Client(t, d)
			sb := create(t, bearer(t, d, "acme", "admin"), sandbox.Spec{Name: "one"})
			t.Cleanup(func() { // its background command too
				no := false
				_, err := owner.Admin().UpdateTenant(context.Background(), "acme", operator.TenantChange{Disabled: &no})
				if err = errors.Join(err, sb.Destroy(context.Background())); err != nil {
					t.Error(err)
				}
			})
			port := echo(t, sb)
			k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}, Expires: time.Hour})
			ok(t, err)
			all := openAll(t, daemontest.Bearer(t, d, k.Token), sb.ID(), port)
			other := create(t, owner, sandbox.Spec{Name: "other"})
			stays, err := other.Exec(t.Context(), sandbox.Command{Args: []string{"cat"}, Stdin: true})
			ok(t, err)
			defer stays.Close()
			end(t, m, d, k.ID)
			for what, wait := range all {
				if err := wait(); err == nil {
					t.Errorf("%s ended with %v", what, err)
				}
			}
			_, err = fmt.Fprintln(stays.Stdin(), "still here")
			ok(t, err)
			if line, err := bufio.NewReader(stays.Stdout()).ReadString('\n'); err != nil || line != "still here\n" {
				t.Errorf("what another key opened: %q %v", line, err)
			}
		})
	}
}
