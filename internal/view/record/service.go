package record

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/view/terminal"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

const (
	defaultMax = 24 * 60 * 60 // seconds, of a terminal
	desktopMax = 10 * 60      // seconds, of a desktop
	defaultFPS = 15
	maxRunning = 16        // recordings of one tenant that run
	maxKept    = 8 << 30   // bytes of all recordings of one tenant
	maxSize    = 256 << 20 // bytes of one recording

	// flushTime bounds what a pause, a save or a move waits for recordings.
	flushTime = 10 * time.Second
	// quietTime bounds the wait for output that is on its way.
	quietTime = time.Second
	// sweepEvery is how often recordings are tried again that could not be stored.
	sweepEvery = time.Minute
)

// Terminals are the terminals that viewers share. Package view implements it.
type Terminals interface {
	EnsureTerminal(ctx context.Context, id sandbox.ID, process string, size sandbox.WindowSize) (string, error)
	EnterTerminal(tenant string, id sandbox.ID, process string, size sandbox.WindowSize) (t *terminal.Terminal, leave func(), err error)
}

// Commands runs commands of a sandbox.
type Commands interface {
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
}

// Config configures a Service. Its functions may be called concurrently.
type Config struct {
	Guard *guard.Guard
	Store *store.Store
	Blobs blob.Store
	// Dir is a directory for recordings that are not stored completely.
	Dir  string
	Node string // this daemon
	// Life ends with the daemon.
	Life      context.Context
	Terminals Terminals
	// Desktop starts the desktop of a sandbox, if it does not run, for a caller who
	// may use it.
	Desktop func(ctx context.Context, ref string) (viewing.DesktopState, error)
	// Open opens a running sandbox for commands, until ctx ends.
	Open func(ctx context.Context, ref string) (Commands, error)
	// Find returns a sandbox that exists, by id or name, for the caller in ctx.
	Find func(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Session returns the name of a session.
	Session func(ctx context.Context, ref string) (string, error)
	// Epoch returns CodeStale if another sandbox than that of the epoch serves a
	// session now.
	Epoch func(ctx context.Context, session string, epoch int64) error
	// Redactor returns what removes secrets from the output of a sandbox; nil if
	// nothing does.
	Redactor func(ctx context.Context, id sandbox.ID) (*secret.Redactor, error)
	// KeepAlive returns a context for requests of who. It ends when the tenant is
	// disabled, if keyID is empty.
	KeepAlive func(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
	// SizeLimit is the largest size of a recording in bytes. Zero: 256 MiB.
	SizeLimit int64
}

// Service records terminals and desktops. It is safe for concurrent use. The caller runs
// Watch and calls Close.
type Service struct {
	cfg  Config
	work sync.WaitGroup

	mu      sync.Mutex
	running map[string]*recorder // by id
	turns   map[turnKey]*turn
	closed  bool
}

// New returns a Service.
func New(cfg Config) (*Service, error) {
	cfg.SizeLimit = cmp.Or(cfg.SizeLimit, maxSize)
	return &Service{cfg: cfg, running: map[string]*recorder{}, turns: map[turnKey]*turn{}}, os.MkdirAll(cfg.Dir, 0o700)
}

// Start starts a recording of a terminal or of the desktop of a sandbox.
func (s *Service) Start(ctx context.Context, ref string, by viewing.StreamSession, n viewing.NewRecording) (out viewing.Recording, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	if err := check(&n); err != nil {
		return out, err
	}
	sb, err := s.cfg.Find(ctx, ref)
	if err != nil {
		return out, err
	}
	session := ""
	if by.Ref != "" {
		if session, err = s.cfg.Session(ctx, by.Ref); err != nil {
			return out, err
		}
	}
	id := "rec-" + strings.ToLower(rand.Text()[:16])
	err = s.cfg.Guard.Do(ctx, ops.RecordingStart, guard.Subject{Sandbox: sb.ID, Name: sb.Name, Subject: id}, func(ctx context.Context) error {
		row := store.Recording{Tenant: who.Tenant, Node: s.cfg.Node, Recording: viewing.Recording{
			ID: id, State: viewing.RecordingRunning, Sandbox: sb.ID, Name: sb.Name, Session: session,
			Kind: n.Kind, Title: printable(n.Title), Max: n.Max, Started: time.Now().UTC(),
		}}
		if n.Kind == viewing.RecordDesktop {
			row.Format, row.FPS = viewing.FormatVideo, n.FPS
			out, err = s.film(ctx, row, by)
			return err
		}
		row.Format, row.Input = viewing.FormatCast, n.Input
		if row.Process, err = s.cfg.Terminals.EnsureTerminal(ctx, sb.ID, n.Process, n.Size); err != nil {
			return err
		}
		out = row.Recording
		return s.tape(ctx, row, by, n.Size)
	})
	return out, err
}

// check completes a request, and refuses what does not belong to its kind.
func check(n *viewing.NewRecording) error {
	wrong := ""
	switch n.Kind = cmp.Or(n.Kind, viewing.RecordTerminal); {
	case n.Kind == viewing.RecordTerminal && n.FPS != 0:
		wrong = "fps"
	case n.Kind == viewing.RecordDesktop && n.Process != "":
		wrong = "process"
	case n.Kind == viewing.RecordDesktop && n.Input:
		wrong = "input"
	case n.Kind == viewing.RecordDesktop && n.Size != sandbox.WindowSize{}:
		wrong = "size"
	}
	if wrong != "" {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: wrong, Message: "does not belong to a recording of a " + n.Kind}
	}
	if n.Kind == viewing.RecordDesktop {
		n.FPS, n.Max = cmp.Or(n.FPS, defaultFPS), cmp.Or(n.Max, desktopMax)
		return nil
	}
	n.Max = cmp.Or(n.Max, defaultMax)
	if n.Size.Cols == 0 || n.Size.Rows == 0 {
		n.Size = terminal.DefaultSize
	}
	return nil
}

func printable(text string) string {
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, text), "")
}

// tape starts the recording of a terminal.
func (s *Service) tape(ctx context.Context, row store.Recording, by viewing.StreamSession, size sandbox.WindowSize) error {
	var redact *secret.Redactor
	if row.Input {
		var err error
		if redact, err = s.cfg.Redactor(ctx, row.Sandbox); err != nil {
			return err
		}
	}
	t, leave, err := s.cfg.Terminals.EnterTerminal(row.Tenant, row.Sandbox, row.Process, size)
	if err != nil {
		return err
	}
	r := &tape{recorder: s.recording(row, by), entered: t, leave: leave, size: size}
	r.from = r
	if redact != nil && !redact.Empty() {
		r.typed = redact.Stream(false)
	}
	if err := s.add(ctx, r.recorder); err != nil {
		leave()
		return err
	}
	return nil
}

// film starts the recording of a desktop, when its first pictures are there.
func (s *Service) film(ctx context.Context, row store.Recording, by viewing.StreamSession) (out viewing.Recording, err error) {
	screen, err := s.cfg.Desktop(ctx, string(row.Sandbox))
	if err != nil {
		return out, err
	}
	r := &film{recorder: s.recording(row, by), width: screen.Width, height: screen.Height}
	r.from = r
	if r.first, err = r.begin(ctx); err != nil {
		r.end(err)
		return out, err
	}
	r.row.Started = time.Now().UTC()
	if err := s.add(ctx, r.recorder); err != nil {
		r.first.close()
		return out, err
	}
	return r.row.Recording, nil
}

// recording returns a recorder that does not run yet.
func (s *Service) recording(row store.Recording, by viewing.StreamSession) *recorder {
	r := &recorder{s: s, row: row, by: by, done: make(chan struct{})}
	who := key.Principal{Tenant: row.Tenant, Verbs: []key.Verb{key.Read, key.Exec}}
	r.ctx, r.end = context.WithCancelCause(s.cfg.KeepAlive(guard.WithPrincipal(s.cfg.Life, who), who, row.Tenant, ""))
	return r
}

// add creates the file and the record of a recording, and runs it. If it cannot,
// the recorder has ended.
func (s *Service) add(ctx context.Context, r *recorder) (err error) {
	defer func() {
		if err != nil {
			r.end(err)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon is ending"}
	}
	file, err := os.OpenFile(s.path(&r.row), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the recording cannot be written", Cause: err}
	}
	err = s.cfg.Store.Update(ctx, func(tx *store.Tx) error { return tx.Recordings().Create(ctx, r.row, maxRunning, maxKept) })
	if err != nil {
		_ = file.Close()
		_ = os.Remove(file.Name())
		return err
	}
	r.file = file
	s.running[r.row.ID] = r
	s.work.Go(r.run)
	return nil
}

func (s *Service) path(r *store.Recording) string { return filepath.Join(s.cfg.Dir, r.ID+r.Suffix()) }

// blob returns the place of a recording in the blob store.
func (s *Service) blob(r *store.Recording) (tenant blob.Store, key string) {
	return blob.Below(s.cfg.Blobs, "recordings/"+r.Tenant), cmp.Or(r.Session, string(r.Sandbox)) + "/" + r.ID + r.Suffix()
}

// find returns the record of a recording of the caller's tenant.
func (s *Service) find(ctx context.Context, id string) (key.Principal, store.Recording, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return who, store.Recording{}, err
	}
	row, err := store.Read(ctx, s.cfg.Store, func(tx *store.Tx) (store.Recording, error) { return tx.Recordings().Get(ctx, who.Tenant, id) })
	return who, row, err
}

func subject(r *store.Recording) guard.Subject {
	return guard.Subject{Sandbox: r.Sandbox, Name: r.Name, Subject: r.ID}
}

func (s *Service) recorder(id string) *recorder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id]
}

// Get returns a recording.
func (s *Service) Get(ctx context.Context, id string) (out viewing.Recording, err error) {
	_, row, err := s.find(ctx, id)
	if err != nil {
		return out, err
	}
	return row.Recording, s.cfg.Guard.Do(ctx, ops.RecordingList, subject(&row), func(context.Context) error { return nil })
}

// List returns a page of the tenant's recordings, newest first.
func (s *Service) List(ctx context.Context, q viewing.RecordingQuery) (page []viewing.Recording, next string, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return nil, "", err
	}
	err = s.cfg.Guard.Do(ctx, ops.RecordingList, guard.Subject{Sandbox: who.Sandbox}, func(ctx context.Context) error {
		return s.cfg.Store.View(ctx, func(tx *store.Tx) error {
			all, more, err := tx.Recordings().List(ctx, who.Tenant, who.Sandbox, q)
			page, next = make([]viewing.Recording, len(all)), more
			for i := range all {
				page[i] = all[i].Recording
			}
			return err
		})
	})
	return page, next, err
}

// Stop ends a recording and waits until it is stored. It succeeds if the
// recording has ended already.
func (s *Service) Stop(ctx context.Context, id string) (out viewing.Recording, err error) {
	_, row, err := s.find(ctx, id)
	if err != nil {
		return out, err
	}
	err = s.cfg.Guard.Do(ctx, ops.RecordingStop, subject(&row), func(ctx context.Context) error { return s.stop(ctx, row, errStopped) })
	if err == nil {
		_, row, err = s.find(ctx, id)
	}
	return row.Recording, err
}

func (s *Service) stop(ctx context.Context, row store.Recording, why error) error {
	r := s.recorder(row.ID)
	if r == nil {
		if row.Node != s.cfg.Node && row.State == viewing.RecordingRunning {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: row.ID, Message: "another daemon records it", Hint: "ask the daemon of the sandbox"}
		}
		return nil
	}
	r.from.settle(ctx, true)
	r.end(why)
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Fetch opens the file of a recording. Of one that runs it is what was recorded
// until now. The caller closes the reader.
func (s *Service) Fetch(ctx context.Context, id string) (content io.ReadCloser, out viewing.Recording, err error) {
	_, row, err := s.find(ctx, id)
	if err != nil {
		return nil, out, err
	}
	op := ops.RecordingFetch
	if row.Input {
		op = ops.RecordingFetchInput
	}
	err = s.cfg.Guard.Do(ctx, op, subject(&row), func(ctx context.Context) error {
		content, err = s.open(ctx, &row)
		return err
	})
	return content, row.Recording, err
}

func (s *Service) open(ctx context.Context, row *store.Recording) (io.ReadCloser, error) {
	if r := s.recorder(row.ID); r != nil {
		r.from.settle(ctx, false)
		if file, size, err := r.written(); err == nil {
			return &part{io.LimitReader(file, size), file}, nil
		}
	}
	if file, err := os.Open(s.path(row)); err == nil { // it could not be stored yet
		return file, nil
	}
	in, key := s.blob(row)
	content, err := in.Get(ctx, key, 0, -1)
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return content, err
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: row.ID, Message: "nothing of it is stored where this daemon can read it"}
}

// part is the part of a file that is written completely.
type part struct {
	io.Reader
	io.Closer
}

// Remove removes a recording. One that runs is ended.
func (s *Service) Remove(ctx context.Context, id string) error {
	_, row, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	return s.cfg.Guard.Do(ctx, ops.RecordingRemove, subject(&row), func(ctx context.Context) error {
		if err := s.stop(ctx, row, errStopped); err != nil {
			return err
		}
		in, key := s.blob(&row)
		if err := in.Delete(ctx, key); err != nil {
			return err
		}
		err := s.cfg.Store.Update(store.WithReserve(ctx), func(tx *store.Tx) error { return tx.Recordings().Delete(ctx, row.Tenant, id) })
		if err == nil {
			_ = os.Remove(s.path(&row))
		}
		return err
	})
}

// Flush stores the recordings of a sandbox as they are now, before the
// sandbox is paused, saved or moved. Its errors are noted and do not stop that.
func (s *Service) Flush(ctx context.Context, id sandbox.ID) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	s.mu.Lock()
	var all []*recorder
	for _, r := range s.running {
		if r.row.Sandbox == id {
			all = append(all, r)
		}
	}
	s.mu.Unlock()
	var flushing sync.WaitGroup
	for _, r := range all {
		flushing.Go(func() {
			r.from.settle(ctx, false)
			if err := r.flush(ctx); err != nil {
				s.note(err)
			}
		})
	}
	flushing.Wait()
}

func (s *Service) note(err error) {
	if err != nil && s.cfg.Guard.Note != nil {
		s.cfg.Guard.Note(s.cfg.Life, err)
	}
}

// fact records what happened to a recording.
func (s *Service) fact(row *store.Recording, t eventlog.Type) {
	a := audit.Action{Tenant: row.Tenant, Op: ops.RecordingStop, Sandbox: row.Sandbox, Name: row.Name, Subject: row.ID}
	s.note(s.cfg.Guard.Audit.FactLater(a, t, func(e *eventlog.Event) {
		e.Reason, e.Bytes, e.Duration = row.Reason, row.Size, row.Ended.Sub(row.Started)
	}))
}

// Watch stores what an earlier daemon left and what could not be stored, until
// ctx ends.
func (s *Service) Watch(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		s.sweep(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) sweep(ctx context.Context) {
	s.sweepTurns(ctx)
	all, err := store.Read(ctx, s.cfg.Store, func(tx *store.Tx) ([]store.Recording, error) {
		return tx.Operator().UnfinishedRecordings(ctx, s.cfg.Node)
	})
	if ctx.Err() == nil {
		s.note(err)
	}
	for i := range all {
		row := &all[i]
		if s.recorder(row.ID) != nil || row.State == viewing.RecordingFailed && row.Reason != viewing.ReasonUploadFailed {
			continue
		}
		s.note(s.recover(ctx, row))
	}
}

// recover stores a recording whose recorder is gone.
func (s *Service) recover(ctx context.Context, row *store.Recording) error {
	file, err := os.OpenFile(s.path(row), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return s.lost(ctx, row)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if row.Ended.IsZero() {
		info, err := file.Stat()
		if err != nil {
			return err
		}
		row.Ended, row.Reason = info.ModTime().UTC(), viewing.ReasonReaped
	}
	size, err := whole(file, row.Format)
	if err != nil {
		return err
	}
	if err := s.upload(ctx, row, size); err != nil {
		return err
	}
	if row.Reason == viewing.ReasonUploadFailed {
		row.Reason = ""
	}
	return s.complete(ctx, row, viewing.RecordingAvailable)
}

// lost ends a recording without a file: only the flushed part is left.
func (s *Service) lost(ctx context.Context, row *store.Recording) error {
	if row.Ended.IsZero() {
		row.Ended = time.Now().UTC()
	}
	in, key := s.blob(row)
	info, err := in.Stat(ctx, key)
	switch {
	case err == nil:
		row.Size, row.Reason = info.Size, viewing.ReasonReaped
		return s.complete(ctx, row, viewing.RecordingAvailable)
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		row.Reason = viewing.ReasonSandboxDeath
		return s.complete(ctx, row, viewing.RecordingFailed)
	}
	return err
}

// whole cuts off what was not written completely, and returns the size of the
// rest.
func whole(file *os.File, format string) (int64, error) {
	if format == viewing.FormatVideo {
		return wholeFragments(file)
	}
	return wholeLines(file)
}

// wholeLines cuts off a line that was not written completely, and returns the
// size of the rest.
func wholeLines(file *os.File) (int64, error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for size > 0 {
		n := min(size, int64(len(buf)))
		if _, err := file.ReadAt(buf[:n], size-n); err != nil {
			return 0, err
		}
		if at := strings.LastIndexByte(string(buf[:n]), '\n'); at >= 0 {
			size += int64(at) + 1 - n
			break
		}
		size -= n
	}
	return size, file.Truncate(size)
}

// upload stores the first bytes of a recording's file.
func (s *Service) upload(ctx context.Context, row *store.Recording, size int64) error {
	file, err := os.Open(s.path(row))
	if err != nil {
		return err
	}
	defer file.Close()
	in, key := s.blob(row)
	if err := in.Put(ctx, key, io.LimitReader(file, size), blob.PutOptions{Size: size}); err != nil {
		return err
	}
	row.Size = size
	return nil
}

// complete records the end of a recording, and removes its file unless it still
// has to be stored.
func (s *Service) complete(ctx context.Context, row *store.Recording, state viewing.RecordingState) error {
	row.State = state
	late := store.WithReserve(context.WithoutCancel(ctx))
	err := s.cfg.Store.Update(late, func(tx *store.Tx) error { return tx.Recordings().Set(late, *row) })
	if sandbox.CodeOf(err) == sandbox.CodeNotFound { // it was removed
		in, key := s.blob(row)
		err = in.Delete(late, key)
	}
	if err != nil {
		return err
	}
	kind := eventlog.RecordingAvailable
	if state == viewing.RecordingFailed {
		kind = eventlog.RecordingFailed
	}
	if row.Reason != viewing.ReasonUploadFailed {
		_ = os.Remove(s.path(row))
	}
	s.fact(row, kind)
	return nil
}

// Close ends all recordings and stores them.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	all := make([]*recorder, 0, len(s.running))
	for _, r := range s.running {
		all = append(all, r)
	}
	s.mu.Unlock()
	for _, r := range all {
		r.end(errClosing)
	}
	s.work.Wait()
	return nil
}
