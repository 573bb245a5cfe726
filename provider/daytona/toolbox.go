package daytona

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/guest/program"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
)

// inside is the toolbox of one sandbox.
type inside struct {
	hosted.Text
	rest.Client // of the toolbox
	p           *Provider
	sandbox     string // the service's ID
	wrong       error  // why the key is not sent there
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{Client: p.api.Client, p: p, sandbox: b.ID}
	in.Text = hosted.Text{Commander: in, ID: b.Sandbox, Open: p.Open, Exec: in.exec}
	at, _ := b.Access.(string)
	base, err := rest.ParseURL("daytona.toolbox", "toolbox URL", at)
	switch {
	case err != nil:
		in.wrong = err
	case base.Scheme != "https" && p.api.Base.Scheme == "https":
		in.wrong = in.Broken("the service names a toolbox that is not encrypted")
	default:
		in.Base = base.JoinPath(b.ID)
	}
	return in
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return in.Text.Run(ctx, script)
}

// Upload implements guestkit.Runner.
func (in *inside) Upload(ctx context.Context, to string, guest *program.Program) error {
	return in.Text.Upload(ctx, to, guest)
}

// Wake implements hosted.Inside. It starts a sandbox that was stopped, paused or
// archived. It never creates another one.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.ID, in.sandbox, func(now hosted.Sandbox) (bool, error) {
		if now.Status == started {
			return true, nil
		}
		return false, in.p.api.Call(ctx, http.MethodPost, "/sandbox/"+url.PathEscape(in.sandbox)+"/start", nil, nil)
	})
}

// longest is how long a short command may run, in seconds.
const longest = 600

// exec runs a short command. The service's shell gets one line.
func (in *inside) exec(ctx context.Context, argv []string, env map[string]string) (int, string, error) {
	if in.wrong != nil {
		return 0, "", in.wrong
	}
	var out struct {
		Code   *int   `json:"exitCode"`
		Result string `json:"result"`
	}
	err := in.Call(ctx, http.MethodPost, "/process/execute", map[string]any{
		"command": hosted.Quote(hosted.Rooted(argv, env)), "cwd": "/", "timeout": longest,
	}, &out)
	if err == nil && out.Code == nil {
		err = in.Broken("the service does not tell how the command ended")
	}
	if err != nil {
		return 0, "", err
	}
	return *out.Code, out.Result, nil
}

// Put implements hosted.Commander.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	if in.wrong != nil {
		return in.wrong
	}
	return in.Patient(ctx, func() error {
		content, err := open()
		if err != nil {
			return err
		}
		defer content.Close()
		kind, body := rest.Form("files[0].file", content, "files[0].path", file)
		return in.Client.Upload(ctx, http.MethodPost, "/files/bulk-upload", kind, body)
	})
}

// maxMessage limits a message with output.
const maxMessage = 16 << 20

// Stream implements hosted.Commander. The command has a session of its own,
// which is removed when the context ends.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (hosted.Events, error) {
	if in.wrong != nil {
		return nil, in.wrong
	}
	session := "atoll-" + rand.Text()
	if err := in.Call(ctx, http.MethodPost, "/process/session", map[string]string{"sessionId": session}, nil); err != nil {
		return nil, err
	}
	e := &events{in: in, at: "/process/session/" + session, ctx: ctx}
	in.p.Conns.Go(e.sweep)
	var started struct {
		ID string `json:"cmdId"`
	}
	err := in.Call(ctx, http.MethodPost, e.at+"/exec", map[string]any{
		"command": hosted.Quote(hosted.Rooted(argv, env)), "runAsync": true, "suppressInputEcho": true,
	}, &started)
	if err == nil && started.ID == "" {
		err = in.Broken("the service names no command")
	}
	if err != nil {
		return nil, err
	}
	e.command = e.at + "/command/" + url.PathEscape(started.ID)
	err = in.Patient(ctx, func() (err error) {
		e.ws, err = in.Dial(ctx, "ws"+strings.TrimPrefix(in.Base.String(), "http")+e.command+"/logs?follow=true")
		return err
	})
	if err != nil {
		return nil, err
	}
	e.ws.SetReadLimit(maxMessage)
	return e, nil
}

// events is the output of a command in a session.
type events struct {
	in          *inside
	at, command string // paths
	ctx         context.Context
	ws          *websocket.Conn
	rest        []byte // of a message
	stderr      bool   // it is error output
}

// sweep removes the session when nobody listens any more.
func (e *events) sweep() {
	<-e.ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), 10*time.Second)
	defer cancel()
	_ = e.in.Call(ctx, http.MethodDelete, e.at, nil, nil) // it ends with the sandbox
}

// The service marks the output that follows.
var prefixes = [][]byte{{1, 1, 1}, {2, 2, 2}}

// Next implements hosted.Events.
func (e *events) Next() (ev hosted.Event, err error) {
	for len(e.rest) == 0 {
		_, data, err := e.ws.Read(e.ctx)
		var closed websocket.CloseError
		switch {
		case err == nil:
			e.rest = data
		case e.ctx.Err() == nil && errors.As(err, &closed) && closed.Code == websocket.StatusNormalClosure:
			return e.exit()
		default:
			return ev, e.in.Lost(err)
		}
	}
	for n, prefix := range prefixes {
		if bytes.HasPrefix(e.rest, prefix) {
			e.rest, e.stderr = e.rest[len(prefix):], n == 1
		}
	}
	end := len(e.rest)
	for _, prefix := range prefixes {
		if i := bytes.Index(e.rest, prefix); i >= 0 {
			end = min(end, i)
		}
	}
	out := string(e.rest[:end])
	e.rest = e.rest[end:]
	if e.stderr {
		return hosted.Event{Stderr: out}, nil
	}
	return hosted.Event{Stdout: out}, nil
}

// exit asks how the command ended: the service tells that a moment after the end
// of its output.
func (e *events) exit() (ev hosted.Event, err error) {
	err = hosted.Poll(e.ctx, func() (bool, error) {
		var now struct {
			Code *int `json:"exitCode"`
		}
		err := e.in.Call(e.ctx, http.MethodGet, e.command, nil, &now)
		ev.Exit = now.Code
		return now.Code != nil, err
	}, func() error { return e.in.Broken("the service does not tell how the command ended") })
	return ev, err
}

// Close implements hosted.Events.
func (e *events) Close() error { return e.ws.CloseNow() }

var _ hosted.Inside = (*inside)(nil)
