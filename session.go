package atoll

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Sessions creates and finds sessions. A session is a name that always refers
// to the sandbox that serves it now, even after earlier sandboxes have ended.
type Sessions struct{ client *Client }

// Sessions returns the sessions of the daemon.
func (c *Client) Sessions() Sessions { return Sessions{c} }

// SessionOptions are options of a session. The zero value is usable.
type SessionOptions struct {
	Name   string            // unique among your sessions; empty: the id
	Group  string            // sessions of a group share one sandbox; empty: not shared
	Labels map[string]string // of the session, its sandboxes and its usage
	// PauseOnExit pauses the sandbox, instead of ending it, when no holder is left.
	PauseOnExit bool
	// Record says which recordings of the desktop are made without a request.
	Record viewing.RecordMode
	// AttachIfExists returns the session of that name if there is one. The spec and
	// the other options are then ignored.
	AttachIfExists bool
	// Provider, for Resume, is that of a sandbox which is rebuilt; empty: the one
	// that the envelope names. Create takes it from the spec.
	Provider string
	// Turn holds the sandbox until Release is called, even if this program ends
	// first. Without Turn, the daemon releases it 90 seconds after the last
	// heartbeat of this program.
	Turn bool
}

func (o *SessionOptions) holder() durable.HolderRef {
	h := durable.HolderRef{Kind: "operator", ID: "client-" + rand.Text()}
	if o.Turn {
		h.Kind = "turn"
	}
	return h
}

// Session is a handle on a session. Its methods are those of the sandbox that
// serves the session. It holds that sandbox from its creation until Release or
// Close.
//
// A Session stays with that sandbox, and follows it when Swap moves the session
// to another provider. If the sandbox was replaced in another way, methods
// return sandbox.CodeStale and have no effect until Acquire is called. Dropping
// a Session does not end it; its heartbeats continue until Close. Its methods
// may be called concurrently.
type Session struct {
	*Sandbox
	owner  *Client
	holder durable.HolderRef
	epoch  *atomic.Int64

	mu      sync.Mutex
	info    durable.Session
	receipt durable.Receipt
	stop    context.CancelFunc // ends the heartbeats; nil: it holds nothing
}

// Create makes a session and acquires its sandbox.
func (s Sessions) Create(ctx context.Context, spec sandbox.Spec, opts SessionOptions) (*Session, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := utf8Map("env", spec.Env); err != nil {
		return nil, err
	}
	holder := opts.holder()
	n := durable.NewSession{Name: opts.Name, Group: opts.Group, Spec: spec, Labels: opts.Labels, PauseOnExit: opts.PauseOnExit, Record: opts.Record, Holder: &holder}
	if opts.AttachIfExists {
		n.IfExists = durable.IfExistsAttach
	}
	var out durable.Opened
	if err := s.client.conn.Call(ctx, http.MethodPost, "/v1/sessions", nil, n, &out); err != nil {
		return nil, err
	}
	return s.client.session(holder, out), nil
}

// Attach acquires the sandbox of an existing session, by its name or id.
func (s Sessions) Attach(ctx context.Context, ref string, opts SessionOptions) (*Session, error) {
	out, err := s.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	out.holder = opts.holder()
	_, err = out.Acquire(ctx)
	return out, err
}

// Resume returns the session of an envelope and acquires its sandbox: the one
// that the envelope names, or one that is rebuilt. Of opts, Name, Provider and
// Turn apply.
func (s Sessions) Resume(ctx context.Context, e durable.Envelope, opts SessionOptions) (*Session, error) {
	holder := opts.holder()
	var out durable.Opened
	in := durable.ResumeRequest{Envelope: e, Name: opts.Name, Provider: opts.Provider, Holder: &holder}
	if err := s.client.conn.Call(ctx, http.MethodPost, "/v1/sessions/resume", nil, in, &out); err != nil {
		return nil, err
	}
	return s.client.session(holder, out), nil
}

// Get returns a session by its name or id without holding its sandbox. Each
// method call goes to the sandbox that serves the session at that time, and
// makes one if there is none.
func (s Sessions) Get(ctx context.Context, ref string) (*Session, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return nil, err
	}
	var info durable.Session
	if err := s.client.conn.Call(ctx, http.MethodGet, "/v1/sessions/"+ref, nil, nil, &info); err != nil {
		return nil, err
	}
	opts := SessionOptions{}
	return s.client.session(opts.holder(), durable.Opened{Session: info}), nil
}

// List returns the sessions that have all of the labels, by name.
func (s Sessions) List(ctx context.Context, labels map[string]string) ([]durable.Session, error) {
	query := url.Values{}
	for k, v := range labels {
		query.Add("label", k+"="+v)
	}
	var out struct{ Sessions []durable.Session }
	return out.Sessions, s.client.conn.Call(ctx, http.MethodGet, "/v1/sessions", query, nil, &out)
}

// Remove removes a session with its sandbox and its saved files. Workspaces are
// kept.
func (s Sessions) Remove(ctx context.Context, ref string) error {
	if err := sandbox.ValidateName(ref); err != nil {
		return err
	}
	return s.client.conn.Call(ctx, http.MethodDelete, "/v1/sessions/"+ref, nil, nil, nil)
}

// Usage returns how long sandboxes ran between from and to, those of sessions and
// all others, grouped by "label:KEY", "group" (of sessions) or "provider". from and
// to are rounded to whole hours. A zero to is now.
func (s Sessions) Usage(ctx context.Context, by string, from, to time.Time) ([]durable.SessionUsage, error) {
	query := url.Values{"by": {by}}
	for name, t := range map[string]time.Time{"from": from, "to": to} {
		if !t.IsZero() {
			query.Set(name, t.UTC().Format(time.RFC3339))
		}
	}
	var out struct{ Usage []durable.SessionUsage }
	return out.Usage, s.client.conn.Call(ctx, http.MethodGet, "/v1/usage", query, nil, &out)
}

// session returns a handle. It holds the sandbox if out has a receipt.
func (c *Client) session(holder durable.HolderRef, out durable.Opened) *Session {
	epoch := new(atomic.Int64)
	conn := *c.conn
	conn.Propagate = func(ctx context.Context, h http.Header) {
		c.conn.Propagate(ctx, h)
		if n := epoch.Load(); n > 0 {
			h.Set("Atoll-Epoch", strconv.FormatInt(n, 10))
			h.Set("Atoll-Follow", "true")
		}
	}
	s := &Session{
		Sandbox: &Sandbox{client: &Client{&conn}, base: "/v1/sessions/" + url.PathEscape(out.Session.ID)},
		owner:   c, holder: holder, epoch: epoch, info: out.Session,
	}
	s.Sandbox.info.Name = out.Session.Name
	if out.Receipt != nil {
		s.held(*out.Receipt)
	}
	return s
}

// held records the receipt of an acquisition and starts the heartbeats.
func (s *Session) held(r durable.Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receipt = r
	s.epoch.Store(r.Epoch)
	if s.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		go s.beat(ctx)
	}
}

// ID returns the id of the session, which never changes.
func (s *Session) ID() string { return s.info.ID }

// Name returns the name of the session, which never changes.
func (s *Session) Name() string { return s.info.Name }

// Info returns the state of the session when the handle was made.
// [Sessions.Get] returns a fresh one.
func (s *Session) Info() durable.Session { return s.info }

// Receipt returns the receipt of the last acquisition: whether the sandbox
// existed already and, if it was rebuilt, what was lost.
func (s *Session) Receipt() durable.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receipt
}

func (s *Session) call(ctx context.Context, method, rest string, in, out any) error {
	return s.owner.conn.Call(ctx, method, s.path(rest), nil, in, out)
}

// Acquire holds the sandbox that serves the session now, even if it is another
// one than before.
func (s *Session) Acquire(ctx context.Context) (durable.Receipt, error) {
	return s.acquire(ctx, 0)
}

func (s *Session) acquire(ctx context.Context, epoch int64) (durable.Receipt, error) {
	holder := s.holder
	holder.Epoch = epoch
	var out durable.Acquired
	if err := s.call(ctx, http.MethodPost, "/acquire", holder, &out); err != nil {
		return durable.Receipt{}, err
	}
	s.held(out.Receipt)
	return out.Receipt, nil
}

// Interval of the heartbeats of a held session, and the time limit of each.
const (
	beatEvery   = 30 * time.Second
	beatTimeout = 20 * time.Second
)

// beat sends heartbeats until ctx ends.
func (s *Session) beat(ctx context.Context) {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if sandbox.CodeOf(s.beatOnce(ctx)) == sandbox.CodeStale {
			return // every method returns CodeStale until Acquire is called
		}
	}
}

func (s *Session) beatOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	holder := s.holder
	holder.Epoch = s.epoch.Load()
	err := s.call(ctx, http.MethodPost, "/heartbeat", holder, nil)
	if sandbox.CodeOf(err) == sandbox.CodeStale { // the machine slept, perhaps
		_, err = s.acquire(ctx, holder.Epoch)
	}
	if sandbox.CodeOf(err) == sandbox.CodeStale {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stop != nil {
			s.stop()
			s.stop = nil
		}
	}
	return err
}

// Save saves the workspaces of the session or, without workspaces, the files of
// its sandbox. The sandbox continues.
func (s *Session) Save(ctx context.Context) (saved durable.Saved, err error) {
	return saved, s.client.conn.Call(ctx, http.MethodPost, s.path("/save"), nil, nil, &saved)
}

// Envelope returns a description of the session without secrets. With it,
// [Sessions.Resume] of this daemon, or of one that shares its store, finds the
// sandbox again or rebuilds it.
func (s *Session) Envelope(ctx context.Context) (e durable.Envelope, err error) {
	return e, s.call(ctx, http.MethodGet, "/envelope", nil, &e)
}

// Targets returns the providers that the session can move to, best first, then
// those that it cannot, with reasons.
func (s *Session) Targets(ctx context.Context) ([]durable.SessionTarget, error) {
	var out struct{ Targets []durable.SessionTarget }
	return out.Targets, s.call(ctx, http.MethodGet, "/targets", nil, &out)
}

// Capabilities returns the operations that the session supports now, with a
// reason for each that it does not. It creates no sandbox.
func (s *Session) Capabilities(ctx context.Context) (doc catalog.CapabilityDocument, err error) {
	return doc, s.call(ctx, http.MethodGet, "/capabilities", nil, &doc)
}

// Swap moves the session to another provider with its workspaces or, if it has
// none, the files below /workspace. Processes, memory and other files are not
// moved. Requests wait meanwhile. On an error the session stays where it is. A
// target that cannot serve the session is not an error: Swapped is then false,
// with a reason.
func (s *Session) Swap(ctx context.Context, target string) (out durable.Swapped, err error) {
	if err = s.call(ctx, http.MethodPost, "/swap", durable.SwapRequest{Target: target}, &out); err != nil || !out.Swapped {
		return out, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil { // it holds the sandbox
		s.receipt = *out.Receipt
		s.epoch.Store(out.Receipt.Epoch)
	}
	return out, nil
}

// RunOn runs a command on another provider with the settings of the session and
// a copy of the files below /workspace. The session stays where it is. Changes
// that the command makes are discarded.
func (s *Session) RunOn(ctx context.Context, target string, cmd sandbox.Command, opts RunOptions) (Result, error) {
	c, err := runnable(&cmd, opts)
	if err != nil {
		return Result{}, err
	}
	in := struct {
		Target  string     `json:"target"`
		Command runCommand `json:"command"`
	}{target, c}
	var out runOutput
	if err := s.call(ctx, http.MethodPost, "/run-on", in, &out); err != nil {
		return Result{}, err
	}
	return out.result()
}

// Update changes the labels of the session, or whether its sandbox is paused or
// ended when no holder is left.
func (s *Session) Update(ctx context.Context, c durable.SessionChange) (info durable.Session, err error) {
	return info, s.call(ctx, http.MethodPatch, "", c, &info)
}

// Release stops holding the sandbox. If it has no other holder, it is saved and
// ended after a while. The Session stays usable like one from [Sessions.Get].
func (s *Session) Release(ctx context.Context) error {
	s.letGo()
	return s.call(ctx, http.MethodPost, "/release", s.holder, nil)
}

func (s *Session) letGo() (held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held = s.stop != nil; held {
		s.stop()
		s.stop = nil
	}
	s.epoch.Store(0)
	return held
}

// Close is Release with a time limit of 20 seconds. It is idempotent.
func (s *Session) Close() error {
	if !s.letGo() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	return s.call(ctx, http.MethodPost, "/release", s.holder, nil)
}

// Destroy removes the session with its sandbox and its saved files. Workspaces
// are kept.
func (s *Session) Destroy(ctx context.Context) error {
	s.letGo()
	return s.call(ctx, http.MethodDelete, "", nil, nil)
}

// Archive writes the files below /workspace to w, as a tar stream, and returns an
// envelope that names it by its digest. With both, [Sessions.ResumeFrom] of any
// daemon rebuilds the session, also when its sandbox is gone. The sandbox
// continues; it is rebuilt first if there is none. A session with workspaces is
// CodeUnsupported.
func (s *Session) Archive(ctx context.Context, w io.Writer) (durable.Envelope, error) {
	if len(s.info.Spec.Workspaces) > 0 {
		return durable.Envelope{}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "session.envelope", Subject: s.Name(), Message: "its files are in workspaces, which stay with this daemon",
			Hint: "copy their files, or write the envelope without an archive",
		}
	}
	c := &counted{w: w}
	sum := sha256.New()
	both := io.MultiWriter(c, sum)
	err := s.Files().Export(ctx, sandbox.WorkspaceDir, both)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound && c.n == 0 {
		err = tar.NewWriter(both).Close() // there is no such directory
	}
	if err != nil {
		return durable.Envelope{}, err
	}
	e, err := s.Envelope(ctx)
	if err != nil {
		return durable.Envelope{}, err
	}
	e.Files = &durable.ArchiveFile{Hash: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: c.n}
	return e.Sealed(), nil
}

// counted counts what is written.
type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// ResumeFrom is Resume with the archive that goes along with the envelope; see
// [Session.Archive]. The sandbox of the envelope is taken if the daemon can reach
// it. If that is gone, or belongs to an account or a machine that the daemon does
// not have, a sandbox is made with the files of the archive, and the receipt says
// what is lost. In the latter case the first sandbox may live on where it is.
func (s Sessions) ResumeFrom(ctx context.Context, e durable.Envelope, archive io.Reader, opts SessionOptions) (*Session, error) {
	if e.Files == nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "session.resume", Subject: "envelope", Message: "names no archive that goes along with it", Hint: "write both with: atoll session envelope SESSION --archive FILE",
		}
	}
	source := &watched{r: archive}
	req, err := s.client.conn.Request(ctx, http.MethodPost, "/v1/sessions/archives", nil, source)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	var sent durable.ArchiveFile
	err = s.client.conn.Receive(req, &sent)
	switch failed := source.failure(); {
	case err != nil && failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	case sent.Hash != e.Files.Hash:
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "session.resume", Subject: "archive", Message: fmt.Sprintf("is not the one that the envelope names: it has %d bytes and the digest %s, not %s", sent.Size, sent.Hash, e.Files.Hash),
		}
	}
	return s.Resume(ctx, e, opts)
}
