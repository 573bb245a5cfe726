package selfhosted_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/machinetest"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// A machine knows the epoch of each session, also after its program was killed.
// A request for an earlier one does nothing. RB-106.
func TestMachineKnowsEpochs(t *testing.T) {
	w, dir := newWorld(t), dir(t, "work")
	id := w.invite(t, "acme", dir, operator.ModeWholeMachine, t.TempDir())
	m := start(t, dir)
	w.await(t, id, "online")
	in := create(t, w.open(t, id, true))
	run := func(session string, epoch int64) error {
		t.Helper()
		ctx := t.Context()
		if session != "" {
			ctx = span.WithEpoch(ctx, session, epoch)
		}
		p, err := in.Exec(ctx, &sandbox.Command{Args: []string{"/bin/sh", "-c", "echo ran >>count"}})
		if err != nil {
			return err
		}
		defer p.Close()
		_, err = p.Wait(t.Context())
		return err
	}
	fenced := func(epoch int64) {
		t.Helper()
		err := run("one", epoch)
		if sandbox.CodeOf(err) != sandbox.CodeStale || !strings.Contains(err.Error(), "at epoch 5") || !strings.Contains(err.Error(), "for epoch 4") {
			t.Errorf("a request for an earlier epoch: %v, want %s with both epochs", err, sandbox.CodeStale)
		}
	}
	pass := func(session string, epoch int64) {
		t.Helper()
		if err := run(session, epoch); err != nil {
			t.Errorf("session %q, epoch %d: %v", session, epoch, err)
		}
	}
	pass("one", 4)
	pass("one", 5)
	fenced(4)
	pass("two", 1) // one mark for all of them locked it out
	pass("one", 5)
	pass("one", 0)
	pass("", 0)
	m.stop(syscall.SIGKILL)
	w.await(t, id, "reconnecting")
	start(t, dir)
	w.await(t, id, "online")
	fenced(4)
	pass("one", 6)
	if n, err := output(in, "wc -l <count"); strings.TrimSpace(n) != "7" || err != nil {
		t.Errorf("commands ran %s times, %v; want 7", strings.TrimSpace(n), err)
	}
}

// Requests for a session reach its machine with the epoch, so that it fences. RB-106.
func TestMachineFencesSessions(t *testing.T) {
	w := newWorld(t)
	client, m, at := w.fakeMachine(t)
	s, err := client.Sessions().Create(t.Context(), sandbox.Spec{Image: "host", Provider: "selfhosted-" + m.ID()}, atoll.SessionOptions{Name: "work"})
	if err != nil {
		t.Fatal(err)
	}
	run := func() error {
		_, err := s.Run(t.Context(), sandbox.Command{Shell: "true"})
		return err
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	// Another daemon has moved the session, which this one does not know.
	marks := filepath.Join(at, "epochs.json")
	text, err := os.ReadFile(marks)
	if err != nil || !strings.Contains(string(text), s.ID()) || !strings.Contains(string(text), `"epoch": 1`) {
		t.Fatalf("the machine has the epochs %s, %v; want 1 of session %s", text, err, s.ID())
	}
	if err := m.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(marks, []byte(strings.Replace(string(text), `"epoch": 1`, `"epoch": 2`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Connect(); err != nil {
		t.Fatal(err)
	}
	for {
		all, err := client.Admin().Machines(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if all[0].Liveness == "online" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := run(); sandbox.CodeOf(err) != sandbox.CodeStale {
		t.Errorf("a command of epoch 1 after epoch 2: %v, want %s", err, sandbox.CodeStale)
	}
}

// daemon starts a daemon, whose hub takes the place of that of w.
func (w *world) daemon(t *testing.T) *atoll.Client {
	t.Helper()
	config := &hub.Config{Logger: slog.New(slog.DiscardHandler)}
	w.broker.Configure(config)
	w.hub.Close()
	d, err := daemon.Start(t.Context(), daemon.Options{
		StateDir: t.TempDir(), Provider: "fake", Machines: config, Plain: true, Logger: slog.New(slog.DiscardHandler),
		Providers: []providerset.Entry{{Name: "fake", Open: func(h providerset.Host) (driver.Provider, error) {
			return fake.New(fake.Options{World: new(fake.World), SnapshotDir: h.Snapshots}), nil
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	client, err := atoll.New(atoll.Options{Transport: d.Memory().Transport()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// fakeMachine starts a daemon, and a machine of its default tenant without an engine. Its
// files are in the directory at.
func (w *world) fakeMachine(t *testing.T) (client *atoll.Client, m *machinetest.Machine, at string) {
	t.Helper()
	client = w.daemon(t)
	invited, err := client.Admin().InviteMachine(t.Context(), operator.NewMachineToken{Name: "laptop"})
	if err != nil {
		t.Fatal(err)
	}
	at = dir(t, "fake")
	m, err = machinetest.Start(t.Context(), machinetest.Options{Dir: at, URL: "nats://" + w.proxy.addr(), Name: "laptop", Token: invited.Token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return client, m, at
}
