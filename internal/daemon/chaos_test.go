package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// controlVariable has the options of a control daemon that is a process.
const controlVariable = "ATOLL_TEST_CONTROL"

// controller is a control daemon in a process of its own, which can be killed.
type controller struct {
	Dir, Store, Keys string
	Nodes            []string

	process *exec.Cmd
	stdin   io.Closer
	*atoll.Client
}

// controlProcess is a control daemon, if this process is to be one. It ends when
// its parent does.
func controlProcess() {
	text := os.Getenv(controlVariable)
	if text == "" {
		return
	}
	var c controller
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		m := daemontest.Machine{Dir: c.Dir, World: new(fake.World)}
		opts := m.Options()
		opts.Socket, opts.Store, opts.SessionGrace = true, c.Store, time.Hour
		opts.Fleet = &fleet.Config{Nodes: c.Nodes, KeyFile: c.Keys, Every: 100 * time.Millisecond}
		_, err = daemon.Start(context.Background(), opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func (c *controller) start(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	c.process = exec.Command(os.Args[0])
	c.process.Env = append(os.Environ(), controlVariable+"="+string(text))
	c.process.Stderr = os.Stderr
	out, err := c.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.stdin, err = c.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.process.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the control daemon says %q, %v", line, err)
	}
}

func (c *controller) kill() {
	_ = c.process.Process.Kill()
	_ = c.process.Wait()
}

// worker counts in a file of a session, through any control daemon. Nothing that
// was acknowledged may be lost.
type worker struct {
	name  string
	acked atomic.Int64
}

func (w *worker) run(ctx context.Context, t *testing.T, controls []*controller) {
	tried := int64(0)
	for i := 0; ctx.Err() == nil; {
		call, cancel := context.WithTimeout(ctx, 20*time.Second)
		text, err := inSession(call, controls[i%len(controls)].Client, w.name, "cat /workspace/n")
		var n int64
		if err == nil {
			if _, err := fmt.Sscan(text, &n); err != nil || n < w.acked.Load() || n > tried {
				t.Errorf("%s has %q, want %d to %d", w.name, text, w.acked.Load(), tried)
			}
			tried++
			if _, err = inSession(call, controls[i%len(controls)].Client, w.name, fmt.Sprintf("echo %d > /workspace/n", tried)); err == nil {
				w.acked.Store(tried)
			}
		}
		cancel()
		if err != nil { // try the other one
			i++
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// Two control daemons on one database and three nodes are killed and start again
// under load. Nothing acknowledged is lost, nothing lives twice, and everything
// goes on without a hand.
func TestChaosOfControlsAndNodes(t *testing.T) {
	need.Full(t, "it waits until daemons count as ended")
	address := storetest.Postgres(t)
	nodes := []*nodeDaemon{newNode(t, 32<<30), newNode(t, 24<<30), newNode(t, 16<<30)}
	keys := nodeKeys(t, nodes...)
	var controls []*controller
	for range 2 {
		c := &controller{Dir: t.TempDir(), Store: address, Keys: keys, Nodes: nodeList(nodes...)}
		var err error
		if c.Client, err = atoll.New(atoll.Options{Host: "unix://" + filepath.Join(c.Dir, atoll.SocketName)}); err != nil {
			t.Fatal(err)
		}
		c.start(t)
		t.Cleanup(func() {
			_ = c.Close()
			c.kill()
		})
		controls = append(controls, c)
	}
	var workers []*worker
	for i := range 6 {
		w := &worker{name: fmt.Sprintf("w%d", i)}
		s, err := controls[i%2].Sessions().Create(t.Context(), sandbox.Spec{Provider: "node-" + string(rune('a'+i%3))}, atoll.SessionOptions{Name: w.name})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(t.Context(), sandbox.Command{Shell: "mkdir -p /workspace; echo 0 > /workspace/n"}, atoll.RunOptions{}); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		workers = append(workers, w)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var work sync.WaitGroup
	for _, w := range workers {
		work.Go(func() { w.run(ctx, t, controls) })
	}
	defer work.Wait()
	defer stop()
	progress := func(when string) {
		t.Helper()
		before := make([]int64, len(workers))
		for i, w := range workers {
			before[i] = w.acked.Load()
		}
		repeat(t, when, func() error {
			for i, w := range workers {
				if w.acked.Load() < before[i]+2 {
					return fmt.Errorf("%s is still at %d", w.name, before[i])
				}
			}
			return nil
		})
		t.Log("all go on", when)
	}
	drain := func(c *controller, name string) {
		t.Helper()
		repeat(t, "drain "+name, func() error {
			out, err := c.Admin().DrainNode(ctx, name, false)
			if err == nil && len(out.Kept) > 0 {
				err = errors.New(out.Kept[0].Reason)
			}
			return err
		})
	}
	progress("at first")
	for i, c := range controls {
		c.kill()
		progress(fmt.Sprintf("without control daemon %d", i))
		other := controls[1-i] // has all of them now
		nodes[i].kill(t)
		nodes[i].start(t)
		progress(fmt.Sprintf("after node %d was away", i))
		drain(other, string(rune('a'+i)))
		no := false
		if _, err := other.Admin().UpdateNode(ctx, string(rune('a'+i)), operator.NodeChange{Cordoned: &no}); err != nil {
			t.Error(err)
		}
		c.start(t)
		progress(fmt.Sprintf("with control daemon %d again", i))
	}
	stop()
	work.Wait()
	repeat(t, "one sandbox for each session", func() error {
		living := 0
		for _, n := range nodes {
			living += livingOn(t, n)
		}
		if living != len(workers) {
			return fmt.Errorf("%d sandboxes live, want %d", living, len(workers))
		}
		return nil
	})
}

// cost is what an operation takes.
type cost struct{ writes, reads, requests int64 }

// costs are the most that operations on a sandbox on a node may take. What happens
// in the background counts at times; see docs/design/scale.md for usual figures.
var costs = []struct {
	name string
	most cost
}{
	{"create", cost{13, 14, 4}},
	{"exec", cost{10, 10, 4}},
	{"remove", cost{15, 14, 6}},
	{"session create", cost{32, 44, 4}},
	{"session exec", cost{22, 30, 6}},
}

// What operations cost is written down, so that it does not grow unnoticed.
func TestCostsOnNodes(t *testing.T) {
	var now struct{ writes, reads, requests atomic.Int64 }
	n := newNode(t, 32<<30)
	target, err := url.Parse("http://" + n.address)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorLog = log.New(io.Discard, "", 0) // connections are cut at the end
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/load" {
			now.requests.Add(1)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close) // after the daemon, which keeps connections open
	address := storetest.Postgres(t)
	d := daemontest.New(t).Start(t, func(o *daemon.Options) {
		o.Store, o.SessionGrace = address, time.Hour
		o.Fleet = &fleet.Config{Nodes: []string{"a=" + proxy.URL}, KeyFile: nodeKeys(t, n), Every: time.Hour}
		o.Trace = func(_ context.Context, statement string) {
			if strings.HasPrefix(strings.TrimSpace(statement), "SELECT") {
				now.reads.Add(1)
			} else {
				now.writes.Add(1)
			}
		}
	})
	c := daemontest.Client(t, d)
	var sb *atoll.Sandbox
	var session *atoll.Session
	do := map[string]func() error{
		"create": func() (err error) { sb, err = c.Create(t.Context(), sandbox.Spec{}); return err },
		"exec": func() error {
			_, err := sb.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
			return err
		},
		"remove": func() error { return sb.Destroy(t.Context()) },
		"session create": func() (err error) {
			session, err = c.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{})
			return err
		},
		"session exec": func() error {
			_, err := session.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
			return err
		},
	}
	least := map[string]cost{}
	for round := range 6 {
		for _, op := range costs {
			before := cost{now.writes.Load(), now.reads.Load(), now.requests.Load()}
			if err := do[op.name](); err != nil {
				t.Fatalf("%s: %v", op.name, err)
			}
			got := cost{now.writes.Load() - before.writes, now.reads.Load() - before.reads, now.requests.Load() - before.requests}
			if old, known := least[op.name]; known { // what happens in the background at times does not count
				got = cost{min(old.writes, got.writes), min(old.reads, got.reads), min(old.requests, got.requests)}
			}
			if round > 0 { // the first one opens the provider
				least[op.name] = got
			}
		}
		_ = session.Close()
	}
	for _, op := range costs {
		got := least[op.name]
		t.Logf("%s: %d writing and %d reading statements, %d requests to the node", op.name, got.writes, got.reads, got.requests)
		if got.writes > op.most.writes || got.reads > op.most.reads || got.requests > op.most.requests {
			t.Errorf("%s: %+v, want at most %+v", op.name, got, op.most)
		}
	}
}
