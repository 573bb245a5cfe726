package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// member is a daemon of an archipelago, in a network namespace of its own.
type member struct {
	*soaker
	name, address string
	disk          string // a node's
	database      *relay // a control daemon's way to PostgreSQL
}

// archipelago is three nodes and three control daemons on one PostgreSQL. All of
// them hang on one switch. The third control daemon joins later.
type archipelago struct {
	hub      *network
	plugs    int
	database string
	dir      string
	nodes    []*member
	controls []*member
	faults   map[string]int

	mu       sync.Mutex
	sessions map[string]int        // the last number that was acknowledged to be in a session
	saw      map[string]int        // operations that were acknowledged
	alive    map[string]sandbox.ID // sandboxes without a session that must be there
	dead     map[string]sandbox.ID // and that must not
	gone     []string              // sessions whose removal was acknowledged
}

// TestArchipelago lets clients use sessions and sandboxes of several control
// daemons on several nodes while all of these are killed, cut off from each other
// and from the database, drained, and their disks fill. In the end everything that
// was acknowledged is there, nothing lives twice, and all of it works again without
// a hand.
func TestArchipelago(t *testing.T) {
	need.Full(t, "TestFleetSchedules simulates the same faults")
	a := newArchipelago(t)
	a.control(t)
	a.control(t)
	a.wantReady(t)
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for worker := range 3 {
		workers.Go(func() { a.useSessions(ctx, t, worker) })
	}
	workers.Go(func() { a.useSandboxes(ctx, t) })
	begin, length := time.Now(), soakTime(t)
	order := rand.Perm(len(a.harms(t, a.nodes[0], a.controls[0], nil)))
	for n := 0; (n < len(order) || time.Since(begin) < length) && !t.Failed(); n++ {
		if len(a.controls) < 3 && (time.Since(begin) > length/3 || n == len(order)/3) {
			a.control(t)
		}
		if n < len(order) {
			a.fault(t, order[n])
		} else {
			a.fault(t, rand.IntN(len(order)))
		}
	}
	healed := time.Now()
	cancel()
	workers.Wait()
	t.Logf("faults %v, acknowledged %v; the last operation was over %v after the last fault", a.faults, a.saw, time.Since(healed).Round(time.Second))
	a.wantReady(t)
	a.compare(t)
}

// A command on a node that falls silent ends with an error within a minute, and
// meanwhile the control daemon goes on with the others.
func TestNodeFallsSilent(t *testing.T) {
	need.Full(t, "it waits until a connection is given up")
	a := newArchipelago(t)
	a.control(t)
	a.wantReady(t)
	c, dead := a.controls[0].client, a.nodes[0]
	lost, err := c.Sessions().Create(t.Context(), sandbox.Spec{Provider: "node-a", Resources: small.Resources}, atoll.SessionOptions{Name: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	running, err := lost.Exec(t.Context(), sandbox.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	idle, err := c.Sessions().Create(t.Context(), sandbox.Spec{Provider: "node-b", Resources: small.Resources}, atoll.SessionOptions{Name: "idle"})
	if err != nil {
		t.Fatal(err)
	}
	dead.inside.cable(t, "down")
	if err := lost.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := idle.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	late, done := context.WithTimeout(t.Context(), time.Minute+remote.Silence)
	defer done()
	began := time.Now()
	if exit, err := running.Wait(late); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("the command on a silent node ends with %+v, %v after %v; want %s", exit, err, time.Since(began), sandbox.CodeUnavailable)
	}
	t.Logf("the command on a silent node ended after %v", time.Since(began).Round(time.Second))
	if err := soon(func() error {
		got, err := c.Sessions().Get(t.Context(), "idle")
		if err == nil && got.Info().Lease.State != "cold" {
			err = fmt.Errorf("the lease of a session on another node is %s, want it saved and cold", got.Info().Lease.State)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	dead.inside.cable(t, "up")
	a.wantReady(t)
	if err := a.onSession(t.Context(), "lost", func(ctx context.Context, x *atoll.Session) error {
		_, err := x.Run(ctx, sandbox.Command{Args: []string{"true"}})
		return err
	}); err != nil {
		t.Errorf("after the silence: %v", err)
	}
	for _, name := range []string{"lost", "idle"} {
		if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Sessions().Remove(ctx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// newArchipelago starts the nodes.
func newArchipelago(t *testing.T) *archipelago {
	t.Helper()
	a := &archipelago{
		hub: isolated(t), database: storetest.Postgres(t), dir: t.TempDir(), faults: map[string]int{},
		sessions: map[string]int{}, saw: map[string]int{}, alive: map[string]sandbox.ID{}, dead: map[string]sandbox.ID{},
	}
	if err := os.Chmod(a.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ip(t, a.hub, "link add br0 type bridge")
	ip(t, a.hub, "link set br0 up")
	var keys, trusted []byte
	for _, name := range []string{"a", "b", "c"} {
		m := a.member(t, name)
		m.disk = smallDisk(t, "1g")
		m.state = filepath.Join(m.disk, "state")
		certs := t.TempDir()
		certify(t, certs, m.address)
		m.args = []string{"--listen", m.address + ":7070", "--host", m.address, "--tls-cert", filepath.Join(certs, "cert.pem"), "--tls-key", filepath.Join(certs, "key.pem")}
		m.begin(t)
		k, err := m.client.Admin().CreateKey(t.Context(), operator.NewKey{Name: "control", Verbs: []string{"read", "write", "exec"}})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, name+"="+k.Token+"\n"...)
		one, err := os.ReadFile(filepath.Join(certs, "cert.pem"))
		if err != nil {
			t.Fatal(err)
		}
		trusted = append(trusted, one...)
		a.nodes = append(a.nodes, m)
	}
	for name, text := range map[string][]byte{"keys": keys, "trusted.pem": trusted} {
		if err := os.WriteFile(filepath.Join(a.dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// member connects a network namespace to the switch.
func (a *archipelago) member(t *testing.T, name string) *member {
	t.Helper()
	a.plugs++
	n := isolated(t)
	plug := fmt.Sprintf("p%d", a.plugs)
	n.connect(t, a.hub, plug)
	ip(t, a.hub, "link set "+plug+" master br0")
	m := &member{name: name, address: fmt.Sprintf("198.18.0.%d", a.plugs), soaker: &soaker{bin: built.atoll, inside: n}}
	ip(t, n, "addr add "+m.address+"/24 dev "+n.link)
	n.cable(t, "up")
	return m
}

// control starts one more control daemon.
func (a *archipelago) control(t *testing.T) {
	t.Helper()
	m := a.member(t, fmt.Sprintf("control-%d", len(a.controls)))
	m.state = filepath.Join(t.TempDir(), "state")
	m.database = newRelay(t, a.database)
	m.args = []string{
		"--store", m.database.address, "--blobs", filepath.Join(a.dir, "blobs"), "--plain-snapshots", "--pool", "0", "--session-grace", "4s",
		"--node-key-file", filepath.Join(a.dir, "keys"), "--node-ca-file", filepath.Join(a.dir, "trusted.pem"),
	}
	for _, n := range a.nodes {
		m.args = append(m.args, "--node", n.name+"=https://"+n.address+":7070")
	}
	m.begin(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.controls = append(a.controls, m)
}

// begin starts a daemon for the first time. It ends with the test.
func (m *member) begin(t *testing.T) {
	t.Helper()
	m.env = append(os.Environ(), "ATOLL_STATE_DIR="+m.state, "ATOLL_KERNEL="+m.bin)
	log, err := os.Create(filepath.Join(t.TempDir(), m.name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	m.log = log
	if m.client, err = atoll.New(atoll.Options{Host: "unix://" + filepath.Join(m.state, atoll.SocketName)}); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	t.Cleanup(func() {
		m.kill()
		m.client.Close()
		rm := exec.Command(built.atoll, "rm", "--force", "--all", "--provider", "gvisor")
		rm.Env = m.env
		if out, err := rm.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", m.name, err, out)
		}
		log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the log of %s ends with\n%s", m.name, text[max(0, len(text)-6000):])
		}
	})
}

// relay carries the connections of a daemon to PostgreSQL, until it is cut. Then
// the bytes wait.
type relay struct {
	to      string // the server's socket
	address string // for the daemon

	mu     sync.Mutex
	change *sync.Cond
	cut    bool
	over   bool
}

func newRelay(t *testing.T, database string) *relay {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	const socket = "/.s.PGSQL.5432"
	dir := t.TempDir()
	r := &relay{to: u.Query().Get("host") + socket}
	r.change = sync.NewCond(&r.mu)
	q := u.Query()
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	r.address = u.String()
	l, err := net.Listen("unix", dir+socket)
	if err != nil {
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			busy.Go(func() { r.carry(in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		r.over = true
		r.mu.Unlock()
		r.change.Broadcast()
		busy.Wait()
	})
	return r
}

// carry copies both directions of a connection.
func (r *relay) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("unix", r.to)
	if err != nil {
		return
	}
	defer out.Close()
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		for buffer := make([]byte, 32<<10); ; {
			n, err := from.Read(buffer)
			if !r.wait() || err != nil {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	both.Go(func() { one(out, in) })
	both.Go(func() { one(in, out) })
	both.Wait()
}

// wait waits until the relay is not cut. False: the test is over.
func (r *relay) wait() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.cut && !r.over {
		r.change.Wait()
	}
	return !r.over
}

func (r *relay) set(cut bool) {
	r.mu.Lock()
	r.cut = cut
	r.mu.Unlock()
	r.change.Broadcast()
}

// fault causes one fault of a kind, or two at once, and ends it. How long it lasts,
// and how long the next one waits, is chosen at random, shorter in a short run.
func (a *archipelago) fault(t *testing.T, kind int) {
	t.Helper()
	node, control := a.nodes[rand.IntN(len(a.nodes))], a.controls[rand.IntN(len(a.controls))]
	longest := 7000
	if soakTime(t) < 3*time.Minute {
		longest = 1500
	}
	pause := func() { time.Sleep(time.Duration(500+rand.IntN(longest)) * time.Millisecond) }
	now := a.harms(t, node, control, pause)[kind]
	t.Logf("%s: %s, %s, %s", time.Now().Format("15:04:05"), now.name, node.name, control.name)
	now.do(t)
	a.faults[now.name]++
	pause()
}

// harms returns a fault of each kind, for a node and a control daemon. pause is how
// long it lasts.
func (a *archipelago) harms(t *testing.T, node, control *member, pause func()) []harm {
	t.Helper()
	return []harm{
		{"node is killed", func(t *testing.T) { node.kill(); pause(); node.start(t) }},
		{"control daemon is killed", func(t *testing.T) { control.kill(); control.start(t) }},
		{"control daemon is away", func(t *testing.T) { control.kill(); pause(); pause(); control.start(t) }},
		{"all control daemons are killed", func(t *testing.T) {
			for _, c := range a.controls {
				c.kill()
			}
			for _, c := range a.controls {
				c.start(t)
			}
		}},
		{"node is cut off", func(t *testing.T) {
			node.inside.cable(t, "down")
			pause()
			pause()
			node.inside.cable(t, "up")
		}},
		{"node is cut off from a control daemon", func(t *testing.T) { heal := control.loses(t, node); pause(); pause(); heal() }},
		{"database is cut off from a control daemon", func(*testing.T) {
			control.database.set(true)
			pause()
			pause()
			control.database.set(false)
		}},
		{"database ends all connections", func(t *testing.T) { storetest.Disconnect(t, a.database) }},
		{"database refuses", func(t *testing.T) { restore := storetest.Refuse(t, a.database); pause(); restore() }},
		{"full disk", func(t *testing.T) { empty := fill(t, node.disk, 0); pause(); empty() }},
		{"full disk and kill", func(t *testing.T) {
			empty := fill(t, node.disk, 0)
			pause()
			node.kill()
			up := node.tryStart(t)
			empty()
			if !up {
				node.start(t)
			}
		}},
		{"drain", func(t *testing.T) { a.drain(t, control, node) }},
		{"drain of a node that is cut off", func(t *testing.T) {
			var both sync.WaitGroup
			both.Go(func() { a.drain(t, control, node) })
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
			node.inside.cable(t, "down")
			pause()
			node.inside.cable(t, "up")
			both.Wait()
		}},
		{"drain by a control daemon that is killed", func(t *testing.T) {
			var both sync.WaitGroup
			both.Go(func() { a.drain(t, control, node) })
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
			control.kill()
			control.start(t)
			both.Wait()
		}},
		{"control daemon is away for longer than its claims", func(t *testing.T) { a.outlived(t, control) }},
	}
}

// outlived kills a control daemon, and starts it again when another one has taken
// over a sandbox that it made.
func (a *archipelago) outlived(t *testing.T, control *member) {
	t.Helper()
	name := fmt.Sprintf("outlived-%d", a.faults["control daemon is away for longer than its claims"])
	var made sandbox.ID
	if err := soon(func() error {
		late, done := context.WithTimeout(t.Context(), 20*time.Second)
		defer done()
		box, err := control.client.Create(late, sandbox.Spec{Name: name, Resources: small.Resources}, atoll.CreateOptions{IdempotencyKey: name})
		if err == nil && box.Info().State != sandbox.Running {
			err = fmt.Errorf("it is %s", box.Info().State)
		}
		if err == nil {
			made = box.ID()
		}
		return err
	}); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	control.kill()
	other := a.controls[0]
	if other == control {
		other = a.controls[1]
	}
	if err := soon(func() error {
		late, done := context.WithTimeout(t.Context(), 20*time.Second)
		defer done()
		_, err := atoll.Handle(other.client, made).Files().Write(late, "/n", strings.NewReader(name), atoll.WriteOptions{})
		return err
	}); err != nil {
		t.Errorf("%s does not take over %s of %s: %v", other.name, name, control.name, err)
	}
	control.start(t)
	if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Remove(ctx, string(made)) }); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// drain moves the sessions from a node, and lets it take sandboxes again.
func (a *archipelago) drain(t *testing.T, control, node *member) {
	late, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	d, err := control.client.Admin().DrainNode(late, node.name, false)
	if err != nil && !again(err) {
		t.Errorf("the drain of %s: %v", node.name, err)
	}
	a.did(fmt.Sprintf("drains (%v)", sandbox.CodeOf(err)), 1)
	a.did("moves by drains", len(d.Moved))
	if err := a.attempt(t.Context(), func(ctx context.Context, c *atoll.Client) error {
		_, err := c.Admin().UpdateNode(ctx, node.name, operator.NodeChange{Cordoned: new(bool)})
		return err
	}); err != nil {
		t.Errorf("uncordon %s: %v", node.name, err)
	}
}

// loses drops what a daemon sends to another one, until heal is called.
func (m *member) loses(t *testing.T, to *member) (heal func()) {
	t.Helper()
	ip(t, m.inside, "neigh replace "+to.address+" lladdr 02:00:00:00:00:01 dev "+m.inside.link+" nud permanent")
	return func() { ip(t, m.inside, "neigh del "+to.address+" dev "+m.inside.link) }
}

// again reports whether a client may try again what failed.
func again(err error) bool {
	return transient(err) || sandbox.CodeOf(err) == sandbox.CodeStale || errors.Is(err, context.DeadlineExceeded)
}

// patience is how long clients repeat an operation.
const patience = 4 * time.Minute

// attempt does something with one of the control daemons, again with others if that
// may help.
func (a *archipelago) attempt(ctx context.Context, do func(context.Context, *atoll.Client) error) error {
	late, done := context.WithTimeout(ctx, patience)
	defer done()
	a.mu.Lock()
	c := a.controls[rand.IntN(len(a.controls))]
	a.mu.Unlock()
	for {
		one, over := context.WithTimeout(late, 20*time.Second)
		err := do(one, c.client)
		over()
		if err == nil || !again(err) || late.Err() != nil {
			return err
		}
		time.Sleep(time.Duration(20+rand.IntN(200)) * time.Millisecond)
		if rand.IntN(3) == 0 {
			a.mu.Lock()
			c = a.controls[rand.IntN(len(a.controls))]
			a.mu.Unlock()
		}
	}
}

// remove is attempt for a removal. An earlier attempt may have taken effect.
func (a *archipelago) remove(ctx context.Context, do func(context.Context, *atoll.Client) error) error {
	if err := a.attempt(ctx, do); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return fmt.Errorf("removing: %w", err)
	}
	return nil
}

// did counts what was acknowledged.
func (a *archipelago) did(what string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.saw[what] += n
}

// onSession does something with a session, which it makes if there is none.
func (a *archipelago) onSession(ctx context.Context, name string, do func(context.Context, *atoll.Session) error) error {
	return a.attempt(ctx, func(ctx context.Context, c *atoll.Client) error {
		x, err := c.Sessions().Create(ctx, small, atoll.SessionOptions{Name: name, AttachIfExists: true})
		if err != nil {
			return err
		}
		defer x.Close()
		return do(ctx, x)
	})
}

// useSessions uses one session after the other.
func (a *archipelago) useSessions(ctx context.Context, t *testing.T, worker int) {
	for i := 0; ctx.Err() == nil && !t.Failed(); i++ {
		name := fmt.Sprintf("x-%d-%d", worker, i)
		if err := a.useSession(ctx, t, name); err != nil {
			t.Errorf("%s: %s: %v", time.Now().Format("15:04:05"), name, err)
		}
	}
}

// useSession counts in a file of a session and, unless it ends before, removes it.
func (a *archipelago) useSession(ctx context.Context, t *testing.T, name string) error {
	wait := context.WithoutCancel(ctx)
	acked := 0
	for acked < 5+rand.IntN(20) {
		if ctx.Err() != nil {
			return nil
		}
		next := strconv.Itoa(acked + 1)
		err := a.onSession(wait, name, func(ctx context.Context, x *atoll.Session) error {
			if err := a.holds(ctx, x, acked); err != nil {
				return err
			}
			if acked%2 == 0 {
				_, err := x.Files().Write(ctx, "/workspace/n", strings.NewReader(next), atoll.WriteOptions{})
				return err
			}
			res, err := x.Run(ctx, sandbox.Command{Shell: "echo " + next + " >/workspace/new && sync && mv /workspace/new /workspace/n"})
			if err == nil && res.Exit.Code != 0 {
				return &sandbox.Error{Code: sandbox.CodeExhausted, Message: string(res.Stderr)} // its disk is full
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("writing %s: %w", next, err)
		}
		acked++
		a.mu.Lock()
		a.sessions[name] = acked
		a.saw["writes"]++
		a.mu.Unlock()
		switch rand.IntN(8) {
		case 0:
			err := a.onSession(wait, name, func(ctx context.Context, x *atoll.Session) error { _, err := x.Save(ctx); return err })
			if err != nil {
				return fmt.Errorf("saving: %w", err)
			}
			a.did("saves", 1)
		case 1:
			a.rests(ctx, name)
		default:
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		}
	}
	a.mu.Lock()
	delete(a.sessions, name)
	a.mu.Unlock()
	if err := a.remove(wait, func(ctx context.Context, c *atoll.Client) error { return c.Sessions().Remove(ctx, name) }); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = append(a.gone, name)
	a.saw["removed sessions"]++
	return nil
}

// rests waits until a session that nobody uses has been saved and its sandbox ended,
// or for so long that this does not happen now, because of a fault.
func (a *archipelago) rests(ctx context.Context, name string) {
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		a.mu.Lock()
		c := a.controls[rand.IntN(len(a.controls))]
		a.mu.Unlock()
		one, done := context.WithTimeout(ctx, 5*time.Second)
		x, err := c.client.Sessions().Get(one, name)
		done()
		if err == nil && x.Info().Lease != nil && x.Info().Lease.State == "cold" {
			a.did("rests", 1)
			return
		}
	}
}

// holds fails unless a session has the last number that was acknowledged, or the
// next, which may have been written without a response.
func (a *archipelago) holds(ctx context.Context, x *atoll.Session, acked int) error {
	res, err := x.Run(ctx, sandbox.Command{Shell: "cat /workspace/n 2>/dev/null || echo 0"})
	if err != nil {
		return err
	}
	got, err := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
	if err != nil || got < acked || got > acked+1 {
		return fmt.Errorf("it holds %q (%s), and %d was acknowledged; the receipt is %+v", res.Stdout, res.Stderr, acked, x.Receipt())
	}
	return nil
}

// useSandboxes makes sandboxes without sessions, and removes most of them.
func (a *archipelago) useSandboxes(ctx context.Context, t *testing.T) {
	wait := context.WithoutCancel(ctx)
	for i := 0; ctx.Err() == nil && !t.Failed(); i++ {
		name := fmt.Sprintf("box-%d", i)
		fail := func(what string, err error) {
			t.Errorf("%s: %s: %s: %v", time.Now().Format("15:04:05"), name, what, err)
		}
		var made sandbox.Sandbox
		err := a.attempt(wait, func(ctx context.Context, c *atoll.Client) error {
			box, err := c.Create(ctx, sandbox.Spec{Name: name, Resources: small.Resources}, atoll.CreateOptions{IdempotencyKey: name})
			if err == nil {
				made = box.Info()
			}
			if err == nil && made.State == sandbox.Creating {
				return &sandbox.Error{Code: sandbox.CodeUnavailable}
			}
			return err
		})
		if err != nil {
			fail("create", err)
			continue
		}
		if made.State != sandbox.Running {
			a.did("sandboxes that were undone", 1)
			continue
		}
		a.mu.Lock()
		a.alive[name] = made.ID
		a.saw["sandboxes"]++
		a.mu.Unlock()
		err = a.attempt(wait, func(ctx context.Context, c *atoll.Client) error {
			_, err := atoll.Handle(c, made.ID).Files().Write(ctx, "/n", strings.NewReader(name), atoll.WriteOptions{})
			return err
		})
		if err != nil {
			fail("write", err)
		}
		if i%4 == 0 && i < 40 {
			continue
		}
		a.mu.Lock()
		delete(a.alive, name)
		a.mu.Unlock()
		if err = a.remove(wait, func(ctx context.Context, c *atoll.Client) error { return c.Remove(ctx, string(made.ID)) }); err != nil {
			fail("remove", err)
		}
		a.mu.Lock()
		a.dead[name] = made.ID
		a.mu.Unlock()
	}
}

// wantReady waits until all control daemons have all nodes.
func (a *archipelago) wantReady(t *testing.T) {
	t.Helper()
	for _, c := range a.controls {
		err := soon(func() error {
			all, err := c.client.Admin().Nodes(t.Context())
			if err != nil {
				return err
			}
			for _, n := range all {
				if n.State != operator.NodeReady {
					return fmt.Errorf("%s is %s at %s: %s", n.Name, n.State, c.name, n.Reason)
				}
			}
			if len(all) != len(a.nodes) {
				return fmt.Errorf("%d nodes", len(all))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// soon waits for what several daemons do about each other, which takes longer than
// what [eventually] waits for.
func soon(what func() error) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err := what(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// living returns where each sandbox lives, without a daemon.
func (a *archipelago) living(t *testing.T) map[sandbox.ID][]string {
	t.Helper()
	all := map[sandbox.ID][]string{}
	for _, n := range a.nodes {
		for _, b := range n.existing(t) {
			all[sandbox.ID(b.Name)] = append(all[sandbox.ID(b.Name)], n.name)
		}
	}
	return all
}

// compare fails unless what was acknowledged, what is recorded and what lives
// agree, and everything can be used and removed.
func (a *archipelago) compare(t *testing.T) {
	t.Helper()
	for name, acked := range a.sessions {
		if err := a.onSession(t.Context(), name, func(ctx context.Context, x *atoll.Session) error { return a.holds(ctx, x, acked) }); err != nil {
			t.Errorf("in the end, %s: %v", name, err)
		}
	}
	for name, id := range a.alive {
		err := a.attempt(t.Context(), func(ctx context.Context, c *atoll.Client) error {
			var b strings.Builder
			r, err := atoll.Handle(c, id).Files().Read(ctx, "/n", atoll.ReadOptions{})
			if err != nil {
				return err
			}
			defer r.Close()
			if _, err := io.Copy(&b, r); err != nil {
				return err
			}
			if b.String() != name {
				return fmt.Errorf("it holds %q", b.String())
			}
			return nil
		})
		if err != nil {
			t.Errorf("in the end, %s: %v", name, err)
		}
	}
	if err := soon(func() error { return a.agree(t) }); err != nil {
		t.Error(err)
	}
	for name := range a.sessions {
		if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Sessions().Remove(ctx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, id := range a.alive {
		if err := a.remove(t.Context(), func(ctx context.Context, c *atoll.Client) error { return c.Remove(ctx, string(id)) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := soon(func() error {
		if left := a.living(t); len(left) > 0 {
			return fmt.Errorf("left on the nodes: %v", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if a.saw["writes"] == 0 || a.saw["sandboxes"] == 0 {
		t.Error("nothing was done, so nothing was shown")
	}
}

// agree compares records and nodes.
func (a *archipelago) agree(t *testing.T) error {
	t.Helper()
	c := a.controls[0].client
	wanted := map[sandbox.ID]string{} // what must live, and why
	all, err := c.Sessions().List(t.Context(), nil)
	if err != nil {
		return err
	}
	var bad []error
	listed := map[string]bool{}
	for _, x := range all {
		listed[x.Name] = true
		if x.Lease != nil && x.Lease.Sandbox != "" {
			wanted[x.Lease.Sandbox] = x.Name
		}
	}
	for name := range a.sessions {
		if !listed[name] {
			bad = append(bad, fmt.Errorf("the session %s was acknowledged and is not there", name))
		}
	}
	for _, name := range a.gone {
		if listed[name] {
			bad = append(bad, fmt.Errorf("the session %s was removed and is there", name))
		}
	}
	for name, id := range a.alive {
		wanted[id] = name
	}
	living := a.living(t)
	for id, name := range wanted {
		if len(living[id]) != 1 {
			bad = append(bad, fmt.Errorf("%s of %s lives on %v", id, name, living[id]))
		}
	}
	for id, on := range living {
		if wanted[id] == "" {
			bad = append(bad, fmt.Errorf("%s lives on %v, and nothing needs it", id, on))
		}
	}
	for info, err := range c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			return err
		}
		if wanted[info.ID] == "" {
			bad = append(bad, fmt.Errorf("%s is recorded as %s, and nothing needs it", info.ID, info.State))
		}
	}
	return errors.Join(bad...)
}
