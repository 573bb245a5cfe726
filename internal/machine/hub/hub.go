// Package hub is the daemon's side of the connections to self-hosted machines.
// It lets machines in, enrols them, knows which of them live, and opens streams
// to them.
package hub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Config configures a Hub.
type Config struct {
	// URL is the address of the NATS server, and Options are its credentials.
	URL     string
	Options []nats.Option
	// Issuer is the seed of the account key that the server believes.
	Issuer []byte
	// Account is the server's account of the machines and of this daemon.
	Account string
	// Kick closes a connection of the server. Nil: connections that must end are
	// told so, and have to prove themselves again within the hour.
	Kick func(server string, client uint64) error
	// Program is offered to machines whose owners want updates. Nil: nothing is.
	Program *Program
	Store   *store.Store
	Logger  *slog.Logger
}

// Hub connects a daemon to machines. It is safe for concurrent use. The caller
// closes it.
type Hub struct {
	cfg    Config
	issuer nkeys.KeyPair
	conn   *nats.Conn
	mux    *machine.Mux
	self   string // identifies this daemon in subjects
	life   context.Context
	stop   context.CancelFunc
	began  time.Time
	offers offers

	mu     sync.Mutex
	peers  map[string]*peer                                                             // by machine
	heard  chan struct{}                                                                // closed and replaced when a machine was heard
	report func(ctx context.Context, tenant, id string, agreed operator.Consents) error // nil: nobody asks
}

// connection identifies a connection of a NATS server.
type connection struct {
	server string
	client uint64
}

// peer is the state of the process of a machine.
type peer struct {
	subjects machine.Subjects
	greeting machine.Greeting
	seen     time.Time
	left     bool
	conns    []connection // the newest at the end

	reported  *operator.Consents // nil: none yet
	reporting bool               // a report is on its way
}

// Open connects to the NATS server. Later, the connection is made again for as
// long as it takes.
func Open(cfg Config) (_ *Hub, err error) {
	h := &Hub{cfg: cfg, self: rand.Text(), began: time.Now(), peers: map[string]*peer{}, heard: make(chan struct{})}
	h.life, h.stop = context.WithCancel(context.Background())
	if h.issuer, err = nkeys.FromSeed(cfg.Issuer); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machines.open", Subject: "issuer", Message: "is not the seed of an account's key", Cause: err}
	}
	options := append([]nats.Option{
		nats.Name("atoll daemon"), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond), nats.CustomInboxPrefix("_INBOX." + h.self),
		nats.ReconnectHandler(func(*nats.Conn) { h.mux.Reconnected() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { cfg.Logger.Warn("NATS", "error", err) }),
	}, cfg.Options...)
	if h.conn, err = nats.Connect(cfg.URL, options...); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "machines.open", Subject: "NATS", Message: err.Error(), Cause: err}
	}
	h.mux = machine.NewMux(machine.MuxConfig{
		Send: h.conn.Publish, Payload: h.conn.MaxPayload, Accept: h.accept(), Max: maxDownloads,
	})
	const group = "atoll"
	_, err = h.conn.QueueSubscribe("$SYS.REQ.USER.AUTH", group, func(m *nats.Msg) { go h.authorize(m) })
	if err == nil {
		_, err = h.conn.QueueSubscribe("enrol.*", group, h.enrol)
	}
	if err == nil {
		_, err = h.conn.Subscribe(machine.All, h.receive)
	}
	if err == nil {
		err = h.conn.Flush()
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *Hub) now() time.Time { return h.cfg.Store.Now() }

// Close ends the streams and the connection. Sandboxes on machines go on.
func (h *Hub) Close() {
	h.stop()
	h.mux.Close()
	_ = h.conn.FlushTimeout(time.Second)
	h.conn.Close()
}

// maxConns is how many connections of a machine are known. A process needs one;
// the others are those that were lost, or that another process replaced.
const maxConns = 32

// connected records a connection that the server lets in, and closes the oldest
// one if there are too many: what is not known cannot be closed later.
func (h *Hub) connected(id string, c connection) {
	h.mu.Lock()
	p := h.peer(id)
	p.conns = append(p.conns, c)
	var oldest []connection
	if n := len(p.conns) - maxConns; n > 0 {
		oldest = slices.Clone(p.conns[:n])
		p.conns = slices.Delete(p.conns, 0, n)
	}
	h.mu.Unlock()
	h.kick(oldest)
}

// kick closes connections. Those that ended already are no error.
func (h *Hub) kick(conns []connection) {
	if h.cfg.Kick == nil {
		return
	}
	for _, c := range conns {
		if err := h.cfg.Kick(c.server, c.client); err != nil {
			h.cfg.Logger.Debug("closing a connection of a machine", "error", err)
		}
	}
}

func (h *Hub) peer(id string) *peer {
	p := h.peers[id]
	if p == nil {
		p = &peer{}
		h.peers[id] = p
	}
	return p
}

// receive handles the messages of machines. Their subjects are proved by the
// server.
func (h *Hub) receive(msg *nats.Msg) {
	from, rest, ok := machine.Parse(msg.Subject)
	if !ok {
		return
	}
	what, more, _ := strings.Cut(rest, ".")
	switch what {
	case machine.Ops:
		if daemon, id, _ := strings.Cut(more, "."); daemon == h.self {
			h.mux.Receive(id, h.ops(from)+id, msg.Data)
		}
	case machine.Hello, machine.Alive:
		var g machine.Greeting
		if json.Unmarshal(msg.Data, &g) == nil {
			h.greet(from, g)
			h.offer(from, g)
		}
	case machine.Leaving:
		h.mu.Lock()
		if p := h.peers[from.Machine]; p != nil && p.subjects == from {
			p.left = true
		}
		h.mu.Unlock()
	}
}

func (h *Hub) ops(s machine.Subjects) string { return s.Down() + machine.Ops + "." + h.self + "." }

// greet records that a process of a machine lives. One process serves a machine:
// the one that started last.
func (h *Hub) greet(from machine.Subjects, g machine.Greeting) {
	h.mu.Lock()
	p := h.peer(from.Machine)
	former := p.subjects
	switch {
	case former != from && g.Started.Before(p.greeting.Started):
		h.mu.Unlock()
		h.dismiss(from, machine.Farewell{Reason: "another process with the same enrolment serves the machine"})
		return
	case former != from:
		p.subjects = from
	}
	if g.Key == "" {
		g.Key, g.Provider = p.greeting.Key, p.greeting.Provider
	}
	p.greeting, p.seen, p.left = g, time.Now(), false
	h.consented(from, p)
	close(h.heard)
	h.heard = make(chan struct{})
	h.mu.Unlock()
	if former != from && former != (machine.Subjects{}) {
		h.fail(former, &machine.Error{Code: machine.CodeFenced, Text: "the machine's program was restarted"})
		h.dismiss(former, machine.Farewell{Reason: "another process with the same enrolment serves the machine"})
	}
}

const reportTimeout = 10 * time.Second

// OnConsents makes the hub call report with the consents of a machine's owner, when the
// machine is heard first and after each change, one call at a time for a machine.
// After an error, the next message of the machine repeats the call.
func (h *Hub) OnConsents(report func(ctx context.Context, tenant, id string, agreed operator.Consents) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report = report
}

// consented reports the consents of a machine unless that was done. It is called
// with the lock.
func (h *Hub) consented(from machine.Subjects, p *peer) {
	agreed := p.greeting.Consents
	if h.report == nil || p.reporting || p.reported != nil && slices.Equal(*p.reported, agreed) {
		return
	}
	p.reporting = true
	report := h.report
	go func() {
		ctx, cancel := context.WithTimeout(h.life, reportTimeout)
		defer cancel()
		err := report(ctx, from.Tenant, from.Machine, agreed)
		if err != nil && h.life.Err() == nil {
			h.cfg.Logger.Error("recording what the owner of a machine agrees to", "machine", from.Machine, "error", err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		p.reporting = false
		if err == nil {
			p.reported = &agreed
			h.consented(p.subjects, p) // what was said meanwhile
		}
	}()
}

func (h *Hub) fail(s machine.Subjects, why *machine.Error) {
	down := s.Down()
	h.mux.Fail(func(subject string) bool { return strings.HasPrefix(subject, down) }, false, why)
}

func (h *Hub) dismiss(s machine.Subjects, why machine.Farewell) {
	text, err := json.Marshal(why)
	if err == nil {
		_ = h.conn.Publish(s.Down()+machine.End, text)
	}
}

// Stats counts the machines that were heard, by liveness, and the streams to
// them.
func (h *Hub) Stats() (byLiveness map[string]int, streams int) {
	h.mu.Lock()
	ids := slices.Collect(maps.Keys(h.peers))
	h.mu.Unlock()
	byLiveness = map[string]int{string(catalog.MachineOnline): 0, string(catalog.MachineReconnecting): 0, string(catalog.MachineOffline): 0}
	for _, id := range ids {
		l, _ := h.liveness(id, true)
		byLiveness[string(l)]++
	}
	return byLiveness, h.mux.Len()
}

// Consents returns the consents of a machine's owner, from its last message.
func (h *Hub) Consents(id string) (all operator.Consents, heard bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[id]
	if p == nil || p.seen.IsZero() {
		return nil, false
	}
	return p.greeting.Consents, true
}

// Liveness returns whether a machine answers, and when it was heard of last.
func (h *Hub) Liveness(m *store.Machine) (string, time.Time) {
	l, seen := h.liveness(m.ID, m.State == operator.MachineActive)
	return string(l), seen
}

func (h *Hub) liveness(id string, active bool) (catalog.Liveness, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[id]
	if p == nil || p.seen.IsZero() {
		return catalog.MachineLiveness(active, false, time.Time{}, time.Now()), time.Time{}
	}
	now := time.Now()
	if p.left {
		return catalog.MachineOffline, p.seen
	}
	return catalog.MachineLiveness(active, now.Sub(p.seen) <= machine.Fresh && h.conn.IsConnected(), p.seen, now), p.seen
}

// Revoked closes the connections of a machine. The caller has stored that it is
// revoked, so that no later connection is let in.
func (h *Hub) Revoked(id string) {
	h.mu.Lock()
	p := h.peers[id]
	delete(h.peers, id)
	h.mu.Unlock()
	if p == nil {
		return
	}
	if p.subjects != (machine.Subjects{}) {
		h.fail(p.subjects, &machine.Error{Code: machine.CodeOffline, Text: "the enrolment of the machine was revoked"})
		h.dismiss(p.subjects, machine.Farewell{Reason: "the enrolment was revoked", Revoked: true})
		_ = h.conn.FlushTimeout(time.Second)
	}
	h.kick(p.conns)
}

// Credentials returns the key of a machine's own daemon, and its provider. Both
// are empty while the machine was not heard.
func (h *Hub) Credentials(id string) (key, provider string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.peers[id]; p != nil {
		return p.greeting.Key, p.greeting.Provider
	}
	return "", ""
}

// Times of Dial.
const (
	openTime = 15 * time.Second
	tries    = 4 // of a stream that was refused before anything was done
	firstTry = 500 * time.Millisecond
	lastTry  = 8 * time.Second
)

// Dial opens a stream to the daemon of a machine. A machine that does not answer
// is CodeUnavailable.
func (h *Hub) Dial(ctx context.Context, id string) (net.Conn, error) {
	for n := 1; ; n++ {
		p, err := h.present(ctx, id)
		if err != nil {
			return nil, err
		}
		open, cancel := context.WithTimeout(ctx, openTime)
		s, err := h.mux.Open(open, h.ops(p))
		cancel()
		if err == nil {
			return s, nil
		}
		var refused *machine.Error
		if !errors.As(err, &refused) || refused.Code != machine.CodeDraining || n == tries {
			if ctx.Err() == nil {
				err = unavailable("the machine does not answer", err)
			}
			return nil, err
		}
		wait := min(firstTry<<n, lastTry)
		select {
		case <-time.After(time.Duration(mathrand.Int64N(int64(wait)))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// present returns the process of a machine that lives. It waits for one that may
// only be reconnecting.
func (h *Hub) present(ctx context.Context, id string) (machine.Subjects, error) {
	wait := time.NewTimer(max(machine.Beat+time.Second-time.Since(h.began), 0))
	defer wait.Stop()
	for first := true; ; first = false {
		l, _ := h.liveness(id, true)
		h.mu.Lock()
		p, heard := h.peers[id], h.heard
		h.mu.Unlock()
		switch {
		case l == catalog.MachineOnline || l == catalog.MachineReconnecting:
			return p.subjects, nil
		case first && p != nil && p.left, h.life.Err() != nil:
			return machine.Subjects{}, ErrOffline
		}
		select {
		case <-heard:
		case <-wait.C:
			return machine.Subjects{}, ErrOffline
		case <-ctx.Done():
			return machine.Subjects{}, ctx.Err()
		}
	}
}

// ErrOffline is the error of Dial for a machine that is not connected.
var ErrOffline error = &sandbox.Error{
	Code: sandbox.CodeUnavailable, Op: "machine.dial", Message: "the machine is offline",
	Hint: "start it, and see there: atoll machine status",
}

func unavailable(message string, cause error) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "machine.dial", Message: message, Cause: cause, Hint: "it may be connecting again: see atoll machine ls"}
}
