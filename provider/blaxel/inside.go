package blaxel

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
)

// inside is the API of one sandbox.
type inside struct {
	hosted.Text
	rest.Client // of that API
	p           *Provider
	sandbox     string // its name
	wrong       error  // why the key is not sent there
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{Client: p.api.Client, p: p, sandbox: b.ID}
	in.Text = hosted.Text{Commander: in, ID: b.Sandbox, Open: p.Open, Exec: in.exec}
	at, _ := b.Access.(string)
	base, err := rest.ParseURL("blaxel.sandbox", "URL of the sandbox", at)
	switch {
	case err != nil:
		in.wrong = err
	case base.Scheme != "https" && p.api.Base.Scheme == "https":
		in.wrong = in.Broken("the service names an address of the sandbox that is not encrypted")
	default:
		in.Base = base
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

// Wake implements hosted.Inside. It restores a sandbox that is archived. It never
// creates another one.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.ID, in.sandbox, func(now hosted.Sandbox) (bool, error) {
		if now.Status == deployed {
			return true, nil
		}
		return false, in.p.api.Call(ctx, http.MethodPost, path(in.sandbox, "/unarchive"), nil, nil)
	})
}

// reaches is how often to make a request until the service reaches the sandbox.
const reaches = 8

// reach makes a request to the API of the sandbox, and again while the service
// says that it did not reach the sandbox.
func (in *inside) reach(ctx context.Context, request func() error) error {
	if in.wrong != nil {
		return in.wrong
	}
	for n, wait := 1, 100*time.Millisecond; ; n, wait = n+1, min(2*wait, time.Second) {
		err := request()
		if rest.RefusalOf(err).Code != unavailable {
			return err
		}
		if n == reaches {
			return in.Broken("the service does not reach the sandbox")
		}
		if err := rest.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// process is a command.
type process struct {
	Command string `json:"command"`
	Name    string `json:"name"`
	Dir     string `json:"workingDir"`
	Wait    bool   `json:"waitForCompletion"`
	Awake   bool   `json:"keepAlive"` // no standby
	Timeout int    `json:"timeout"`   // 0: none
}

// newProcess returns a command, which the sandbox's shell gets as one line.
func newProcess(argv []string, env map[string]string) process {
	return process{Command: hosted.Quote(hosted.Rooted(argv, env)), Name: "atoll-" + rand.Text(), Dir: "/", Wait: true, Awake: true}
}

// result is what the service says of a command that has ended.
type result struct {
	Status string `json:"status"`
	Code   *int   `json:"exitCode"`
	Stdout string `json:"stdout"`
}

// code returns the exit code of a command that has ended.
func (in *inside) code(r result) (int, error) {
	if r.Code == nil || r.Status == "" || r.Status == "running" {
		return 0, in.Broken("the service does not tell how the command ended")
	}
	return *r.Code, nil
}

// exec runs a short command.
func (in *inside) exec(ctx context.Context, argv []string, env map[string]string) (int, string, error) {
	var r result
	body := newProcess(argv, env)
	if err := in.reach(ctx, func() error { return in.Call(ctx, http.MethodPost, "/process", body, &r) }); err != nil {
		return 0, "", err
	}
	code, err := in.code(r)
	return code, r.Stdout, err
}

// piece is the longest content of one request, in bytes.
const piece = 5 << 20

// Put implements hosted.Commander. A long content is sent in pieces.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	body, err := open()
	if err != nil {
		return err
	}
	defer body.Close()
	part, more, err := cut(body)
	if err == nil && !more {
		return in.send(ctx, "/filesystem/"+file, part, nil, "permissions", "0644", "path", file)
	}
	var upload struct {
		ID string `json:"uploadId"`
	}
	if err == nil {
		err = in.reach(ctx, func() error {
			return in.Call(ctx, http.MethodPost, "/filesystem-multipart/initiate/"+file, map[string]string{"permissions": "0644"}, &upload)
		})
	}
	if err != nil {
		return err
	}
	type sent struct {
		Number int    `json:"partNumber"`
		Tag    string `json:"etag"`
	}
	at, all := "/filesystem-multipart/"+url.PathEscape(upload.ID), []sent{}
	for len(part) > 0 && err == nil {
		one := sent{Number: len(all) + 1}
		err = in.send(ctx, at+"/part?partNumber="+strconv.Itoa(one.Number), part, &one)
		all = append(all, sent{Number: len(all) + 1, Tag: one.Tag})
		if err == nil {
			part, _, err = cut(body)
		}
	}
	if err == nil {
		err = in.reach(ctx, func() error { return in.Call(ctx, http.MethodPost, at+"/complete", map[string]any{"parts": all}, nil) })
	}
	if err != nil {
		_ = in.Call(context.WithoutCancel(ctx), http.MethodDelete, at+"/abort", nil, nil) // it ends with the sandbox
	}
	return err
}

// cut returns the next piece of a content, and whether it is full.
func cut(body io.Reader) (part []byte, full bool, err error) {
	part, err = io.ReadAll(io.LimitReader(body, piece))
	return part, len(part) == piece, err
}

// send sends a form with a piece of a file.
func (in *inside) send(ctx context.Context, to string, part []byte, answer any, fields ...string) error {
	return in.reach(ctx, func() error {
		return in.Patient(ctx, func() error {
			kind, body := rest.Form("file", bytes.NewReader(part), fields...)
			res, err := in.Send(ctx, http.MethodPut, to, http.Header{"Content-Type": {kind}}, body)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if answer != nil && json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(answer) != nil {
				return in.Broken("the service's answer to a part of a file is invalid")
			}
			return nil
		})
	})
}

// maxEvent limits an event of a command.
const maxEvent = 16 << 20

// Stream implements hosted.Commander. The service runs a command to its end
// unless it is killed.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (hosted.Events, error) {
	command, e := newProcess(argv, env), &events{in: in}
	err := in.reach(ctx, func() (err error) {
		e.body, err = in.Listen(ctx, http.MethodPost, "/process", command, rest.Events)
		return err
	})
	if err != nil {
		return nil, err
	}
	e.lines = bufio.NewScanner(e.body)
	e.lines.Buffer(nil, maxEvent)
	in.p.Reap(ctx, &e.over, func(ctx context.Context) {
		_ = in.Call(ctx, http.MethodDelete, "/process/"+url.PathEscape(command.Name)+"/kill", nil, nil) // it ends with the sandbox
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

// Next implements hosted.Events.
func (e *events) Next() (ev hosted.Event, err error) {
	for e.lines.Scan() {
		if len(bytes.TrimSpace(e.lines.Bytes())) == 0 {
			continue
		}
		var said struct{ Type, Data string }
		if json.Unmarshal(e.lines.Bytes(), &said) != nil {
			return ev, e.in.Broken("the service's output is invalid")
		}
		switch said.Type {
		case "stdout":
			return hosted.Event{Stdout: said.Data}, nil
		case "stderr":
			return hosted.Event{Stderr: said.Data}, nil
		case "result":
			var r result
			if json.Unmarshal([]byte(said.Data), &r) != nil {
				return ev, e.in.Broken("the service's output is invalid")
			}
			e.over.Store(true)
			code, err := e.in.code(r)
			return hosted.Event{Exit: &code}, err
		}
	}
	return ev, e.in.Lost(e.lines.Err())
}

// Close implements hosted.Events.
func (e *events) Close() error { return e.body.Close() }

var _ hosted.Inside = (*inside)(nil)
