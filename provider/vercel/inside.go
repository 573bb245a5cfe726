package vercel

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
)

// inside runs commands in one sandbox.
type inside struct {
	hosted.Text
	p       *Provider
	sandbox string // its ID

	mu      sync.Mutex
	session string // the present one, if known
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{p: p, sandbox: b.ID}
	in.session, _ = b.Access.(string)
	in.Text = hosted.Text{Commander: in, ID: b.Sandbox, Open: p.Open}
	return in
}

// Wake implements hosted.Inside. It starts a sandbox that is stopped. It never
// creates another one.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.ID, in.sandbox, func(now hosted.Sandbox) (bool, error) {
		if now.Status == running {
			session, _ := now.Access.(string)
			in.use(session)
			return true, nil
		}
		_, err := in.p.api.named(ctx, nameOf(in.sandbox), true)
		if changing(err) {
			err = nil
		}
		return false, err
	})
}

func (in *inside) use(session string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.session = session
}

// present returns the present session. stale is one that has ended.
func (in *inside) present(ctx context.Context, stale string) (string, error) {
	in.mu.Lock()
	session := in.session
	in.mu.Unlock()
	if session != stale {
		return session, nil
	}
	b, err := in.p.api.get(ctx, in.sandbox)
	if err == nil {
		in.use(b.Session)
	}
	return b.Session, err
}

// at makes a request with the path of a session. If that has ended, it makes it
// again with the present one.
func (in *inside) at(ctx context.Context, f func(path string) error) error {
	session, err := in.present(ctx, "")
	if err != nil {
		return err
	}
	err = f(sessionPath(session))
	if r := rest.RefusalOf(err); r.Ours && (r.Status == http.StatusGone || r.Status == http.StatusNotFound) {
		if now, presentErr := in.present(ctx, session); presentErr == nil && now != session {
			return f(sessionPath(now))
		}
	}
	return err
}

// count returns the size of a content.
func count(open func() (io.ReadCloser, error)) (int64, error) {
	body, err := open()
	if err != nil {
		return 0, err
	}
	defer body.Close()
	return io.Copy(io.Discard, body)
}

// Put implements hosted.Commander. The service takes a compressed archive.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	size, err := count(open)
	if err != nil {
		return err
	}
	return in.at(ctx, func(path string) error {
		return in.p.api.Patient(ctx, func() error {
			body, err := open()
			if err != nil {
				return err
			}
			defer body.Close()
			r, w := io.Pipe()
			packed := make(chan struct{})
			go func() {
				defer close(packed)
				_ = w.CloseWithError(pack(w, strings.TrimPrefix(file, "/"), size, body))
			}()
			defer func() {
				_ = r.Close()
				<-packed
			}()
			header := http.Header{"Content-Type": {"application/gzip"}, "X-Cwd": {"/"}}
			res, err := in.p.api.Send(ctx, http.MethodPost, path+"/fs/write?"+in.p.api.query("").Encode(), header, r)
			if err != nil {
				return err
			}
			return res.Body.Close()
		})
	})
}

// pack writes a compressed archive with one file.
func pack(to io.Writer, name string, size int64, body io.Reader) error {
	zip, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	if _, err := io.Copy(archive, body); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zip.Close()
}

// maxRecord limits a record of a command.
const maxRecord = 16 << 20

// Stream implements hosted.Commander. The service runs a command to its end
// unless it is killed.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (hosted.Events, error) {
	args := hosted.Rooted(argv, env)
	command := map[string]any{"command": args[0], "args": args[1:], "cwd": "/", "sudo": true, "wait": true, "logs": true}
	e, query := &events{in: in}, in.p.api.query("", "wait", "true", "logs", "true")
	err := in.at(ctx, func(path string) (err error) {
		e.path = path
		e.body, err = in.p.api.Listen(ctx, http.MethodPost, path+"/cmd?"+query.Encode(), command, rest.Records)
		return err
	})
	if err != nil {
		return nil, err
	}
	e.lines = bufio.NewScanner(e.body)
	e.lines.Buffer(nil, maxRecord)
	if first, err := e.record(); err != nil || first.Command == nil || first.Command.ID == "" {
		_ = e.Close()
		return nil, in.Broken("the service names no command")
	} else {
		e.path += "/cmd/" + url.PathEscape(first.Command.ID)
	}
	in.p.Reap(ctx, &e.over, func(ctx context.Context) {
		_ = in.p.api.Call(ctx, http.MethodPost, e.path+"/kill?"+in.p.api.query("").Encode(), map[string]int{"signal": 9}, nil) // it ends with the session
	})
	return e, nil
}

// events is the output of a command.
type events struct {
	in    *inside
	path  string // of the command
	body  io.ReadCloser
	lines *bufio.Scanner
	over  atomic.Bool // the command has ended
}

// record is one record of a command: itself, or output.
type record struct {
	Command *struct {
		ID   string `json:"id"`
		Code *int   `json:"exitCode"`
	} `json:"command"`
	Stream string          `json:"stream"`
	Data   json.RawMessage `json:"data"`
}

func (e *events) record() (r record, err error) {
	for e.lines.Scan() {
		if len(bytes.TrimSpace(e.lines.Bytes())) > 0 {
			if json.Unmarshal(e.lines.Bytes(), &r) != nil {
				return r, e.in.Broken("the service's output is invalid")
			}
			return r, nil
		}
	}
	return r, e.in.Lost(e.lines.Err())
}

// Next implements hosted.Events.
func (e *events) Next() (ev hosted.Event, err error) {
	for {
		r, err := e.record()
		if err != nil {
			return ev, err
		}
		switch {
		case r.Command != nil && r.Command.Code != nil:
			e.over.Store(true)
			return hosted.Event{Exit: r.Command.Code}, nil
		case r.Stream == "stdout":
			err = json.Unmarshal(r.Data, &ev.Stdout)
		case r.Stream == "stderr":
			err = json.Unmarshal(r.Data, &ev.Stderr)
		case r.Stream == "error":
			var said struct{ Message string }
			_ = json.Unmarshal(r.Data, &said)
			return ev, e.in.Broken("the service no longer follows the command: " + e.in.p.api.Clip(said.Message))
		default:
			continue
		}
		if err != nil {
			err = e.in.Broken("the service's output is invalid")
		}
		return ev, err
	}
}

// Close implements hosted.Events.
func (e *events) Close() error { return e.body.Close() }

var _ hosted.Inside = (*inside)(nil)
