package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// An error names the operation that failed first, keeps its code, and never tells
// what only the log should have.
func TestNamed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		err     error
		op      string
		code    sandbox.Code
		message string
	}{
		{"of ours, without an operation", &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such secret"}, "secret.get", sandbox.CodeNotFound, "no such secret"},
		{"of ours, with one", &sandbox.Error{Code: sandbox.CodeNotFound, Op: "sandbox.find", Message: "no such sandbox"}, "sandbox.find", sandbox.CodeNotFound, "no such sandbox"},
		{"of ours, wrapped", fmt.Errorf("reading: %w", &sandbox.Error{Code: sandbox.CodeDenied, Message: "not yours"}), "secret.get", sandbox.CodeDenied, "not yours"},
		{"a full disk", fmt.Errorf("write /var/lib/x: %w", syscall.ENOSPC), "secret.get", sandbox.CodeExhausted, "the disk of the machine is full"},
		{"canceled", context.Canceled, "secret.get", sandbox.CodeCanceled, "the request failed"},
		{"unknown", errors.New("open /root/key: no such file"), "secret.get", sandbox.CodeInternal, "the request failed"},
	} {
		err := core.Named("secret.get", tt.err)
		known, ok := errors.AsType[*sandbox.Error](err)
		if !ok {
			t.Errorf("%s: the error is a %T, want one of ours", tt.name, err)
			continue
		}
		if known.Op != tt.op || known.Code != tt.code || known.Message != tt.message {
			t.Errorf("%s: the error is %s, %s, %q; want %s, %s, %q", tt.name, known.Op, known.Code, known.Message, tt.op, tt.code, tt.message)
		}
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: the cause is lost", tt.name)
		}
	}
	if err := core.Named("secret.get", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	before := &sandbox.Error{Code: sandbox.CodeNotFound}
	if _ = core.Named("secret.get", before); before.Op != "" {
		t.Error("the error of the callee was changed")
	}
}

// Services say which operation failed. A handle of a sandbox says it itself, with
// what its provider knows of the error.
func TestOperationsAreNamed(t *testing.T) {
	c, cause := coretest.Open(t), errors.New("broken")
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	fails := func(context.Context) error { return cause }
	for name, err := range map[string]error{
		"Do":       c.Do(ctx, ops.SecretList, guard.Subject{}, fails),
		"Change":   c.Change(ctx, ops.SecretList, guard.Subject{}, func(context.Context) (string, error) { return "", cause }),
		"ChangeTx": c.ChangeTx(ctx, ops.SecretList, "", func(context.Context, *store.Tx, string) (string, error) { return "", cause }),
		"Read": func() error {
			_, err := core.Read(ctx, c, ops.SecretList, "", func(*store.Tx, string) (int, error) { return 0, cause })
			return err
		}(),
		"denied": func() error {
			_, err := c.Look(coretest.As(t, coretest.Acme, key.Exec), ops.SecretCreate, "")
			return err
		}(),
	} {
		if known, ok := errors.AsType[*sandbox.Error](err); !ok || known.Op == "" {
			t.Errorf("%s: the error is %v, want one with an operation", name, err)
		}
	}
	if err := c.Act(ctx, engine.Action{Op: ops.SandboxPause}, fails); err != cause {
		t.Errorf("Act: the error is %v, want that of the handle", err)
	}
}

// Read reads for the caller's tenant, and not at all without the right.
func TestRead(t *testing.T) {
	c := coretest.Open(t)
	read := func(_ *store.Tx, tenant string) (string, error) { return tenant, nil }
	got, err := core.Read(coretest.As(t, coretest.Rival, key.Read), c, ops.SecretList, "", read)
	if err != nil || got != coretest.Rival {
		t.Errorf("read for %q, %v; want %s", got, err, coretest.Rival)
	}
	got, err = core.Read(t.Context(), c, ops.SecretList, "", read)
	coretest.WantCode(t, err, sandbox.CodeUnauthorized)
	if got != "" {
		t.Errorf("without a caller, %q was read", got)
	}
}

func TestHinted(t *testing.T) {
	plain, hinted := &sandbox.Error{Code: sandbox.CodeNotFound}, &sandbox.Error{Code: sandbox.CodeNotFound, Hint: "first"}
	for _, tt := range []struct {
		err  error
		want string
	}{{plain, "second"}, {hinted, "first"}} {
		known, _ := errors.AsType[*sandbox.Error](core.Hinted(tt.err, "second"))
		if known.Hint != tt.want {
			t.Errorf("the hint is %q, want %q", known.Hint, tt.want)
		}
	}
	if plain.Hint != "" {
		t.Error("the error of the callee was changed")
	}
	if err := core.Hinted(nil, "second"); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func TestNamesOf(t *testing.T) {
	var all []store.Sandbox
	for _, name := range strings.Fields("a b c d e f g") {
		var b store.Sandbox
		b.Name = name
		all = append(all, b)
	}
	for n, want := range map[int]string{0: "", 1: "a", 5: "a, b, c, d, e", 7: "a, b, c, d, e and 2 more"} {
		if got := core.NamesOf(all[:n]); got != want {
			t.Errorf("the names of %d are %q, want %q", n, got, want)
		}
	}
}
