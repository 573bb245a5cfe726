package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/atoll-run/atoll"
)

// member is a daemon of an archipelago, in a network namespace of its own.
type member struct {
	*soaker
	name, address string
	disk          string // a node's
	database      *relay // a control daemon's way to PostgreSQL
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
