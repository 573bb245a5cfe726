package runloop

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
)

// inside runs commands in one sandbox.
type inside struct {
	hosted.Text
	p       *Provider
	sandbox string // its ID
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{p: p, sandbox: b.ID}
	in.Text = hosted.Text{Commander: in, ID: b.Sandbox, Open: p.Open, Exec: in.exec}
	return in
}

// Wake implements hosted.Inside. It resumes a sandbox that is suspended. It never
// creates another one.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.ID, in.sandbox, func(now hosted.Sandbox) (bool, error) {
		if now.Status == running {
			return true, nil
		}
		return false, in.p.api.Call(ctx, http.MethodPost, path(in.sandbox, "/resume"), struct{}{}, nil)
	})
}

// execution is the service's description of a command.
type execution struct {
	ID     string `json:"execution_id"`
	Status string `json:"status"`
	Code   *int   `json:"exit_status"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

const completed = "completed"

func (in *inside) at(id, rest string) string {
	return path(in.sandbox, "/executions/"+url.PathEscape(id)+rest)
}

// ended waits until a command has ended.
func (in *inside) ended(ctx context.Context, now execution) (execution, error) {
	for wait := 50 * time.Millisecond; now.Status != completed; wait = min(2*wait, time.Second) {
		if err := rest.Sleep(ctx, wait); err != nil {
			return now, err
		}
		if err := in.p.api.Call(ctx, http.MethodGet, in.at(now.ID, ""), nil, &now); err != nil {
			return now, err
		}
	}
	if now.Code == nil {
		return now, in.Broken("the service does not tell how the command ended")
	}
	return now, nil
}

// exec runs a short command. The service's shell gets one line.
func (in *inside) exec(ctx context.Context, argv []string, env map[string]string) (int, string, error) {
	var now execution
	body := map[string]any{"command": hosted.Quote(hosted.Rooted(argv, env)), "command_id": newCommand(), "optimistic_timeout": 25}
	err := in.p.api.Call(ctx, http.MethodPost, path(in.sandbox, "/execute"), body, &now)
	if err == nil && now.ID == "" {
		err = in.Broken("the service names no command")
	}
	if err == nil {
		now, err = in.ended(ctx, now)
	}
	if err != nil {
		return 0, "", err
	}
	return *now.Code, now.Stdout, nil
}

// Put implements hosted.Commander.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	return in.p.api.Patient(ctx, func() error {
		content, err := open()
		if err != nil {
			return err
		}
		defer content.Close()
		kind, body := rest.Form("file", content, "path", file)
		return in.p.api.Upload(ctx, http.MethodPost, path(in.sandbox, "/upload_file"), kind, body)
	})
}

// Stream implements hosted.Commander. The service runs a command to its end
// unless it is killed.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (hosted.Events, error) {
	e := &events{in: in, ctx: ctx}
	body := map[string]any{"command": hosted.Quote(hosted.Rooted(argv, env))}
	err := in.p.api.Call(ctx, http.MethodPost, path(in.sandbox, "/execute_async"), body, &e.command)
	if err == nil && e.command.ID == "" {
		err = in.Broken("the service names no command")
	}
	if err != nil {
		return nil, err
	}
	id := e.command.ID
	in.p.Reap(ctx, &e.over, func(ctx context.Context) {
		_ = in.p.api.Call(ctx, http.MethodPost, in.at(id, "/kill"), map[string]bool{"kill_process_group": true}, nil) // it ends with the sandbox
	})
	if err := e.connect(); err != nil {
		return nil, err
	}
	return e, nil
}

// events is the output of a command.
type events struct {
	in      *inside
	ctx     context.Context
	command execution
	lines   *rest.Stream
	offset  int         // of the output that is not received yet
	some    bool        // this connection brought output
	told    bool        // the error output was returned
	over    atomic.Bool // the command has ended
}

// connect listens to the output that is not received yet.
func (e *events) connect() error {
	e.some = false
	at := e.in.at(e.command.ID, "/stream_stdout_updates?offset="+strconv.Itoa(e.offset))
	body, err := e.in.p.api.Listen(e.ctx, http.MethodGet, at, nil, rest.Events)
	if err == nil {
		e.lines = rest.NewStream(body)
	}
	return err
}

// Next implements hosted.Events. The output is complete when the command has
// ended and a new connection brings nothing more.
func (e *events) Next() (ev hosted.Event, err error) {
	for {
		_, data, err := e.lines.Next()
		if err == nil {
			var chunk struct{ Output string }
			if json.Unmarshal([]byte(data), &chunk) != nil {
				return ev, e.in.Broken("the service's output is invalid")
			}
			e.offset, e.some = e.offset+len(chunk.Output), true
			return hosted.Event{Stdout: chunk.Output}, nil
		}
		_ = e.lines.Close()
		if err := e.ctx.Err(); err != nil {
			return ev, err
		}
		if e.command.Status == completed && !e.some {
			return e.exit()
		}
		if err := e.in.p.api.Call(e.ctx, http.MethodGet, e.in.at(e.command.ID, ""), nil, &e.command); err != nil {
			return ev, err
		}
		if e.command.Status != completed {
			if err := rest.Sleep(e.ctx, 100*time.Millisecond); err != nil {
				return ev, err
			}
		}
		if err := e.connect(); err != nil {
			return ev, err
		}
	}
}

// exit returns the error output, and then the exit code.
func (e *events) exit() (hosted.Event, error) {
	e.over.Store(true)
	switch {
	case e.command.Stderr != "" && !e.told:
		e.told = true
		return hosted.Event{Stderr: e.command.Stderr}, nil
	case e.command.Code == nil:
		return hosted.Event{}, e.in.Broken("the service does not tell how the command ended")
	}
	return hosted.Event{Exit: e.command.Code}, nil
}

// Close implements hosted.Events.
func (e *events) Close() error { return e.lines.Close() }

var _ hosted.Inside = (*inside)(nil)
