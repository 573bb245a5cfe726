package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// dockerAPI uses the API of a Docker daemon, like a program that embeds
// Docker's client. It is the fair comparison with a library.
type dockerAPI struct {
	socket string
	client *http.Client
}

func newDockerAPI(socket string) *dockerAPI {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &dockerAPI{socket, &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (a *dockerAPI) ping(ctx context.Context) error { return a.call(ctx, "GET", "/_ping", nil, nil) }

// call makes one request with in as JSON, and decodes the answer into out.
func (a *dockerAPI) call(ctx context.Context, method, path string, in, out any) error {
	req, err := newRequest(ctx, method, path, in)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 400 {
		return refused(resp)
	}
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func newRequest(ctx context.Context, method, path string, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		js, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(js)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, err
}

func refused(resp *http.Response) error {
	var said struct{ Message string }
	_ = json.NewDecoder(resp.Body).Decode(&said)
	return fmt.Errorf("%s: %s", resp.Status, said.Message)
}

// stream makes a request whose answer is a raw stream, on a separate connection
// that the caller closes.
func (a *dockerAPI) stream(ctx context.Context, path string, in any) (io.Reader, net.Conn, error) {
	req, err := newRequest(ctx, "POST", path, in)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	conn, err := new(net.Dialer).DialContext(ctx, "unix", a.socket)
	if err != nil {
		return nil, nil, err
	}
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	if resp.StatusCode >= 400 {
		err := refused(resp)
		resp.Body.Close()
		conn.Close()
		return nil, nil, err
	}
	return r, conn, nil
}

// streamHeader is the size of the header of every piece of output.
const streamHeader = 8

// first reads the first byte of output, and rest the others.
func first(r io.Reader) error {
	_, err := io.ReadFull(r, make([]byte, streamHeader+1))
	return err
}

func rest(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

type dockerID struct{ ID string }

// run creates and starts a container, and waits for its first output, its end
// and its removal.
func (a *dockerAPI) run(image string, argv []string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		began := time.Now()
		var made dockerID
		err = a.call(ctx, "POST", "/containers/create", map[string]any{
			"Image": image, "Cmd": argv, "AttachStdout": true, "NetworkDisabled": true,
			"HostConfig": map[string]any{"NetworkMode": "none", "AutoRemove": true},
		}, &made)
		if err != nil {
			return t, err
		}
		out, conn, err := a.stream(ctx, "/containers/"+made.ID+"/attach?stream=1&stdout=1", nil)
		if err != nil {
			return t, err
		}
		defer conn.Close()
		removed := make(chan error, 1)
		go func() {
			removed <- a.call(ctx, "POST", "/containers/"+made.ID+"/wait?condition=removed", nil, nil)
		}()
		if err := a.call(ctx, "POST", "/containers/"+made.ID+"/start", nil, nil); err != nil {
			return t, err
		}
		if err := first(out); err != nil {
			return t, err
		}
		t.first = time.Since(began)
		err = errors.Join(rest(out), <-removed)
		t.whole = time.Since(began)
		return t, err
	}
}

// exec runs a command in a running container and waits for its exit status.
func (a *dockerAPI) exec(container string, argv []string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		began := time.Now()
		var made dockerID
		path := "/containers/" + url.PathEscape(container) + "/exec"
		if err := a.call(ctx, "POST", path, map[string]any{"Cmd": argv, "AttachStdout": true}, &made); err != nil {
			return t, err
		}
		out, conn, err := a.stream(ctx, "/exec/"+made.ID+"/start", map[string]any{"Detach": false})
		if err != nil {
			return t, err
		}
		defer conn.Close()
		if err := rest(out); err != nil {
			return t, err
		}
		var ended struct{ ExitCode *int }
		if err := a.call(ctx, "GET", "/exec/"+made.ID+"/json", nil, &ended); err != nil {
			return t, err
		}
		if ended.ExitCode == nil || *ended.ExitCode != 0 {
			return t, errors.New("the command failed")
		}
		t.whole = time.Since(began)
		return t, nil
	}
}

// terminal starts a command on a terminal of a running container. The caller
// closes the connection, which is its input.
func (a *dockerAPI) terminal(ctx context.Context, container string, argv []string) (io.Reader, net.Conn, error) {
	var made dockerID
	path := "/containers/" + url.PathEscape(container) + "/exec"
	in := map[string]any{"Cmd": argv, "AttachStdin": true, "AttachStdout": true, "Tty": true}
	if err := a.call(ctx, "POST", path, in, &made); err != nil {
		return nil, nil, err
	}
	return a.stream(ctx, "/exec/"+made.ID+"/start", map[string]any{"Tty": true})
}
