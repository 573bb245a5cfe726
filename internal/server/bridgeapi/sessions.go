package bridgeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// sessionDir is where a sandbox keeps its sessions, a file for each. They end
	// with the sandbox, and stay when it sleeps or the daemon restarts.
	sessionDir = "/var/lib/atoll/bridge"
	// defaultSession always exists and cannot be deleted.
	defaultSession = "default"
	maxSessions    = 64       // of a sandbox
	maxSessionEnv  = 64 << 10 // bytes of names and values
	maxSessionFile = 1 << 20  // a control character takes six bytes of JSON
)

// shellSession is the initial state of commands in a session. A session that
// was not created is the zero value.
type shellSession struct {
	Dir string            `json:"cwd,omitempty"` // empty: root
	Env map[string]string `json:"env,omitempty"` // added to the sandbox's
	// Terminal is the command that runs on the terminal of the session, if any.
	Terminal string `json:"terminal,omitempty"`
}

func sessionFile(id string) string { return sessionDir + "/" + id + ".json" }

var validSession = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`) })

func checkSession(id string) error {
	if !validSession().MatchString(id) || strings.Contains(id, "..") {
		return invalid("Invalid session ID format")
	}
	return nil
}

// sessionOf returns the session that a request is for; empty: none.
func sessionOf(r *http.Request) (string, error) {
	id := r.Header.Get("Session-Id")
	if id == "" && strings.HasSuffix(r.URL.Path, "/pty") {
		id = r.URL.Query().Get("session")
	}
	if id == "" {
		return "", nil
	}
	return id, checkSession(id)
}

func sessionFailed(text string) error {
	return &problem{http.StatusBadGateway, text, codeSession}
}

var errSessionDeleted = sessionFailed("the session was deleted while the command ran")

// check returns an error if commands cannot start with this session.
func (s *shellSession) check() error {
	size := 0
	for k, v := range s.Env {
		size += len(k) + len(v)
	}
	if size > maxSessionEnv {
		return invalid("the environment of a session is larger than %d bytes", maxSessionEnv)
	}
	return (&sandbox.Command{Args: []string{"-"}, Env: s.Env}).Validate()
}

// loadSession reads a session from a file in the sandbox, which programs in the
// sandbox can change.
func loadSession(ctx context.Context, files Files, id string) (s shellSession, found bool, err error) {
	content, _, err := files.Read(ctx, sessionFile(id), driver.ReadOptions{Length: maxSessionFile})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return s, id == defaultSession, nil
	}
	if err != nil {
		return s, false, err
	}
	defer content.Close()
	defer context.AfterFunc(ctx, func() { _ = content.Close() })()
	text, err := io.ReadAll(content)
	if err != nil {
		return s, false, err
	}
	if json.Unmarshal(text, &s) != nil || s.check() != nil {
		return s, false, sessionFailed("a program in the sandbox has damaged the session; delete it")
	}
	return s, true, nil
}

func (s *shellSession) save(ctx context.Context, files Files, id string) error {
	if err := s.check(); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = files.Write(ctx, sessionFile(id), bytes.NewReader(text), driver.WriteOptions{Mode: 0o600})
	return err
}

// dir returns the directory in which commands start, or "" for root if the
// directory of the session does not exist.
func (s *shellSession) dir(ctx context.Context, files Files) (string, error) {
	if s.Dir == "" {
		return "", nil
	}
	p, err := directory(ctx, files, s.Dir, "the session's cwd")
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return "", nil
	}
	return p, err
}

// directory resolves a path to a directory.
func directory(ctx context.Context, files Files, p, what string) (string, error) {
	p, err := within(p, what)
	if err != nil {
		return "", err
	}
	if p, err = follow(ctx, files, p, what); err != nil {
		return "", err
	}
	info, err := files.Stat(ctx, p)
	if err == nil && info.Type != sandbox.TypeDir {
		err = &sandbox.Error{Code: sandbox.CodeNotFound, Subject: p, Message: "not a directory"}
	}
	return p, err
}

// createSession makes a session.
func (h *Handler) createSession(w http.ResponseWriter, r *http.Request, c *call) error {
	if c.rest != "" {
		return noRoute(w, r, c)
	}
	var req struct {
		ID  string             `json:"id"`
		Dir string             `json:"cwd"`
		Env map[string]*string `json:"env"` // null removes a variable
	}
	if err := read(r, &req); err != nil {
		return err
	}
	if req.ID == "" {
		req.ID = newID()
	}
	if err := checkSession(req.ID); err != nil {
		return err
	}
	s := shellSession{Env: map[string]string{}}
	for k, v := range req.Env {
		if v != nil {
			s.Env[k] = *v
		}
	}
	if err := s.check(); err != nil {
		return err
	}
	if req.Dir != "" {
		var err error
		if s.Dir, err = within(req.Dir, "cwd"); err != nil {
			return err
		}
	}
	sb, release, err := h.openLocked(r.Context(), c)
	if err != nil {
		return err
	}
	defer release()
	if err := addSession(r.Context(), sb.Files(), req.ID, &s); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		ID string `json:"id"`
	}{req.ID})
	return nil
}

func addSession(ctx context.Context, files Files, id string, s *shellSession) error {
	if s.Dir != "" {
		if _, err := follow(ctx, files, s.Dir, "cwd"); err != nil {
			return err
		}
	}
	if _, found, err := loadSession(ctx, files, id); err != nil || found {
		if err == nil {
			err = sessionFailed("session " + id + " already exists")
		}
		return err
	}
	if err := roomForSession(ctx, files); err != nil {
		return err
	}
	return s.save(ctx, files, id)
}

func roomForSession(ctx context.Context, files Files) error {
	count := 0
	for _, err := range files.List(ctx, sessionDir, driver.ListOptions{}) {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		if count++; count >= maxSessions {
			return sessionFailed("the sandbox has as many sessions as it may have; delete one")
		}
	}
	return nil
}

// deleteSession ends a session, and the commands that run in it.
func (h *Handler) deleteSession(w http.ResponseWriter, r *http.Request, c *call) error {
	id, err := url.PathUnescape(c.rest)
	if err != nil {
		return invalid("Invalid session ID format")
	}
	if err := checkSession(id); err != nil {
		return err
	}
	if id == defaultSession {
		return sessionFailed("the default session cannot be deleted; delete the sandbox")
	}
	missing := sessionFailed("session " + id + " not found")
	detail, err := h.services.Sandboxes.Inspect(r.Context(), nameOf(c.id))
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound || code == sandbox.CodeGone || err == nil && detail.State == sandbox.Gone:
		return missing
	case err != nil:
		return err
	}
	sb, release, err := h.openLocked(r.Context(), c)
	if err != nil {
		return err
	}
	defer release()
	s, _, err := loadSession(r.Context(), sb.Files(), id)
	if _, damaged := errors.AsType[*problem](err); err != nil && !damaged {
		return err
	}
	switch err := sb.Files().Remove(r.Context(), sessionFile(id), true); {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return missing
	case err != nil:
		return err
	}
	h.active.end(c.key() + "/" + id)
	if s.Terminal != "" {
		_ = sb.Kill(r.Context(), s.Terminal, int(unix.SIGKILL)) // it may have ended
	}
	writeJSON(w, http.StatusOK, struct {
		Success bool      `json:"success"`
		ID      string    `json:"sessionId"`
		Time    time.Time `json:"timestamp"`
	}{true, id, time.Now().UTC()})
	return nil
}

// changes are the commands of a shell that change the session instead of
// running a program. They return the error message.
var changes = map[string]func(ctx context.Context, files Files, s *shellSession, args []string) error{
	"cd": func(ctx context.Context, files Files, s *shellSession, args []string) error {
		if len(args) > 1 {
			return invalid("too many arguments")
		}
		to := root
		switch {
		case len(args) == 1 && path.IsAbs(args[0]):
			to = args[0]
		case len(args) == 1:
			to = path.Join(cmp.Or(s.Dir, root), args[0])
		}
		p, err := directory(ctx, files, to, "the directory")
		if err == nil {
			s.Dir = p
		}
		return err
	},
	"export": func(_ context.Context, _ Files, s *shellSession, args []string) error {
		s.Env = maps.Clone(s.Env)
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		for _, a := range args {
			if name, value, ok := strings.Cut(a, "="); ok {
				s.Env[name] = value
			}
		}
		return nil
	},
	"unset": func(_ context.Context, _ Files, s *shellSession, args []string) error {
		for _, name := range args {
			delete(s.Env, name)
		}
		return nil
	},
}

// change runs a command that changes a session.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, c *call, sb Sandbox, id string, args []string) error {
	release, err := h.locks.Take(r.Context(), c.key())
	if err != nil {
		return err
	}
	defer release()
	s, found, err := loadSession(r.Context(), sb.Files(), id)
	if err != nil {
		return err
	}
	if !found {
		if err := roomForSession(r.Context(), sb.Files()); err != nil {
			return err
		}
	}
	if err = changes[args[0]](r.Context(), sb.Files(), &s, args[1:]); err == nil {
		err = s.save(r.Context(), sb.Files(), id)
	}
	out := begin(w)
	exit := sandbox.Exit{}
	if err != nil {
		exit.Code = 1
		out.output("stderr", []byte(args[0]+": "+answerOf(err, codeSession).Text+"\n"))
	}
	h.sayEnd(r.Context(), out, exit, nil)
	return nil
}

// commands are the running commands, by session. The zero value is ready.
type commands struct {
	mu  sync.Mutex
	all map[string]map[*context.CancelCauseFunc]bool
}

// begin returns a context that ends with the session. The caller calls done.
func (c *commands) begin(ctx context.Context, session string) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]map[*context.CancelCauseFunc]bool{}
	}
	if c.all[session] == nil {
		c.all[session] = map[*context.CancelCauseFunc]bool{}
	}
	c.all[session][&cancel] = true
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.all[session], &cancel); len(c.all[session]) == 0 {
			delete(c.all, session)
		}
	}
}

// end ends all commands of a session.
func (c *commands) end(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.all[session] {
		(*cancel)(errSessionDeleted)
	}
}
