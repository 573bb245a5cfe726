package opensandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// execd is the path of the daemon in a sandbox, which listens on port 44772. The
// server forwards requests, without the API key.
func execd(id, rest string) string { return path(id, "/proxy/44772"+rest) }

// ready waits until the daemon in a sandbox answers: the server does not.
func (a *api) ready(ctx context.Context, id string) error {
	var err error
	return hosted.Poll(ctx, func() (bool, error) {
		err = a.Call(ctx, http.MethodGet, execd(id, "/ping"), nil, nil)
		if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
			return false, nil
		}
		return true, err
	}, func() error { return err })
}

// inside runs commands in one sandbox.
type inside struct {
	hosted.Text
	p       *Provider
	sandbox string // its ID
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{p: p, sandbox: b.ID}
	in.Text = hosted.Text{Commander: in, ID: b.Sandbox, Open: p.Open}
	return in
}

// Wake implements hosted.Inside. It resumes a sandbox that is paused. It never
// creates another one.
func (in *inside) Wake(ctx context.Context) error {
	err := in.p.Move(ctx, in.ID, in.sandbox, func(now hosted.Sandbox) (bool, error) {
		if now.Status == running {
			return true, nil
		}
		return false, in.p.api.Call(ctx, http.MethodPost, path(in.sandbox, "/resume"), nil, nil)
	})
	if err == nil {
		err = in.p.api.ready(ctx, in.sandbox)
	}
	return err
}

// Put implements hosted.Commander. The daemon takes a form with a description of
// the file, and the file.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	about, err := json.Marshal(map[string]any{"path": file, "mode": 644}) // the digits of an octal number
	if err != nil {
		return err
	}
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	part, err := form.CreateFormFile("metadata", "metadata")
	if err == nil {
		_, err = part.Write(about)
	}
	if err == nil {
		_, err = form.CreateFormFile("file", "file")
	}
	if err != nil {
		return err
	}
	tail := "\r\n--" + form.Boundary() + "--\r\n"
	return in.p.api.Patient(ctx, func() error {
		body, err := open()
		if err != nil {
			return err
		}
		defer body.Close()
		return in.p.api.Upload(ctx, http.MethodPost, execd(in.sandbox, "/files/upload"), form.FormDataContentType(),
			io.MultiReader(bytes.NewReader(head.Bytes()), body, strings.NewReader(tail)))
	})
}

// maxEvent limits an event of a command.
const maxEvent = 16 << 20

// Stream implements hosted.Commander. The daemon ends a command whose connection
// ends.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (hosted.Events, error) {
	command := map[string]string{"command": hosted.Quote(hosted.Rooted(argv, env))}
	body, err := in.p.api.Listen(ctx, http.MethodPost, execd(in.sandbox, "/command"), command, rest.Events)
	if err != nil {
		return nil, err
	}
	e := &events{in: in, body: body, lines: bufio.NewScanner(body)}
	e.lines.Buffer(nil, maxEvent)
	first, err := e.event()
	if err == nil && (first.Type != "init" || first.Text == "") {
		err = in.Broken("the daemon in the sandbox names no command")
	}
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	in.p.Reap(ctx, &e.over, func(ctx context.Context) {
		_ = in.p.api.Call(ctx, http.MethodDelete, execd(in.sandbox, "/command?"+url.Values{"id": {first.Text}}.Encode()), nil, nil) // it ends with the sandbox
	})
	return e, nil
}

// events is the output of a command.
type events struct {
	in    *inside
	body  io.ReadCloser
	lines *bufio.Scanner
	over  atomic.Bool // the command has ended
}

// event is one event of a command.
type event struct {
	Type  string `json:"type"`
	Text  string `json:"text"`
	Error struct {
		Value string `json:"evalue"` // the exit code, or what went wrong
	} `json:"error"`
}

// event returns the next event. Older daemons send JSON without the field name
// of server-sent events.
func (e *events) event() (ev event, err error) {
	for e.lines.Scan() {
		line := bytes.TrimSpace(bytes.TrimPrefix(e.lines.Bytes(), []byte("data:")))
		if len(line) == 0 || line[0] != '{' {
			continue // a comment, or another field
		}
		if json.Unmarshal(line, &ev) != nil {
			return ev, e.in.Broken("the output of the daemon in the sandbox is invalid")
		}
		return ev, nil
	}
	return ev, e.in.Lost(e.lines.Err())
}

// Next implements hosted.Events. The daemon sends lines, without their ends.
func (e *events) Next() (ev hosted.Event, err error) {
	for {
		next, err := e.event()
		if err != nil {
			return ev, err
		}
		line := strings.TrimSuffix(next.Text, "\n") + "\n"
		switch next.Type {
		case "stdout":
			return hosted.Event{Stdout: line}, nil
		case "stderr":
			return hosted.Event{Stderr: line}, nil
		case "execution_complete":
			e.over.Store(true)
			return hosted.Event{Exit: new(int)}, nil
		case "error":
			e.over.Store(true)
			code, err := strconv.Atoi(next.Error.Value)
			if err != nil {
				return ev, e.in.Broken("the daemon in the sandbox says: " + e.in.p.api.Clip(next.Error.Value))
			}
			return hosted.Event{Exit: &code}, nil
		}
	}
}

// Close implements hosted.Events.
func (e *events) Close() error { return e.body.Close() }

var _ hosted.Inside = (*inside)(nil)
