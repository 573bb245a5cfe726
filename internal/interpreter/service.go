package interpreter

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

const (
	op = "code.run"
	// patience is the maximum time for the server to start.
	patience = time.Minute
	// grace is how long code may go on after its timeout has interrupted it. The
	// server ends a kernel that does not react.
	grace = 15 * time.Second
	// maxLine is the maximum size of one event: a result may contain pictures.
	maxLine = 64 << 20
	// maxAnswer bounds other responses of the server.
	maxAnswer    = 1 << 20
	maxComplaint = 4 << 10
)

// Sandbox is a running sandbox.
type Sandbox interface {
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	Write(ctx context.Context, path string, content io.Reader, opts driver.WriteOptions) error
	// Isolated reports whether the rest of the machine cannot reach its ports.
	Isolated(ctx context.Context) (bool, error)
	// Redacted returns output without the values of secrets.
	Redacted(from io.Reader) io.Reader
}

// Config configures a Service. Its functions may be called concurrently.
type Config struct {
	Guard *guard.Guard
	// Find returns a sandbox that exists, by id or name, for the caller in ctx.
	Find func(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Open opens a running sandbox, until ctx ends.
	Open func(ctx context.Context, ref string) (Sandbox, error)
	// Dial connects to a port of a sandbox. The caller closes the connection.
	Dial func(ctx context.Context, ref string, port uint16) (net.Conn, error)
	// Own returns a context in which the daemon itself uses a sandbox. A caller who
	// may run code may not be allowed to write files.
	Own func(ctx context.Context, id sandbox.ID) (context.Context, error)
}

// Service runs code in sandboxes. It is safe for concurrent use.
type Service struct {
	cfg      Config
	starting keyed.Locks[sandbox.ID] // held while the server of a sandbox is started
}

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// Run executes code and calls each with what it does, in order. If each returns
// an error, or ctx ends, the code is interrupted. An exception of the code is an
// event and no error.
func (s *Service) Run(ctx context.Context, ref string, req coding.CodeRequest, each func(coding.CodeEvent) error) error {
	if req.Context != "" && req.Language != "" {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: op, Subject: "language", Message: "is that of the context; give only one of them"}
	}
	command := sandbox.Command{Args: []string{"code", cmp.Or(req.Context, req.Language, "python")}}
	return s.use(ctx, ref, &command, func(ctx context.Context, sb sandbox.Sandbox, running Sandbox) error {
		body := request{Code: req.Code, Context: req.Context, Language: req.Language, Env: req.Env}
		if req.TimeoutMS > 0 {
			limit := time.Duration(req.TimeoutMS) * time.Millisecond
			body.Timeout = limit.Seconds()
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit+grace, &sandbox.Error{Code: sandbox.CodeTimeout, Op: op, Message: "the code did not end when it was interrupted"})
			defer cancel()
		}
		resp, err := s.call(ctx, sb.ID, http.MethodPost, "/execute", body)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return read(ctx, running.Redacted(resp.Body), each)
	})
}

// Contexts returns the contexts of a sandbox, those of the languages too.
func (s *Service) Contexts(ctx context.Context, ref string) (all []coding.CodeContext, err error) {
	var found []described
	err = s.manage(ctx, ref, http.MethodGet, "/contexts", nil, &found)
	for _, c := range found {
		all = append(all, c.public())
	}
	return all, err
}

// CreateContext makes a context.
func (s *Service) CreateContext(ctx context.Context, ref string, n coding.NewCodeContext) (coding.CodeContext, error) {
	var made described
	err := s.manage(ctx, ref, http.MethodPost, "/contexts", described{Language: n.Language, Dir: n.Dir}, &made)
	return made.public(), err
}

// RestartContext ends the process of a context, which forgets its variables. It
// starts again when it is used.
func (s *Service) RestartContext(ctx context.Context, ref, id string) error {
	return s.manage(ctx, ref, http.MethodPost, "/contexts/"+url.PathEscape(id)+"/restart", nil, nil)
}

// InterruptContext interrupts what a context executes, as ^C does. Its variables
// stay. A context that executes nothing is left alone.
func (s *Service) InterruptContext(ctx context.Context, ref, id string) error {
	return s.manage(ctx, ref, http.MethodPost, "/contexts/"+url.PathEscape(id)+"/interrupt", nil, nil)
}

// RemoveContext ends a context. The one of a language is made again when that is
// used.
func (s *Service) RemoveContext(ctx context.Context, ref, id string) error {
	return s.manage(ctx, ref, http.MethodDelete, "/contexts/"+url.PathEscape(id), nil, nil)
}

// use calls do with a running sandbox, if the caller may run commands in it.
func (s *Service) use(ctx context.Context, ref string, command *sandbox.Command, do func(context.Context, sandbox.Sandbox, Sandbox) error) error {
	sb, err := s.cfg.Find(ctx, ref)
	if err != nil {
		return err
	}
	subject := guard.Subject{Sandbox: sb.ID, Name: sb.Name, Command: command}
	return s.cfg.Guard.Do(ctx, ops.ProcessExec, subject, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		running, err := s.cfg.Open(ctx, string(sb.ID))
		if err != nil {
			return err
		}
		if err := isolated(ctx, running); err != nil {
			return err
		}
		return do(ctx, sb, running)
	})
}

// manage sends a request about contexts.
func (s *Service) manage(ctx context.Context, ref, method, path string, in, out any) error {
	command := sandbox.Command{Args: []string{"code", method, path}}
	return s.use(ctx, ref, &command, func(ctx context.Context, sb sandbox.Sandbox, _ Sandbox) error {
		resp, err := s.call(ctx, sb.ID, method, path, in)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if out == nil {
			return nil
		}
		if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
			return broken(ctx, err)
		}
		return nil
	})
}

// call sends a request to the server of a sandbox, which is started if it does
// not run. The caller closes the body.
func (s *Service) call(ctx context.Context, id sandbox.ID, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, body)
	if err != nil {
		return nil, err
	}
	conn, err := s.Dial(ctx, id, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	resp, err := transport.RoundTrip(r)
	switch {
	case err != nil:
		_ = conn.Close() // no request may have begun
		return nil, broken(ctx, err)
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	defer resp.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(resp.Body, maxComplaint))
	refused := &sandbox.Error{Code: sandbox.CodeInvalid, Op: op, Message: string(bytes.TrimSpace(why))}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		refused.Code = sandbox.CodeNotFound
	case resp.StatusCode >= http.StatusInternalServerError:
		refused.Code = sandbox.CodeUnavailable
	}
	return nil, refused
}

// broken is the error of a connection that ended too early, or of an answer that
// the server did not write.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: op, Message: "the code interpreter of the sandbox broke off", Cause: err}
}

// read reads the events of an execution.
func read(ctx context.Context, from io.Reader, each func(coding.CodeEvent) error) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return broken(ctx, err)
		}
		e, known := l.event()
		if !known {
			continue
		}
		if err := each(e); err != nil || e.Type == coding.CodeEnded {
			return err
		}
	}
	return broken(ctx, cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}
