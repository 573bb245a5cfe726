package islo

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
)

// inside runs commands and uploads files in one sandbox.
type inside struct {
	hosted.Text
	api *api
	p   *Provider
	// name is the service's name, for paths.
	name string
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{api: p.api, p: p}
	in.name, _ = b.Access.(string)
	in.Text = hosted.Text{Commander: in, ID: b.Sandbox, Open: p.Open, Script: in.Run}
	return in
}

func (in *inside) path(rest string) string { return "/sandboxes/" + in.name + rest }

// command is the request to run a command.
type command struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user"`
	Dir     string            `json:"workdir"`
}

func asRoot(env map[string]string, argv ...string) command {
	return command{Command: argv, Env: env, User: "root", Dir: "/"}
}

// Run implements hosted.Inside. It polls until the command has an exit code or
// a final status.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	var now struct {
		ID        string `json:"exec_id"`
		Status    string `json:"status"`
		Code      *int   `json:"exit_code"`
		Stdout    string `json:"stdout"`
		Truncated bool   `json:"truncated"`
	}
	err := in.api.Call(ctx, http.MethodPost, in.path("/exec"), asRoot(nil, "/bin/sh", "-c", script), &now)
	if err == nil && now.ID == "" {
		err = in.Broken("the service names no command")
	}
	under := []string{"running", "pending", "started", "queued"}
	id := url.PathEscape(now.ID)
	for wait := fastPoll; err == nil && now.Code == nil && slices.Contains(under, now.Status); wait = min(2*wait, slowPoll) {
		if err = rest.Sleep(ctx, wait); err == nil {
			err = in.api.Call(ctx, http.MethodGet, in.path("/exec/"+id), nil, &now)
		}
	}
	switch {
	case err != nil:
		return "", err
	case now.Code == nil:
		return "", in.Broken("the command was not run")
	case *now.Code != 0:
		return "", in.Broken("the command failed with exit code " + strconv.Itoa(*now.Code))
	case now.Truncated:
		return "", in.Broken("the service does not tell everything that the command wrote")
	}
	return now.Stdout, nil
}

// Put implements hosted.Commander.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	return in.api.Patient(ctx, func() error {
		body, err := open()
		if err != nil {
			return err
		}
		defer body.Close()
		kind, form := rest.Form("file", body)
		return in.api.Client.Upload(ctx, http.MethodPost, in.path("/files?"+url.Values{"path": {file}}.Encode()), kind, form)
	})
}

// Stream implements hosted.Commander.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (out hosted.Events, err error) {
	text, err := json.Marshal(asRoot(env, argv...))
	if err != nil {
		return nil, err
	}
	err = in.api.Patient(ctx, func() error {
		header := http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
		res, err := in.api.Send(ctx, http.MethodPost, in.path("/exec/stream"), header, bytes.NewReader(text)) //nolint:bodyclose // events closes it
		if err != nil {
			return err
		}
		out = &events{Stream: rest.NewStream(res.Body), in: in}
		return nil
	})
	return out, err
}

// events are the events of a command.
type events struct {
	*rest.Stream
	in *inside
}

// Next implements hosted.Events.
func (e *events) Next() (ev hosted.Event, err error) {
	for {
		name, data, err := e.Stream.Next()
		if err != nil {
			return ev, e.in.Broken("the connection to the sandbox was lost")
		}
		switch name {
		case "stdout":
			return hosted.Event{Stdout: data}, nil
		case "stderr":
			return hosted.Event{Stderr: data}, nil
		case "error":
			return ev, e.in.Broken("the service did not run the command")
		case "exit":
			code, err := strconv.Atoi(strings.TrimSpace(data))
			if err != nil {
				return ev, e.in.Broken("the service's events are invalid")
			}
			return hosted.Event{Exit: &code}, nil
		}
	}
}
