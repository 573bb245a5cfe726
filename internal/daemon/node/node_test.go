package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(vars ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(vars); i += 2 {
			if vars[i] == name {
				return vars[i+1], true
			}
		}
		return "", false
	}
}

func providers(opened *int) []providerset.Entry {
	world := new(fake.World)
	return []providerset.Entry{
		{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
			*opened++
			return fake.New(fake.Options{World: world}), nil
		}},
		{Name: "broken", Open: func(providerset.Host) (driver.Provider, error) { return nil, errors.New("no engine") }},
	}
}

func TestNodeIsLazy(t *testing.T) {
	opened := 0
	dir := filepath.Join(t.TempDir(), "state")
	n, err := Open(dir, providers(&opened), env())
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if entries, _ := os.ReadDir(dir); opened != 0 || len(entries) != 0 {
		t.Errorf("%d providers opened, %v made", opened, entries)
	}
	for range 3 {
		if _, err := n.Engine(t.Context(), "fake", false); err != nil {
			t.Fatal(err)
		}
	}
	if opened != 1 {
		t.Errorf("opened %d times", opened)
	}
	if _, err := n.Engine(t.Context(), "fake", true); err != nil || opened != 2 {
		t.Errorf("opened %d times, %v", opened, err)
	}
	if _, err := n.Engine(t.Context(), "nope", false); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Error(err)
	}
	if _, err := n.Probe(t.Context(), "broken"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Error(err)
	}
	if facts, err := n.Probe(t.Context(), "fake"); err != nil || !facts.Available {
		t.Errorf("%+v, %v", facts, err)
	}
}

func TestNodeRuns(t *testing.T) {
	opened := 0
	n, err := Open(t.TempDir(), providers(&opened), env())
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c, err := n.Engine(t.Context(), "fake", false)
	if err != nil {
		t.Fatal(err)
	}
	req := engine.RunRequest{Command: sandbox.Command{Args: []string{"sh", "-c", "exit 3"}}}
	exit, err := c.Run(t.Context(), req, func(context.Context, *engine.Sandbox, driver.Process) error { return nil })
	if err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
}

func TestNamesAreLockedAcrossNodes(t *testing.T) {
	opened := 0
	dir := t.TempDir()
	one, err := Open(dir, providers(&opened), env())
	if err != nil {
		t.Fatal(err)
	}
	two, err := Open(dir, providers(&opened), env())
	if err != nil {
		t.Fatal(err)
	}
	release, err := one.lockNames(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := two.lockNames(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	got := make(chan func(), 1)
	go func() {
		r, err := two.lockNames(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	select {
	case <-got:
		t.Fatal("both hold the lock")
	default:
	}
	release()
	(<-got)()
}

func TestLockFileIsNotALink(t *testing.T) {
	opened := 0
	dir := t.TempDir()
	n, err := Open(dir, providers(&opened), env())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "names.lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.lockNames(t.Context()); err == nil {
		t.Error("a link was followed")
	}
}
