package selfhosted_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/machine/update"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const agreed = "agreed"

// release is a program of a version: this one, which says that it is another.
func release(version string) []byte {
	return fmt.Appendf(nil, "#!/bin/sh\n%s=%s exec '%s' \"$@\"\n", versionEnv, version, os.Args[0])
}

// offers makes the daemon one that offers a program.
func (w *world) offers(t *testing.T, version string, program []byte) {
	t.Helper()
	w.hub.Close()
	w.program = &hub.Program{Version: version, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(program)), nil }}
	w.openHub(t)
}

// says waits until a program has said something.
func (p *program) says(t *testing.T, what string) {
	t.Helper()
	for range 1200 {
		if strings.Contains(p.out.String(), what) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("it does not say %q", what)
}

// runs waits until a version serves a machine.
func runs(t *testing.T, dir, version string) {
	t.Helper()
	var s agent.Status
	for range 1200 {
		var err error
		if s, err = agent.Look(dir); err == nil && s.Version == version && s.Connected && !s.Trial {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("version %q runs, connected: %v; want %s", s.Version, s.Connected, version)
}

// A machine whose owner wants it gets newer programs of its daemon when nothing
// uses it. One that does not come up, or is not what was signed, does not stay. RB-115.
func TestMachineUpdatesItself(t *testing.T) {
	w, dir := newWorld(t), dir(t, "memory")
	w.offers(t, "v1.1.0", release("v1.1.0"))
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	m := start(t, dir)
	w.await(t, id, "online")
	in := create(t, w.open(t, id, false))
	if _, err := agent.SetConsent(dir, operator.ConsentUpdates, agreed); err != nil {
		t.Fatal(err)
	}
	m.says(t, "waits for the end of 1 sandboxes")
	runs(t, dir, installed)
	if out, err := output(in, "echo still"); out != "still\n" || err != nil {
		t.Errorf("a command while an update waits: %q, %v", out, err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs(t, dir, "v1.1.0")
	w.await(t, id, "online")
	in = create(t, w.open(t, id, false))
	if out, err := output(in, "echo new"); out != "new\n" || err != nil {
		t.Errorf("a command after the update: %q, %v", out, err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}

	// It changes the database in a way that the former program does not know.
	database := filepath.Join(dir, "state", "atoll.db")
	w.offers(t, "v1.2.0", fmt.Appendf(nil, "#!/bin/sh\necho new >'%s'\nexit 3\n", database))
	m.says(t, "version v1.2.0 does not come up: exit status 3")
	runs(t, dir, "v1.1.0")
	m.says(t, "version v1.2.0 did not come up")
	w.offers(t, "v1.3.0", release("v1.2.9"))
	m.says(t, `signed as version v1.3.0 says that it is \"v1.2.9\"`)
	runs(t, dir, "v1.1.0")
	w.offers(t, "v1.2.5", release("v1.2.5"))
	m.says(t, "version v1.2.5 is not newer than v1.3.0")

	m.stop(syscall.SIGTERM)
	m = start(t, dir)
	runs(t, dir, "v1.1.0")
	if _, err := agent.SetConsent(dir, operator.ConsentUpdates, ""); err != nil {
		t.Fatal(err)
	}
	m.stop(syscall.SIGTERM)
	m = start(t, dir)
	runs(t, dir, "v1.1.0") // the installed one may not know its database
	w.offers(t, "v1.4.0", release("v1.4.0"))
	w.await(t, id, "online")
	in = create(t, w.open(t, id, false)) // comes after the offer
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs(t, dir, "v1.1.0")
	if _, err := agent.Leave(t.Context(), agent.Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	m.stop(syscall.SIGTERM)
	if _, err := os.Stat(filepath.Join(dir, "program")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after leaving, the programs of the daemon: %v", err)
	}
}

// attacker is somebody who took over the daemon: it sends a machine what it
// likes.
type attacker struct {
	conn    *nats.Conn
	mux     *machine.Mux
	at      machine.Subjects
	own     nkeys.KeyPair // signs for the daemon
	program atomic.Pointer[[]byte]
	opened  atomic.Int64 // streams of the machine
}

func (w *world) attack(t *testing.T) *attacker {
	t.Helper()
	var config hub.Config
	w.broker.Configure(&config)
	a := &attacker{}
	var err error
	if a.own, err = nkeys.FromSeed(config.Issuer); err != nil {
		t.Fatal(err)
	}
	if a.conn, err = nats.Connect(config.URL, config.Options...); err != nil {
		t.Fatal(err)
	}
	a.mux = machine.NewMux(machine.MuxConfig{Send: a.conn.Publish, Payload: a.conn.MaxPayload, Max: 8, Accept: func(s *machine.Stream) {
		a.opened.Add(1)
		go func() {
			defer s.Close()
			_, _ = s.Write(*a.program.Load())
			_ = s.CloseWrite()
			_, _ = io.Copy(io.Discard, s)
		}()
	}})
	t.Cleanup(func() {
		a.mux.Close()
		a.conn.Close()
	})
	heard := make(chan machine.Subjects, 1)
	_, err = a.conn.Subscribe(machine.All, func(msg *nats.Msg) {
		from, rest, _ := machine.Parse(msg.Subject)
		select {
		case heard <- from:
		default:
		}
		if id, ok := strings.CutPrefix(rest, machine.Ops+".ATTACKER."); ok {
			a.mux.Receive(id, from.Down()+machine.Ops+".ATTACKER."+id, msg.Data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	a.at = <-heard
	return a
}

// offer offers a program whose content is served.
func (a *attacker) offer(t *testing.T, key nkeys.KeyPair, o update.Offer, served []byte) {
	t.Helper()
	a.program.Store(&served)
	s, err := update.Sign(key, o)
	if err != nil {
		t.Fatal(err)
	}
	s.Daemon = "ATTACKER"
	text, err := json.Marshal(s)
	if err == nil {
		err = a.conn.Publish(a.at.Down()+machine.Offer, text)
	}
	if err == nil {
		err = a.conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func offerOf(version string, program []byte) update.Offer {
	sum := sha256.Sum256(program)
	return update.Offer{Version: version, OS: runtime.GOOS, Arch: runtime.GOARCH, Size: int64(len(program)), SHA256: hex.EncodeToString(sum[:])}
}

// A daemon that was taken over, with its key, runs no program on a machine whose
// owner did not turn updates on. Without the key, or with an old or damaged
// program, it runs none on the others. RB-115.
func TestHostileMachineUpdates(t *testing.T) {
	w, dir := newWorld(t), dir(t, "memory")
	id := w.invite(t, "acme", dir, operator.ModeSandboxes, "")
	m := start(t, dir)
	w.await(t, id, "online")
	a := w.attack(t)
	trace := filepath.Join(t.TempDir(), "ran")
	evil := fmt.Appendf(nil, "#!/bin/sh\ntouch '%s'\n", trace)
	a.offer(t, a.own, offerOf("v9.0.0", evil), evil)
	in := create(t, w.open(t, id, false)) // comes after the offer
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, err := agent.Load(dir); err != nil || e.Agreed().Has(operator.ConsentUpdates) {
		t.Errorf("the machine takes updates: %+v, %v", e.Consents, err)
	}
	if n := a.opened.Load(); n != 0 {
		t.Errorf("a machine without updates asked for %d programs", n)
	}
	if _, err := agent.SetConsent(dir, operator.ConsentUpdates, agreed); err != nil {
		t.Fatal(err)
	}
	other, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	with := func(o update.Offer, change func(o *update.Offer)) update.Offer {
		change(&o)
		return o
	}
	good := offerOf("v9.0.0", evil)
	for _, c := range []struct {
		what   string
		key    nkeys.KeyPair
		offer  update.Offer
		served []byte
		says   string
	}{
		{"another key", other, good, evil, "was not signed by the daemon"},
		{"an older version", a.own, offerOf("v0.9.0", evil), evil, "version v0.9.0 is not newer than v1.0.0"},
		{"another program of the same version", a.own, offerOf(installed, evil), evil, "version v1.0.0 is not newer than v1.0.0"},
		{"no version", a.own, offerOf("latest", evil), evil, "version latest is not newer"},
		{"another system", a.own, with(good, func(o *update.Offer) { o.OS = "plan9" }), evil, "is for plan9/"},
		{"a huge program", a.own, with(good, func(o *update.Offer) { o.Size = 1 << 40 }), evil, "has 1099511627776 bytes"},
		{"a path as its hash", a.own, with(good, func(o *update.Offer) { o.SHA256 = "../../../evil" }), evil, "has no SHA-256"},
		{"a program that is cut off", a.own, good, evil[:10], "has not the"},
		{"a program that goes on", a.own, offerOf("v9.0.1", evil), append(bytes.Clone(evil), "more"...), "version v9.0.1 has not the"},
		{"another program of the same size", a.own, good, bytes.ToUpper(evil), "is not the one that was signed"},
	} {
		a.offer(t, c.key, c.offer, c.served)
		m.says(t, c.says)
		if files, _ := filepath.Glob(filepath.Join(dir, "program", "*", "atoll")); len(files) > 0 {
			t.Errorf("%s: the machine has %q", c.what, files)
		}
	}
	if _, err := os.Stat(trace); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the program ran: %v", err)
	}
	// The same way lets a good program through.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for next := release("v9.0.0"); ctx.Err() == nil; {
		a.offer(t, a.own, offerOf("v9.0.0", next), next)
		if s, err := agent.Look(dir); err == nil && s.Version == "v9.0.0" && !s.Trial {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	t.Error("a good program does not run")
}
