package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%v)", err, errors.Unwrap(err))
	}
}

func open(t *testing.T, path string, opts audit.Options) (*store.Store, *eventlog.Log, *audit.Recorder) {
	t.Helper()
	s, err := store.Open(t.Context(), path, store.Options{})
	ok(t, err)
	l := eventlog.New(s, eventlog.Options{})
	t.Cleanup(func() {
		ok(t, l.Close())
		ok(t, s.Close())
	})
	ok(t, s.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(t.Context(), "acme"); return err }))
	return s, l, audit.New(l, opts)
}

// story returns a log with one line per event.
func story(t *testing.T, l *eventlog.Log) (lines []string) {
	t.Helper()
	events, err := l.Read(t.Context(), "acme", eventlog.Filter{}, 0, 0)
	ok(t, err)
	for _, e := range events {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s ref=%d %s", e.Type, e.Op, e.Subject, e.Ref, e.Code)))
	}
	return lines
}

func wantStory(t *testing.T, l *eventlog.Log, want ...string) {
	t.Helper()
	got := strings.Join(story(t, l), "\n")
	if got != strings.Join(want, "\n") {
		t.Errorf("the log tells\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestDo(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		l := eventlog.New(s, eventlog.Options{})
		defer func() { ok(t, l.Close()) }()
		ok(t, s.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(t.Context(), "acme"); return err }))
		r := audit.New(l, audit.Options{})
		a := audit.Action{Tenant: "acme", Op: "files.write", Subject: "/a"}
		fails := &sandbox.Error{Code: sandbox.CodeExhausted}
		denied := &sandbox.Error{Code: sandbox.CodeDenied}

		ok(t, r.Do(t.Context(), a, func() error { return nil }, func(context.Context) (audit.Outcome, error) {
			if got := story(t, l); len(got) != 1 || got[0] != "attempted files.write /a ref=0" {
				t.Errorf("while acting, the log tells %q", got)
			}
			return audit.Outcome{Bytes: 7}, nil
		}))
		if err := r.Do(t.Context(), a, nil, func(context.Context) (audit.Outcome, error) { return audit.Outcome{}, fails }); !errors.Is(err, fails) {
			t.Errorf("the action's error became %v", err)
		}
		err := r.Do(t.Context(), a, func() error { return denied }, func(context.Context) (audit.Outcome, error) {
			t.Error("a denied action was done")
			return audit.Outcome{}, nil
		})
		if !errors.Is(err, denied) {
			t.Errorf("the refusal became %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = r.Do(t.Context(), a, nil, func(context.Context) (audit.Outcome, error) { panic("boom") })
		}()
		// A caller that goes away during the action does not prevent the outcome from
		// being recorded.
		ctx, cancel := context.WithCancel(t.Context())
		ok(t, r.Do(ctx, a, nil, func(context.Context) (audit.Outcome, error) { cancel(); return audit.Outcome{}, nil }))
		wantStory(t, l,
			"attempted files.write /a ref=0", "files.written files.write /a ref=1",
			"attempted files.write /a ref=0", "failed files.write /a ref=3 exhausted",
			"denied files.write /a ref=0 denied",
			"attempted files.write /a ref=0", "failed files.write /a ref=6 internal",
			"attempted files.write /a ref=0", "files.written files.write /a ref=8")
		if open, err := l.Open(t.Context(), "local", 10); err != nil || len(open) > 0 {
			t.Errorf("left open: %v, %v", open, err)
		}
	})
}

// TestNoRecordNoAction closes the store under the recorder.
func TestNoRecordNoAction(t *testing.T) {
	s, _, r := open(t, filepath.Join(t.TempDir(), "atoll.db"), audit.Options{})
	ok(t, s.Close())
	err := r.Do(t.Context(), audit.Action{Tenant: "acme", Op: "sandbox.destroy", Name: "web"}, nil, func(context.Context) (audit.Outcome, error) {
		t.Error("done without a record")
		return audit.Outcome{}, nil
	})
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "could not be recorded") {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = r.Do(ctx, audit.Action{Tenant: "acme", Op: "x"}, nil, func(context.Context) (audit.Outcome, error) {
		t.Error("done though it could not be known to be recorded")
		return audit.Outcome{}, nil
	})
	if err == nil {
		t.Error("no error")
	}
}

// TestCallerGone cancels callers while their attempts are being written: every
// attempt that was written gets an outcome.
func TestCallerGone(t *testing.T) {
	_, l, r := open(t, filepath.Join(t.TempDir(), "atoll.db"), audit.Options{})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				if i%2 == 0 {
					cancel()
				}
			}()
			_ = r.Do(ctx, audit.Action{Tenant: "acme", Op: "files.read"}, nil, func(context.Context) (audit.Outcome, error) {
				return audit.Outcome{}, nil
			})
		})
	}
	wg.Wait()
	if open, err := l.Open(t.Context(), "local", 100); err != nil || len(open) > 0 {
		t.Errorf("left open: %v, %v", open, err)
	}
	if got := len(story(t, l)); got < 40 || got%2 != 0 {
		t.Errorf("%d records of attempts and outcomes", got)
	}
}

// TestWithStore: the records are written only if the transaction commits.
func TestWithStore(t *testing.T) {
	ctx := t.Context()
	s, l, r := open(t, filepath.Join(t.TempDir(), "atoll.db"), audit.Options{})
	a := audit.Action{Tenant: "acme", Op: "sandbox.create", Name: "web"}
	record := func(tx *store.Tx) error {
		_, _, err := tx.Sandboxes().Create(ctx, "acme", store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: "id-web", Name: "web"}}}, store.Create{})
		return err
	}
	var intent *audit.Intent
	boom := errors.New("boom")
	err := s.Update(ctx, func(tx *store.Tx) error {
		if _, err := r.BeginTx(ctx, tx, a); err != nil {
			return err
		}
		return errors.Join(record(tx), boom)
	})
	if err == nil || len(story(t, l)) > 0 {
		t.Fatalf("a transaction that failed left %v (%v)", story(t, l), err)
	}
	ok(t, s.Update(ctx, func(tx *store.Tx) (err error) {
		if err = record(tx); err == nil {
			intent, err = r.BeginTx(ctx, tx, a)
		}
		return err
	}))
	ok(t, s.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.Sandboxes().Update(ctx, "acme", "id-web", store.Expect{}, func(b *store.Sandbox) { b.State = sandbox.Running })
		return errors.Join(err, intent.EndTx(ctx, tx, audit.Outcome{Sandbox: "id-web"}))
	}))
	ok(t, intent.End(audit.Outcome{Err: boom})) // does nothing
	wantStory(t, l, "attempted sandbox.create  ref=0", "sandbox.created sandbox.create  ref=1")
}

func TestCloseAttempts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	_, _, r := open(t, path, audit.Options{Node: "n1"})
	_, later, other := open(t, path, audit.Options{Node: "n2"})
	for range 3 {
		_, err := r.Begin(t.Context(), audit.Action{Tenant: "acme", Op: "process.exec", Sandbox: "id-web"})
		ok(t, err)
	}
	foreign, err := other.Begin(t.Context(), audit.Action{Tenant: "acme", Op: "process.exec"})
	ok(t, err)
	n, err := r.CloseAttempts(t.Context())
	ok(t, err)
	again, err := r.CloseAttempts(t.Context())
	ok(t, err)
	if n != 3 || again != 0 {
		t.Errorf("closed %d and then %d, want 3 and 0", n, again)
	}
	ok(t, foreign.End(audit.Outcome{}))
	got := story(t, later)
	if len(got) != 8 || got[4] != "unknown process.exec  ref=1 unavailable" || got[7] != "exec.started process.exec  ref=4" {
		t.Errorf("the log tells %q", got)
	}
}

func TestEndOnce(t *testing.T) {
	_, l, r := open(t, filepath.Join(t.TempDir(), "atoll.db"), audit.Options{})
	i, err := r.Begin(t.Context(), audit.Action{Tenant: "acme", Op: "files.read"})
	ok(t, err)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { ok(t, i.End(audit.Outcome{})) })
	}
	wg.Wait()
	wantStory(t, l, "attempted files.read  ref=0", "files.read files.read  ref=1")
}

// TestCanary puts a secret into every place where one could be, and looks for
// it in the bytes of the database, its log and its backup.
func TestCanary(t *testing.T) {
	const canary = "canary-5f1e77"
	for _, recordArgs := range []bool{false, true} {
		t.Run(fmt.Sprintf("args %v", recordArgs), func(t *testing.T) {
			ctx := t.Context()
			dir := t.TempDir()
			path := filepath.Join(dir, "atoll.db")
			s, _, r := open(t, path, audit.Options{RecordArgs: recordArgs})
			arg := canary
			if recordArgs {
				arg = "harmless" // with RecordArgs, arguments are recorded
			}
			spec := sandbox.Spec{Name: "web", Env: map[string]string{"TOKEN": canary}}
			var token string
			ok(t, s.Update(ctx, func(tx *store.Tx) (err error) {
				_, _, err = tx.Sandboxes().Create(ctx, "acme", store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: "id-web", Name: "web"}}, Spec: spec}, store.Create{
					IdempotencyKey: canary + "-key", Request: []byte(`{"env":{"TOKEN":"` + canary + `"}}`),
				})
				if err != nil {
					return err
				}
				k, err := key.NewRing(s).Create(ctx, tx, operator.NewKey{Tenant: "acme", Verbs: []string{"exec"}})
				token = k.Token
				return err
			}))
			_, err := store.Write(ctx, s, func(tx *store.Tx) (store.Sandbox, error) {
				return tx.Sandboxes().Update(ctx, "acme", "id-web", store.Expect{}, func(b *store.Sandbox) {
					b.Spec.Env = map[string]string{"OTHER": canary}
					b.State = sandbox.Running
				})
			})
			ok(t, err)
			for _, cmd := range []sandbox.Command{
				{Args: []string{"/usr/bin/curl", "-H", arg}, Env: map[string]string{"A": canary}, Stdin: true},
				{Args: []string{"curl"}, Env: map[string]string{canary: canary}},
			} {
				err := r.Do(ctx, audit.Action{Tenant: "acme", Op: "process.exec", Sandbox: "id-web", Command: &cmd}, nil, func(context.Context) (audit.Outcome, error) {
					return audit.Outcome{}, &sandbox.Error{Code: sandbox.CodeInternal, Message: canary, Cause: errors.New(canary)}
				})
				if err == nil {
					t.Error("the action's error was lost")
				}
			}
			ok(t, s.Backup(ctx, filepath.Join(dir, "backup.db")))
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			ok(t, err)
			seen := 0
			for _, f := range files {
				raw, err := os.ReadFile(f)
				ok(t, err)
				for _, secret := range []string{canary, token, token[len(token)-49:]} {
					if bytes.Contains(raw, []byte(secret)) {
						t.Errorf("%s holds %q", filepath.Base(f), secret)
					}
				}
				if bytes.Contains(raw, []byte("curl")) && bytes.Contains(raw, []byte("TOKEN")) {
					seen++
				}
			}
			if seen == 0 {
				t.Error("nothing was found at all: the search is broken")
			}
		})
	}
}
