package selfhosted_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/provider/selfhosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// gaps are those of provider remote: JSON cannot carry invalid UTF-8 in
// environments and in names of files.
var gaps = []string{"exec/env", "files/odd-names"}

func run(t *testing.T, gaps []string, h drivertest.Harness) {
	t.Helper()
	failed := map[string]bool{}
	h.Observe = func(r drivertest.Result) {
		if r.Status != drivertest.Fail {
			return
		}
		if failed[r.Name] = true; !slices.Contains(gaps, r.Name) {
			t.Errorf("%s: %s", r.Name, strings.Join(r.Messages, "\n"))
		}
	}
	report := drivertest.Check(t.Context(), h)
	if len(report.Results) < 100 {
		t.Errorf("only %d cases ran: %v", len(report.Results), report.Err())
	}
	for _, name := range gaps {
		if !failed[name] {
			t.Errorf("%s passes and is no longer a gap", name)
		}
	}
}

func spec(image string) *sandbox.Spec {
	return &sandbox.Spec{ID: sandbox.ID(fmt.Sprintf("sb-%d", time.Now().UnixNano())), Image: image}
}

func create(t *testing.T, p driver.Provider) driver.Instance {
	t.Helper()
	in, err := p.Create(t.Context(), spec("host"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = in.Destroy(ctx)
	})
	return in
}

// The machine is a process of its own, whose sandboxes are in memory: they can
// be paused and have snapshots.
func TestConformanceMemory(t *testing.T) {
	w, dir := newWorld(t), dir(t, "memory")
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	start(t, dir)
	w.await(t, id, "online")
	state := t.TempDir()
	run(t, append(gaps, "pause/deadline", "signal/trap", "signal/ignored"), drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return selfhosted.New(w.options(state, id, false)) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Echo: []string{"echod"}, Parallel: true,
	})
}

// The machine's sandboxes are processes.
func TestConformance(t *testing.T) {
	need.Full(t, "TestConformanceMemory takes the same way to other sandboxes")
	w, dir := newWorld(t), dir(t, "host")
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	start(t, dir)
	w.await(t, id, "online")
	state := t.TempDir()
	run(t, gaps, drivertest.Harness{
		New:      func(context.Context) (driver.Provider, error) { return selfhosted.New(w.options(state, id, false)) },
		Spec:     func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Parallel: true,
		Dir: func(in driver.Instance) string {
			out, _ := output(in, "pwd")
			return strings.TrimSpace(out)
		},
	})
}

func output(in driver.Instance, script string) (string, error) {
	p, err := in.Exec(context.Background(), &sandbox.Command{Args: []string{"/bin/sh", "-c", script}})
	if err != nil {
		return "", err
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	return string(out), err
}

// A machine that offers sandboxes has no screen to share.
func TestScreensOfSandboxes(t *testing.T) {
	w, dir := newWorld(t), dir(t, "memory")
	w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	if _, err := agent.SetConsent(dir, operator.ConsentScreen, "yes"); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("sharing the screen: %v, want %s", err, sandbox.CodeConflict)
	}
	if e, err := agent.Load(dir); err != nil || e.Agreed().Has(operator.ConsentScreen) {
		t.Errorf("afterwards the enrolment is %+v, %v", e, err)
	}
}

// The connection of the machine is cut again and again during a command and an
// upload. Nothing is run twice, and all output arrives. RB-110.
func TestMachineCutInTheMiddle(t *testing.T) {
	w, dir := newWorld(t), dir(t, "host")
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	start(t, dir)
	w.await(t, id, "online")
	in := create(t, w.open(t, id, false))
	for range 4 {
		p, err := in.Exec(t.Context(), &sandbox.Command{Stdin: true, Args: []string{"/bin/sh", "-c", `
			echo ran >>count; echo begin; read x
			i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done
			cat | cksum; exit 7`}})
		if err != nil {
			t.Fatal(err)
		}
		w.proxy.cut(true)
		if _, err := io.WriteString(p.Stdin(), "go\n"); err != nil {
			t.Fatal(err)
		}
		w.proxy.cut(false)
		go func() {
			data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			for len(data) > 0 {
				n := min(len(data), 100_000)
				_, _ = p.Stdin().Write(data[:n])
				data = data[n:]
			}
			w.proxy.cut(false)
			_ = p.Stdin().Close()
		}()
		out, err := io.ReadAll(p.Stdout())
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != 20002 || lines[0] != "begin" || lines[20000] != "line 19999" || !strings.HasSuffix(lines[20001], " 1048576") {
			t.Errorf("%d lines: %.40q … %q", len(lines), lines[0], lines[len(lines)-1])
		}
		exit, err := p.Wait(t.Context())
		if err != nil || exit.Code != 7 {
			t.Errorf("exit %+v, %v", exit, err)
		}
		_ = p.Close()
	}
	if n, err := output(in, "wc -l <count"); strings.TrimSpace(n) != "4" || err != nil {
		t.Errorf("4 commands ran %s times, %v", strings.TrimSpace(n), err)
	}
	files, ok := driver.As[driver.FileSystem](in)
	if !ok {
		t.Fatal("it has no files")
	}
	data := bytes.Repeat([]byte("upload "), 1<<20)
	r := &cutting{r: bytes.NewReader(data), every: 2 << 20, cut: func() { w.proxy.cut(false) }}
	at, err := output(in, "pwd")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(strings.TrimSpace(at), "big")
	if _, err := files.Write(t.Context(), name, r, driver.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	back, _, err := files.Read(t.Context(), name, driver.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	got, err := io.ReadAll(back)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
	}
}

// cutting cuts the connection from time to time while it is read.
type cutting struct {
	r        io.Reader
	n, every int
	cut      func()
}

func (c *cutting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b[:min(len(b), 64<<10)])
	if c.n += n; c.n >= c.every {
		c.n = 0
		c.cut()
	}
	return n, err
}

// A machine that is offline gives the typed error, and never the proof that a
// sandbox is gone. When it is back, its sandboxes are. RB-114.
func TestMachineOffline(t *testing.T) {
	w, dir := newWorld(t), dir(t, "work")
	work := t.TempDir()
	id := w.invite(t, "acme", dir, operator.ModeWholeMachine, work)
	p := w.open(t, id, true)
	if _, err := p.Create(t.Context(), spec("host")); sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "offline") {
		t.Errorf("create on a machine that never connected: %v", err)
	}
	if b, err := p.Binding(t.Context()); b != id || err != nil {
		t.Errorf("binding %q, %v", b, err)
	}
	first := start(t, dir)
	w.await(t, id, "online")
	in := create(t, p)
	if out, err := output(in, "pwd; echo kept >file"); out != work+"\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	first.stop(syscall.SIGTERM)
	w.await(t, id, "offline") // at once: it said so
	_, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}})
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "the machine laptop") || !strings.Contains(err.Error(), "offline") {
		t.Errorf("exec: %v", err)
	}
	_, err = p.Attach(t.Context(), in.ID())
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("attach: %v", err)
	}
	second := start(t, dir)
	w.await(t, id, "online")
	if out, err := output(in, "cat file"); out != "kept\n" || err != nil {
		t.Errorf("after a restart: %q, %v", out, err)
	}
	second.stop(syscall.SIGKILL)
	w.await(t, id, "reconnecting")
	third := start(t, dir)
	w.await(t, id, "online")
	if again, err := p.Attach(t.Context(), in.ID()); err != nil {
		t.Errorf("after it was killed: %v", err)
	} else if out, err := output(again, "cat file"); out != "kept\n" || err != nil {
		t.Errorf("after it was killed: %q, %v", out, err)
	}
	third.stop(syscall.SIGTERM)
}

// The process that started last serves the machine, and the other one ends. RB-99.
func TestOneProcessServesAMachine(t *testing.T) {
	w, dir1, dir2 := newWorld(t), dir(t, "memory"), dir(t, "memory")
	id := w.invite(t, "acme", dir1, operator.ModeSandboxes, "")
	first := start(t, dir1)
	w.await(t, id, "online")
	text, err := os.ReadFile(filepath.Join(dir1, "enrolment.json"))
	if err == nil {
		err = os.Mkdir(dir2, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir2, "enrolment.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	start(t, dir2)
	if err := first.cmd.Wait(); err == nil || !strings.Contains(first.out.String(), "another process") {
		t.Errorf("the first one ends with %v: %s", err, first.out)
	}
	w.await(t, id, "online")
	create(t, w.open(t, id, false))
}

// A revoked machine loses its connection, and is not let in again. RB-100.
func TestRevokedMachine(t *testing.T) {
	w, dir := newWorld(t), dir(t, "memory")
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	m := start(t, dir)
	w.await(t, id, "online")
	p := w.open(t, id, false)
	create(t, p)
	err := w.store.Update(t.Context(), func(tx *store.Tx) error {
		m, err := tx.Machines().Get(t.Context(), "acme", id)
		if err != nil {
			return err
		}
		m.State = operator.MachineRevoked
		return tx.Machines().Set(t.Context(), m)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.hub.Revoked(id)
	if err := m.cmd.Wait(); err == nil || !strings.Contains(m.out.String(), "revoked") {
		t.Errorf("it ends with %v: %s", err, m.out)
	}
	if conn, err := raw(t, w, dir, "again"); err == nil {
		conn.Close()
		t.Error("it is let in again")
	}
	if _, err := p.Create(t.Context(), spec("host")); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("create: %v", err)
	}
}

// raw connects as the machine of a directory does, without its program.
func raw(t *testing.T, w *world, dir, instance string) (*nats.Conn, error) {
	t.Helper()
	e, err := agent.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := nkeys.FromSeed([]byte(e.Seed))
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return nats.Connect("nats://"+w.proxy.addr(), nats.Nkey(public, pair.Sign), nats.Name(instance), nats.NoReconnect())
}

// A machine reaches its own subjects, and nothing of another tenant's machine,
// of the daemon or of the server. RB-101.
func TestMachineStaysInItsTenant(t *testing.T) {
	w, mine, theirs := newWorld(t), dir(t, "memory"), dir(t, "memory")
	id := w.invite(t, "acme", mine, operator.ModeSandboxes, "")
	other := w.invite(t, "rival", theirs, operator.ModeSandboxes, "")
	conn, err := raw(t, w, mine, "me")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	refused := make(chan string, 64)
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() })
	await := func(what string) {
		t.Helper()
		if err := conn.Flush(); err != nil {
			t.Fatal(what, err)
		}
		select {
		case err := <-refused:
			if !strings.Contains(strings.ToLower(err), "permissions violation") {
				t.Errorf("%s: %s", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s is allowed", what)
		}
	}
	own := machine.Subjects{Tenant: "acme", Machine: id, Instance: "me"}
	foreign := machine.Subjects{Tenant: "rival", Machine: other, Instance: "them"}
	late := machine.Subjects{Tenant: "acme", Machine: id, Instance: "earlier"}
	for _, subject := range []string{">", "_INBOX.>", "$SYS.>", "agent.>", "enrol.*", foreign.Down() + ">", foreign.Up() + ">", late.Down() + ">", own.Up() + ">", machine.All} {
		if _, err := conn.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		await("to subscribe to " + subject)
	}
	for _, subject := range []string{foreign.Down() + machine.End, foreign.Up() + machine.Hello, late.Up() + machine.Hello, own.Down() + machine.End, "_INBOX.x", "$SYS.REQ.SERVER.PING", "enrol.x"} {
		if err := conn.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		await("to publish to " + subject)
	}
	if _, err := conn.SubscribeSync(own.Down() + ">"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Publish(own.Up()+machine.Hello, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil || len(refused) > 0 {
		t.Errorf("its own subjects: %v, %d refusals", err, len(refused))
	}
	if n := conn.MaxPayload(); n > 1<<20 {
		t.Errorf("messages may have %d bytes", n)
	}
	if err := conn.Publish(own.Up()+machine.Hello, make([]byte, conn.MaxPayload()+1)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("RB-111: a message that is too large: %v", err)
	}
}

// A key that was not enrolled can ask for an enrolment and do nothing else, and
// a connection that proves no key can do nothing. RB-102.
func TestMachineEnrolment(t *testing.T) {
	w, dir := newWorld(t), dir(t, "memory")
	if conn, err := nats.Connect("nats://"+w.proxy.addr(), nats.NoReconnect()); err == nil {
		conn.Close()
		t.Error("a connection without a key is let in")
	}
	if conn, err := nats.Connect("nats://"+w.proxy.addr(), nats.NoReconnect(), nats.UserInfo("daemon", "guessed")); err == nil {
		conn.Close()
		t.Error("a guessed password is let in")
	}
	codes := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		_, err := agent.Enrol(t.Context(), agent.Request{
			Dir: dir, URL: "nats://" + w.proxy.addr(), Name: "laptop", Mode: operator.ModeSandboxes, Version: "test",
			Consents: map[operator.Consent]string{operator.ConsentSandboxes: "agreed"},
		}, func(code string, _ time.Duration) { codes <- code })
		done <- err
	}()
	code := <-codes
	if len(code) != 9 || strings.ContainsAny(code, "0O1Il") {
		t.Errorf("code %q", code)
	}
	err := w.store.Update(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Tenants().Ensure(t.Context(), "acme"); err != nil {
			return err
		}
		m, err := tx.Machines().Pending(t.Context(), machines.HashCode(strings.ToLower(code)))
		if err != nil {
			return err
		}
		m.Tenant = "acme"
		machines.Activate(&m, tx.Now())
		return tx.Machines().Set(t.Context(), m)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "enrolment.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("credentials: %v, %v", info.Mode(), err)
	}
	e, err := agent.Load(dir)
	if err != nil || len(e.Consents) != 1 || e.Consents[0].Text != "agreed" || e.Tenant != "acme" {
		t.Errorf("%+v, %v", e.Consents, err)
	}
}

// What the owner agreed to is in the request, and a token allows no more than it
// was made for. RB-102.
func TestConsentsOfEnrolment(t *testing.T) {
	whole, screen, plain := operator.ConsentWholeMachine, operator.ConsentScreen, operator.ConsentSandboxes
	for _, c := range []struct {
		name        string
		mode        string
		asks, token operator.Consents
		refused     string
	}{
		{"sandboxes", operator.ModeSandboxes, operator.Consents{plain}, nil, ""},
		{"all", operator.ModeWholeMachine, operator.Consents{whole, screen}, operator.Consents{plain, whole, screen}, ""},
		{"less than the token", operator.ModeWholeMachine, operator.Consents{whole}, operator.Consents{plain, whole, screen}, ""},
		{"the mode is not agreed to", operator.ModeWholeMachine, operator.Consents{screen}, operator.Consents{plain, whole, screen}, "has not agreed"},
		{"a token without the mode", operator.ModeWholeMachine, operator.Consents{whole}, operator.Consents{plain}, "does not allow whole-machine"},
		{"a token without the screen", operator.ModeWholeMachine, operator.Consents{whole, screen}, operator.Consents{plain, whole}, "does not allow screen"},
		{"a screen of sandboxes", operator.ModeSandboxes, operator.Consents{plain, screen}, operator.Consents{plain, whole, screen}, "screens of their own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, dir := newWorld(t), dir(t, "memory")
			texts := map[operator.Consent]string{}
			for _, to := range c.asks {
				texts[to] = "agreed"
			}
			e, err := agent.Enrol(t.Context(), agent.Request{
				Dir: dir, URL: "nats://" + w.proxy.addr(), Name: "laptop", Mode: c.mode, Workdir: map[string]string{operator.ModeWholeMachine: dir}[c.mode],
				Token: w.token(t, "acme", c.token), Version: "test", Consents: texts,
			}, func(string, time.Duration) {})
			if c.refused != "" {
				if sandbox.CodeOf(err) != sandbox.CodeDenied || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("it is enrolled: %v, want %q", err, c.refused)
				}
				return
			}
			if err != nil || !slices.Equal(e.Agreed(), c.asks) {
				t.Fatalf("the machine keeps %v, %v; want %v", e.Agreed(), err, c.asks)
			}
			m, err := store.Read(t.Context(), w.store, func(tx *store.Tx) (store.Machine, error) { return tx.Machines().Get(t.Context(), "acme", e.Machine) })
			if err != nil || !slices.Equal(m.Consents, c.asks) {
				t.Errorf("the daemon keeps %v, %v; want %v", m.Consents, err, c.asks)
			}
		})
	}
}

// Heartbeats do not wait for work: a machine whose commands hang
// still says that it lives, and does more. RB-112.
func TestHeartbeatsBesideWork(t *testing.T) {
	w, dir := newWorld(t), dir(t, "host")
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	start(t, dir)
	w.await(t, id, "online")
	in := create(t, w.open(t, id, false))
	var hang []driver.Process
	for range 16 {
		p, err := in.Exec(t.Context(), &sandbox.Command{Stdin: true, Args: []string{"/bin/sh", "-c", "echo begin; read x; echo $x"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if _, err := io.ReadFull(p.Stdout(), make([]byte, len("begin\n"))); err != nil {
			t.Fatal(err)
		}
		hang = append(hang, p)
	}
	var config hub.Config
	w.broker.Configure(&config)
	conn, err := nats.Connect(config.URL, config.Options...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	beats := make(chan struct{}, 1)
	_, err = conn.Subscribe(machine.All, func(msg *nats.Msg) {
		if from, rest, _ := machine.Parse(msg.Subject); from.Machine == id && rest == machine.Alive {
			select {
			case beats <- struct{}{}:
			default: // enough
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		<-beats
	}
	if out, err := output(in, "echo more"); out != "more\n" || err != nil {
		t.Errorf("another command beside those that hang: %q, %v", out, err)
	}
	for _, p := range hang {
		if _, err := io.WriteString(p.Stdin(), "end\n"); err != nil {
			t.Fatal(err)
		}
		if out, err := io.ReadAll(p.Stdout()); string(out) != "end\n" || err != nil {
			t.Errorf("a command that hung: %q, %v", out, err)
		}
	}
}
