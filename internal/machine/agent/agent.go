// Package agent is the machine's side of the connection to a daemon. It enrols
// the machine, keeps the connection, and connects streams of the daemon to the
// machine's own daemon. All connections are outbound.
package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/machine/update"
	"github.com/atoll-run/atoll/sandbox"
)

// Local is the machine's own daemon.
type Local interface {
	// Dial connects to its API, which needs a key.
	Dial(ctx context.Context) (net.Conn, error)
	// Credentials returns such a key, which allows what the owner offers, and the
	// name of its provider.
	Credentials() (key, provider string)
	// Share says whether commands that start from now on may use the machine's own
	// screen.
	Share(screen bool)
	// Halt stops all commands in its sandboxes, and Continue ends that.
	Halt(ctx context.Context) error
	Continue(ctx context.Context) error
	// Sandboxes returns how many sandboxes there are.
	Sandboxes(ctx context.Context) (int, error)
	// Backup returns a copy of its database.
	Backup(ctx context.Context) (io.ReadCloser, error)
	// Clear removes all sandboxes.
	Clear(ctx context.Context) error
	Close() error
}

// Config configures an agent.
type Config struct {
	Dir     string // of the machine's files
	Version string
	// Serve starts the machine's own daemon. The agent closes it.
	Serve  func(ctx context.Context, e Enrolled) (Local, error)
	Logger *slog.Logger
	// Again are the arguments with which a newer program does the same. Nil: the
	// program is not updated, whatever the machine's owner wants.
	Again []string
	// Restore replaces the database of the machine's own daemon, which does not run,
	// with a backup. It is needed with Again.
	Restore func(ctx context.Context, backup string) error

	trial bool // this process only shows that it comes up
	// Trial is how long a newer program may take to come up. Zero: two minutes.
	Trial time.Duration
}

// Agent serves a daemon with a machine. It is safe for concurrent use.
type Agent struct {
	cfg   Config
	local Local

	mu       sync.Mutex
	enrolled Enrolled
	link     *link // nil: paused
	ended    chan error
	staged   chan update.Offer // what is to serve the machine instead
	up       func()            // called when the machine is connected

	orders sync.Mutex // one order, or change of the program, at a time
}

// run serves until ctx or the enrolment ends, or a newer program is to serve the
// machine.
func run(ctx context.Context, cfg Config, up func()) (*update.Offer, error) {
	e, err := Load(cfg.Dir)
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, enrolled: e, ended: make(chan error, 1), staged: make(chan update.Offer, 1), up: sync.OnceFunc(up)}
	control, err := a.listen()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	if a.local, err = cfg.Serve(ctx, e); err != nil {
		return nil, err
	}
	defer func() { _ = a.local.Close() }()
	if e.Paused {
		err = a.local.Halt(ctx)
	} else {
		err = errors.Join(a.local.Continue(ctx), a.connect())
	}
	if err != nil {
		return nil, err
	}
	go a.control(control)
	defer a.disconnect()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case err = <-a.ended:
			return nil, err
		case next := <-a.staged:
			if a.idle(ctx) {
				return &next, nil
			}
		}
	}
}

// connect opens the connection to the daemon.
func (a *Agent) connect() error {
	l, err := newLink(a)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.link = l
	a.mu.Unlock()
	return nil
}

func (a *Agent) disconnect() {
	a.mu.Lock()
	l := a.link
	a.link = nil
	a.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// end ends Run.
func (a *Agent) end(err error) {
	select {
	case a.ended <- err:
	default:
	}
}

// link is the connection to the daemon.
type link struct {
	a        *Agent
	subjects machine.Subjects
	started  time.Time
	conn     *nats.Conn
	mux      *machine.Mux
	life     context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup
	offers   chan update.Signed
	staged   string // SHA-256 of the program that waits; of update alone
}

// Delays between attempts to connect: fast at first, and up to a minute later.
const (
	fastTries = 5
	fastWait  = time.Second
	slowWait  = 60 * time.Second
)

func backoff(tries int) time.Duration {
	most := fastWait
	if tries > fastTries {
		most = min(fastWait<<min(tries-fastTries, 6), slowWait)
	}
	return fastWait/10 + time.Duration(mathrand.Int64N(int64(most)))
}

func newLink(a *Agent) (*link, error) {
	e := a.enrolled
	l := &link{a: a, subjects: machine.Subjects{Tenant: e.Tenant, Machine: e.Machine, Instance: rand.Text()}, started: time.Now(), offers: make(chan update.Signed, 1)}
	options, _, err := e.options(l.subjects.Instance)
	if err != nil {
		return nil, err
	}
	l.life, l.stop = context.WithCancel(context.Background())
	ready := make(chan struct{})
	options = append(options, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(), nats.RetryOnFailedConnect(true),
		nats.CustomReconnectDelay(backoff), nats.PingInterval(20*time.Second), nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(func(*nats.Conn) { <-ready; l.greet(); a.up() }), // of a first attempt that failed, too
		nats.ReconnectHandler(func(*nats.Conn) {
			<-ready
			l.greet()
			l.mux.Reconnected()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				a.cfg.Logger.Warn("the connection to the daemon is lost", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.cfg.Logger.Warn("NATS", "error", err) }))
	if l.conn, err = nats.Connect(e.URL, options...); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "machine.connect", Subject: e.URL, Message: err.Error(), Cause: err}
	}
	l.mux = machine.NewMux(machine.MuxConfig{Send: l.conn.Publish, Payload: l.payload, Accept: l.accept, Max: machine.MaxStreams})
	if _, err = l.conn.Subscribe(l.subjects.Down()+">", l.receive); err != nil {
		l.conn.Close()
		return nil, err
	}
	close(ready)
	l.work.Go(l.beat)
	if a.cfg.Again != nil {
		l.work.Go(l.update)
	}
	return l, nil
}

// payload returns the largest message, also while there is no connection.
func (l *link) payload() int64 {
	if n := l.conn.MaxPayload(); n > 0 {
		return n
	}
	return 64 << 10
}

func (l *link) publish(what string, v any) {
	if text, err := json.Marshal(v); err == nil {
		_ = l.conn.Publish(l.subjects.Up()+what, text) // it is repeated
	}
}

func (l *link) greeting() machine.Greeting {
	g := machine.Greeting{Started: l.started, Version: l.a.cfg.Version, Mode: l.a.enrolled.Mode, OS: runtime.GOOS, Arch: runtime.GOARCH}
	g.Consents = l.a.agreed()
	g.Key, g.Provider = l.a.local.Credentials()
	return g
}

func (l *link) greet() { l.publish(machine.Hello, l.greeting()) }

// beat says from time to time that the machine lives. The daemon may be another
// process than the one that was greeted, so every beat is complete.
func (l *link) beat() {
	tick := time.NewTicker(machine.Beat)
	defer tick.Stop()
	l.greet()
	for {
		select {
		case <-tick.C:
			l.publish(machine.Alive, l.greeting())
		case <-l.life.Done():
			return
		}
	}
}

func (l *link) receive(msg *nats.Msg) {
	s, rest, ok := machine.Parse(msg.Subject)
	if !ok || s != l.subjects {
		return
	}
	what, more, _ := strings.Cut(rest, ".")
	switch what {
	case machine.Ops:
		daemon, id, ok := strings.Cut(more, ".")
		if ok {
			l.mux.Receive(id, l.subjects.Up()+machine.Ops+"."+daemon+"."+id, msg.Data)
		}
	case machine.Offer:
		var s update.Signed
		if json.Unmarshal(msg.Data, &s) != nil {
			return
		}
		select {
		case l.offers <- s:
		default: // one is looked at; the daemon repeats it
		}
	case machine.End:
		var f machine.Farewell
		if json.Unmarshal(msg.Data, &f) != nil {
			return
		}
		l.a.cfg.Logger.Warn("the daemon ended the connection", "reason", f.Reason)
		l.a.end(&sandbox.Error{Code: sandbox.CodeDenied, Op: "machine.serve", Message: f.Reason})
	}
}

// accept connects a stream to the machine's own daemon.
func (l *link) accept(s *machine.Stream) {
	l.work.Go(func() {
		defer s.Close()
		conn, err := l.a.local.Dial(l.life)
		if err != nil {
			l.a.cfg.Logger.Error("connecting to the machine's own daemon", "error", err)
			return
		}
		defer conn.Close()
		done := make(chan struct{})
		go func() {
			select {
			case <-s.Over():
			case <-done:
			}
			_ = conn.SetDeadline(time.Unix(1, 0))
		}()
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = io.Copy(conn, s)
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
		})
		_, _ = io.Copy(s, conn)
		_ = s.CloseWrite()
		both.Wait()
		close(done)
	})
}

func (l *link) close() {
	l.stop()
	l.publish(machine.Leaving, struct{}{})
	l.mux.Close()
	_ = l.conn.FlushTimeout(time.Second)
	l.conn.Close()
	l.work.Wait()
}

// loopback reports whether an address is this machine's own.
func loopback(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
