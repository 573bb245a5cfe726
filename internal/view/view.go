package view

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	wire "github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
	"github.com/atoll-run/atoll/stream"
)

const (
	defaultTTL = 120 * time.Second
	desktop    = "desktop"
	port       = "port"
	vncPort    = 5900
	maxStreams = 256 // of one tenant
	maxViewers = 32  // of one stream
	// recheck is how often the sandbox of an open socket is checked.
	recheck = 500 * time.Millisecond
	// farewell bounds the time for telling a viewer why its socket ends.
	farewell = 300 * time.Millisecond
)

// The reasons for which sockets are closed.
var (
	errRevoked  = errors.New("revoked")
	errRollover = errors.New("box-rollover")
	errKey      = errors.New("grant-revoked")
	errReaped   = errors.New("reaped")
	errRefused  = errors.New("unauthorized")
	errUnknown  = errors.New("unavailable") // the store cannot be read
	errConsent  = errors.New(string(catalog.ConsentRequired))
)

// Config configures a Service. Its functions may be called concurrently.
type Config struct {
	Secret []byte // signs tokens
	Guard  *guard.Guard
	// Life ends with the daemon.
	Life context.Context
	Now  func() time.Time
	// Find returns a sandbox that exists, by id or name, for the caller in ctx.
	Find func(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Dial connects to a port of a running sandbox.
	Dial func(ctx context.Context, ref string, port uint16) (net.Conn, error)
	// Open opens a running sandbox for commands, until ctx ends.
	Open func(ctx context.Context, ref string) (Commands, error)
	// Desktop starts the desktop of a sandbox with its VNC server, if they do not
	// run. Its errors say why it could not.
	Desktop func(ctx context.Context, ref string) error
	// Streamed refuses the desktop at a port of a sandbox whose screen is not
	// streamed. CodeDenied: its owner does not share it. It may be nil.
	Streamed func(ctx context.Context, sb sandbox.Sandbox, port uint16) error
	// Epoch returns CodeStale if another sandbox than that of the epoch serves a
	// session now.
	Epoch func(ctx context.Context, session string, epoch int64) error
	// Serving returns the sandbox that serves a session now, or CodeUnavailable.
	Serving func(ctx context.Context, session string) (id sandbox.ID, epoch int64, err error)
	// KeepAlive returns a context for requests of who. It ends when the key is no
	// longer valid, or the tenant is disabled.
	KeepAlive func(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
	// Rate is how many bytes per second a stream carries in each direction. Zero: 8
	// MiB.
	Rate int64
	// Valid returns CodeUnauthorized if the key, or without one the tenant, is not
	// accepted now.
	Valid func(ctx context.Context, tenant, keyID string) error
}

// Service manages the streams of one daemon. It is safe for concurrent use.
// Streams end with the daemon: their callers ask for new ones.
type Service struct {
	cfg     Config
	mu      sync.Mutex
	streams map[string]*opened

	terminals terminals
	rates     rates
}

// opened is a stream. Its Viewers are guarded by the Service's mutex.
type opened struct {
	viewing.Stream
	session string        // its id, if it has one
	who     key.Principal // the maker
	sandbox sandbox.Sandbox
	ensured bool  // the desktop is started for it
	linked  bool  // it has a link
	code    *code // of a link that nobody has opened; nil: there is none
	buckets buckets
	ctx     context.Context
	end     context.CancelCauseFunc
}

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg: cfg, streams: map[string]*opened{}} }

// operation returns the operation that the maker of a stream needs permission for. A port may
// be anything, and even connecting to it acts. That includes a desktop at another
// port than the usual one.
func operation(o *opened) ops.Op {
	if o.Mode == string(stream.Control) || o.Kind == port || o.Kind == desktop && o.Port != vncPort {
		return ops.StreamControl
	}
	return ops.StreamView
}

// Create makes a stream.
func (s *Service) Create(ctx context.Context, ref string, by viewing.StreamSession, n viewing.NewStream) (out viewing.StreamAccess, err error) {
	if n.Mode == "" {
		n.Mode = string(stream.View)
	}
	ensured := n.Kind == desktop && n.Port == 0
	if ensured {
		n.Port = vncPort
	}
	if n.Port == 0 && n.Kind != terminalKind {
		return out, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "port", Message: "is missing"}
	}
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	sb, err := s.cfg.Find(ctx, ref)
	if err != nil {
		return out, err
	}
	if n.Kind == terminalKind {
		n.Port = 0
		if n.Process, err = s.EnsureTerminal(ctx, sb.ID, n.Process, n.Size); err != nil {
			return out, err
		}
	} else {
		n.Process = ""
	}
	if ensured && who.AllowIn(sb.ID, ops.ComputerAct) == nil {
		// Without programs of ours, something else may listen.
		if err = s.cfg.Desktop(ctx, string(sb.ID)); err != nil && (n.Link || sandbox.CodeOf(err) != sandbox.CodeUnsupported) {
			return out, err
		}
	}
	id := strings.ToLower(rand.Text())
	o := s.open(&opened{session: by.Ref, who: who, sandbox: sb, ensured: ensured, Stream: viewing.Stream{
		ID: id, Sandbox: sb.ID, Kind: n.Kind, Mode: n.Mode, Port: n.Port, Process: n.Process, LeaseEpoch: by.Epoch, Expires: s.expiry(n.TTL),
	}})
	err = s.cfg.Guard.Do(ctx, operation(o), guard.Subject{Sandbox: sb.ID, Name: sb.Name, Subject: id}, func(ctx context.Context) error {
		if err := s.streamed(ctx, o, sb); err != nil {
			return err
		}
		if err := s.add(o); err != nil {
			return err
		}
		out, err = s.access(o.Stream, o)
		return err
	})
	if err != nil {
		o.end(errRevoked)
		return viewing.StreamAccess{}, err
	}
	if n.Link {
		out.Code, out.CodeExpires = s.offer(o)
	}
	return out, nil
}

func (s *Service) expiry(seconds int64) time.Time {
	ttl := time.Duration(seconds) * time.Second
	if ttl == 0 {
		ttl = defaultTTL
	}
	return s.cfg.Now().Add(ttl).Truncate(time.Second)
}

// open gives a stream its life.
func (s *Service) open(o *opened) *opened {
	o.ctx, o.end = context.WithCancelCause(s.cfg.Life)
	if o.buckets.up == nil {
		o.buckets = newBuckets(cmp.Or(s.cfg.Rate, defaultRate))
	}
	return o
}

// access returns a token for a stream. now is its present state.
func (s *Service) access(now viewing.Stream, o *opened) (out viewing.StreamAccess, err error) {
	out.Stream, out.URL, out.Transport, out.Client = now, "/v1/streams/"+now.ID, "tcp-ws", "bytes"
	switch now.Kind {
	case desktop:
		out.Transport, out.Client = "vnc-ws", "novnc"
	case terminalKind:
		out.Transport, out.Client = "terminal-ws", "xterm"
	}
	out.Token, err = stream.Seal(s.cfg.Secret, stream.Viewer, stream.Claims{
		Stream: now.ID, Tenant: o.who.Tenant, Sandbox: string(now.Sandbox), Session: o.session, LeaseEpoch: now.LeaseEpoch, Mode: stream.Mode(now.Mode), Port: now.Port, Expires: now.Expires.Unix(),
	})
	return out, err
}

// Renew returns a new token for a stream. If another sandbox serves the
// session now, the stream shows that one.
func (s *Service) Renew(ctx context.Context, ref string, by viewing.StreamSession, id string, ttl int64) (out viewing.StreamAccess, err error) {
	who, sb, err := s.find(ctx, ops.StreamList, ref)
	if err != nil {
		return out, err
	}
	o, err := s.get(who, sb.ID, by, id)
	if err != nil {
		return out, err
	}
	process, err := s.prepare(ctx, who, o, sb)
	if err != nil {
		return out, err
	}
	err = s.cfg.Guard.Do(ctx, operation(o), guard.Subject{Sandbox: sb.ID, Name: sb.Name, Subject: id}, func(ctx context.Context) error {
		if err := s.streamed(ctx, o, sb); err != nil {
			return err
		}
		o, now, err := s.rotate(o, sb, by.Epoch, process, s.expiry(ttl))
		if err == nil {
			out, err = s.access(now, o)
		}
		return err
	})
	if err != nil {
		return viewing.StreamAccess{}, err
	}
	return out, nil
}

// streamed refuses a desktop that a sandbox does not stream.
func (s *Service) streamed(ctx context.Context, o *opened, sb sandbox.Sandbox) error {
	if o.Kind != desktop || s.cfg.Streamed == nil {
		return nil
	}
	return s.cfg.Streamed(ctx, sb, o.Port)
}

// prepare starts in another sandbox what a stream shows there, as far as who may,
// and returns the command of a terminal.
func (s *Service) prepare(ctx context.Context, who key.Principal, o *opened, sb sandbox.Sandbox) (process string, err error) {
	switch {
	case o.Sandbox == sb.ID:
		return o.Process, nil
	case o.Kind == terminalKind:
		return s.ensureTerminal(ctx, sb.ID, sandbox.WindowSize{})
	case !o.ensured || who.AllowIn(sb.ID, ops.ComputerAct) != nil:
		return "", nil
	}
	if err = s.cfg.Desktop(ctx, string(sb.ID)); sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		err = nil // something else may listen
	}
	return "", err
}

// rotate makes a stream show a sandbox, if that is another than before and not
// an earlier one, and returns the present state of the stream. Its tokens of before open
// nothing then. Its time becomes another one unless that is zero.
func (s *Service) rotate(o *opened, sb sandbox.Sandbox, epoch int64, process string, expires time.Time) (*opened, viewing.Stream, error) {
	s.mu.Lock()
	was := s.streams[o.ID]
	if was == nil {
		s.mu.Unlock()
		return nil, viewing.Stream{}, notFound(o.ID)
	}
	o = was // another caller may have rotated it
	rotated := was.LeaseEpoch < epoch || was.LeaseEpoch == epoch && was.Sandbox != sb.ID
	if rotated {
		o = s.open(&opened{session: was.session, who: was.who, sandbox: sb, ensured: was.ensured, linked: was.linked, code: was.code, buckets: was.buckets, Stream: was.Stream})
		o.Sandbox, o.LeaseEpoch, o.Viewers, o.Process = sb.ID, epoch, 0, process
		s.streams[o.ID] = o
		was.end(errRollover)
	}
	if !expires.IsZero() {
		o.Expires = expires
	}
	now := o.Stream
	s.mu.Unlock()
	if rotated {
		s.fact(o, eventlog.StreamRotated, "", 0)
	}
	return o, now, nil
}

// fact records what happened to a stream.
func (s *Service) fact(o *opened, t eventlog.Type, why sandbox.Reason, viewers int) {
	a := audit.Action{Tenant: o.who.Tenant, Actor: eventlog.Actor{Key: o.who.Key, UID: o.who.UID}, Op: operation(o), Sandbox: o.Sandbox, Name: o.sandbox.Name, Subject: o.ID}
	err := s.cfg.Guard.Audit.FactLater(a, t, func(e *eventlog.Event) { e.Reason, e.Viewers, e.Epoch = why, viewers, o.LeaseEpoch })
	if err != nil && s.cfg.Guard.Note != nil {
		s.cfg.Guard.Note(s.cfg.Life, err)
	}
}

func (s *Service) add(o *opened) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for id, other := range s.streams {
		if other.Viewers == 0 && other.Expires.Before(s.cfg.Now()) {
			other.end(errRevoked)
			delete(s.streams, id)
		} else if other.who.Tenant == o.who.Tenant {
			count++
		}
	}
	if count >= maxStreams {
		return &sandbox.Error{Code: sandbox.CodeExhausted, Subject: "streams", Message: "there are too many streams", Hint: "revoke some, or wait until they expire"}
	}
	s.streams[o.ID] = o
	return nil
}

// List returns the streams of a sandbox or session, by id.
func (s *Service) List(ctx context.Context, ref string, by viewing.StreamSession) ([]viewing.Stream, error) {
	who, sb, err := s.find(ctx, ops.StreamList, ref)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []viewing.Stream{}
	for _, o := range s.streams {
		live := o.Viewers > 0 || !o.Expires.Before(s.cfg.Now())
		if live && o.of(who, sb.ID, by) {
			all = append(all, o.Stream)
		}
	}
	slices.SortFunc(all, func(a, b viewing.Stream) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// of reports whether a stream belongs to a sandbox, or to the session of a
// request.
func (o *opened) of(who key.Principal, id sandbox.ID, by viewing.StreamSession) bool {
	return o.who.Tenant == who.Tenant && (o.Sandbox == id || by.Ref != "" && o.session == by.Ref)
}

// get returns a stream of a sandbox or session.
func (s *Service) get(who key.Principal, id sandbox.ID, by viewing.StreamSession, name string) (*opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.streams[name]; o != nil && o.of(who, id, by) {
		return o, nil
	}
	return nil, notFound(name)
}

func notFound(id string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: "there is no such stream"}
}

// Revoke ends a stream and closes its sockets.
func (s *Service) Revoke(ctx context.Context, ref string, by viewing.StreamSession, id string) error {
	who, sb, err := s.find(ctx, ops.StreamRevoke, ref)
	if err != nil {
		return err
	}
	o, err := s.get(who, sb.ID, by, id)
	if err != nil {
		return err
	}
	if !s.drop(o, errRevoked, viewing.ReasonAdmin) {
		return notFound(id)
	}
	return nil
}

// drop ends a stream for good, and reports whether it had not ended.
func (s *Service) drop(o *opened, cause error, why sandbox.Reason) bool {
	s.mu.Lock()
	found := s.streams[o.ID] == o
	if found {
		delete(s.streams, o.ID)
	}
	s.mu.Unlock()
	if found {
		o.end(cause)
		s.fact(o, eventlog.StreamRevoked, why, 0)
	}
	return found
}

func (s *Service) find(ctx context.Context, op ops.Op, ref string) (who key.Principal, sb sandbox.Sandbox, err error) {
	if who, err = guard.Principal(ctx); err != nil {
		return who, sb, err
	}
	if sb, err = s.cfg.Find(ctx, ref); err != nil {
		return who, sb, err
	}
	err = s.cfg.Guard.Do(ctx, op, guard.Subject{Sandbox: sb.ID, Name: sb.Name}, func(context.Context) error { return nil })
	return who, sb, err
}

// Serve serves the socket of a viewer that has sent a token, and closes it.
// Without a valid token it sends nothing but the reason.
func (s *Service) Serve(ws *websocket.Conn, id, token string) {
	defer func() { _ = ws.CloseNow() }()
	o, err := s.enter(id, token)
	if err != nil {
		goodbye(ws, err)
		return
	}
	why := viewing.ReasonDisconnected
	defer func() { s.leave(o, why) }()
	ctx, cancel := context.WithCancelCause(o.ctx)
	defer cancel(nil)
	who := key.Principal{Tenant: o.who.Tenant, Key: o.who.Key, UID: o.who.UID, Sandbox: o.who.Sandbox, Verbs: []key.Verb{key.Read, key.Exec}}
	valid := s.cfg.KeepAlive(ctx, who, who.Tenant, who.Key)
	if err := s.stands(valid, o); err != nil {
		why = s.ended(ws, o, err)
		return
	}
	over := make(chan struct{})
	watched := make(chan struct{})
	var once sync.Once
	finish := func(err error) { once.Do(func() { why = s.ended(ws, o, err) }) }
	valid, leave := context.WithCancel(valid)
	defer leave()
	go func() {
		defer close(watched)
		if err := s.watch(valid, o, over); err != nil {
			finish(err)
			leave()
		}
	}()
	paced := s.pace(ws, o)
	if o.Kind == terminalKind {
		s.showTerminal(valid, paced, o, finish)
	} else {
		s.pass(valid, paced, o, finish)
	}
	close(over)
	<-watched
}

// pass copies between a viewer and a port until one of them ends or ctx does.
func (s *Service) pass(ctx context.Context, ws *pacedSocket, o *opened, finish func(error)) {
	conn, err := s.cfg.Dial(ctx, string(o.Sandbox), o.Port)
	if sandbox.CodeOf(err) == sandbox.CodeDenied && strings.Contains(err.Error(), errConsent.Error()) { // the machine says so itself
		finish(errConsent)
		return
	}
	if err != nil {
		goodbye(ws, errors.New("stream-port-unavailable"))
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	copyBytes(ws, &inside{Duplex: wire.AsDuplex(conn), over: func() {
		if err := s.lost(ctx, o); err != nil {
			finish(err)
		}
	}}, o.Mode == string(stream.View))
}

// enter checks a token and counts its viewer.
func (s *Service) enter(id, token string) (*opened, error) {
	c := stream.OpenViewer(s.cfg.Secret, token, s.cfg.Now())
	if c == nil || c.Stream != id {
		return nil, errRefused
	}
	s.mu.Lock()
	o := s.streams[id]
	s.mu.Unlock()
	if o == nil {
		return nil, errRefused
	}
	if err := s.granted(s.cfg.Life, o); errors.Is(err, errKey) {
		return nil, err
	} else if err != nil {
		return nil, errUnknown
	}
	s.mu.Lock()
	viewers, err := admit(o, c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.fact(o, eventlog.StreamOpened, "", viewers)
	return o, nil
}

// granted returns errKey if the key that made a stream is not accepted any more,
// which ends the stream.
func (s *Service) granted(ctx context.Context, o *opened) error {
	err := s.cfg.Valid(ctx, o.who.Tenant, o.who.Key)
	if sandbox.CodeOf(err) == sandbox.CodeUnauthorized {
		s.drop(o, errKey, viewing.ReasonGrantRevoked)
		return errKey
	}
	return err
}

// grants reports whether the claims of a token are what a stream grants, in any
// sandbox.
func (o *opened) grants(c *stream.Claims) bool {
	return o.who.Tenant == c.Tenant && o.Mode == string(c.Mode) && o.Port == c.Port
}

// admit counts a viewer with the claims of a valid token.
func admit(o *opened, c *stream.Claims) (viewers int, err error) {
	if !o.grants(c) || string(o.Sandbox) != c.Sandbox || o.LeaseEpoch != c.LeaseEpoch {
		return 0, errRefused
	}
	if o.Viewers >= maxViewers {
		return 0, errors.New("too-many-viewers")
	}
	o.Viewers++
	return o.Viewers, nil
}

func (s *Service) leave(o *opened, why sandbox.Reason) {
	s.mu.Lock()
	o.Viewers--
	viewers := o.Viewers
	s.mu.Unlock()
	s.fact(o, eventlog.StreamClosed, why, viewers)
}

// ended tells a viewer why the stream has ended.
func (s *Service) ended(ws *websocket.Conn, o *opened, err error) sandbox.Reason {
	goodbye(ws, err)
	switch {
	case errors.Is(err, errRollover):
		return viewing.ReasonRollover
	case errors.Is(err, errKey):
		s.drop(o, errKey, viewing.ReasonGrantRevoked)
		return viewing.ReasonRevoked
	case errors.Is(err, errConsent):
		s.drop(o, errConsent, viewing.ReasonRevoked)
		return viewing.ReasonRevoked
	case errors.Is(err, errRevoked):
		return viewing.ReasonRevoked
	}
	return viewing.ReasonReaped
}

// stands returns the reason why a stream has ended, if it has.
func (s *Service) stands(ctx context.Context, o *opened) error {
	if cause := context.Cause(ctx); cause != nil {
		for _, known := range []error{errRevoked, errRollover, errKey, errConsent} {
			if errors.Is(cause, known) {
				return known
			}
		}
		if sandbox.CodeOf(cause) == sandbox.CodeUnauthorized {
			return errKey
		}
		return errReaped
	}
	if err := s.streamed(guard.WithPrincipal(ctx, o.who), o, o.sandbox); sandbox.CodeOf(err) == sandbox.CodeDenied {
		return errConsent
	}
	if o.session == "" {
		return nil
	}
	if err := s.cfg.Epoch(ctx, o.session, o.LeaseEpoch); sandbox.CodeOf(err) == sandbox.CodeStale || sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return errRollover
	}
	return nil
}

// watch returns why a stream has ended, or nil when over is closed first.
func (s *Service) watch(ctx context.Context, o *opened, over <-chan struct{}) error {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return nil
		case <-ctx.Done():
		case <-tick.C:
		}
		if err := s.stands(ctx, o); err != nil {
			return err
		}
	}
}

// lost returns the reason if a connection ended because of its sandbox. The
// connection may end a little earlier than that is known.
func (s *Service) lost(ctx context.Context, o *opened) error {
	for wait := recheck / 16; ; wait *= 2 {
		if err := s.stands(ctx, o); err != nil {
			return err
		}
		asked, enough := context.WithTimeout(ctx, recheck)
		sb, err := s.cfg.Find(asked, string(o.Sandbox))
		silent := asked.Err() != nil && ctx.Err() == nil
		enough()
		if silent { // as a machine is that has just ended the connection
			return nil
		}
		if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && sb.State != sandbox.Running {
			return errReaped
		}
		if wait > recheck {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// inside is a connection to a sandbox. over is called when the sandbox ends it.
type inside struct {
	wire.Duplex
	over func()
}

func (i *inside) Read(p []byte) (int, error) {
	n, err := i.Duplex.Read(p)
	if err != nil {
		i.over()
	}
	return n, err
}

// closer is a socket that can be closed.
type closer interface {
	Close(code websocket.StatusCode, reason string) error
	CloseNow() error
}

// goodbye closes a socket and says why.
func goodbye(ws closer, why error) {
	late := time.AfterFunc(farewell, func() { _ = ws.CloseNow() })
	defer late.Stop()
	_ = ws.Close(websocket.StatusPolicyViolation, why.Error())
}

// copyBytes copies in both directions until one ends or, without an error, both.
func copyBytes(ws *pacedSocket, inside wire.Duplex, watching bool) {
	tunnel := wire.NewTunnel(ws, "viewer")
	if !watching {
		wire.Join(context.Background(), tunnel, inside)
		return
	}
	w := newWatchOnly()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = w.down(tunnel, inside)
		tunnel.Abort()
	}()
	_ = w.up(inside, tunnel) // its end, and a message that is not permitted, end the viewer
	_ = inside.Close()
	tunnel.Abort()
	<-sent
}
