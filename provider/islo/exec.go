package islo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// inside runs commands and uploads files in one sandbox.
type inside struct {
	p   *Provider
	api *api
	id  sandbox.ID
	// name is the service's name, for paths.
	name string
}

func (in *inside) path(rest string) string { return "/sandboxes/" + in.name + rest }

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.id), Message: message}
}

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
		err = in.broken("the service names no command")
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
		return "", in.broken("the command was not run")
	case *now.Code != 0:
		return "", in.broken("the command failed with exit code " + strconv.Itoa(*now.Code))
	case now.Truncated:
		return "", in.broken("the service does not tell everything that the command wrote")
	}
	return now.Stdout, nil
}

// The directory for uploads. Only root can list it, because the user that
// writes them is not known.
var (
	dir     = path.Dir(guest.NestedPrefix)
	uploads = dir + "/in"
)

// upload writes a file to that directory and returns its path and SHA-256.
func (in *inside) upload(ctx context.Context, open func() (io.ReadCloser, error)) (file, sum string, err error) {
	file = uploads + "/" + rand.Text()
	err = in.api.patient(ctx, func() error {
		body, err := open()
		if err != nil {
			return err
		}
		defer body.Close()
		digest := sha256.New()
		var head bytes.Buffer
		form := multipart.NewWriter(&head)
		if _, err = form.CreateFormFile("file", path.Base(file)); err != nil {
			return err
		}
		tail := "\r\n--" + form.Boundary() + "--\r\n"
		parts := io.MultiReader(&head, io.TeeReader(body, digest), strings.NewReader(tail))
		err = in.api.Client.Upload(ctx, http.MethodPost, in.path("/files?"+url.Values{"path": {file}}.Encode()), form.FormDataContentType(), parts)
		sum = hex.EncodeToString(digest.Sum(nil))
		return err
	})
	return file, sum, err
}

// Upload implements guestkit.Runner. A command as root checks the file's hash
// and moves it to its place.
func (in *inside) Upload(ctx context.Context, to string, guest *program.Program) error {
	if _, err := in.Run(ctx, "mkdir -p "+uploads+" && chmod 0711 "+dir+" && chmod 1733 "+uploads); err != nil {
		return err
	}
	file, sum, err := in.upload(ctx, guest.Open)
	if err == nil {
		_, err = in.Run(ctx, "set -e; cp "+file+" "+file+".own; rm -f "+file+"; mv "+file+".own "+to+".new; chmod 0755 "+to+".new; "+
			"set -- $(sha256sum "+to+".new); [ \"$1\" = "+sum+" ]; mv "+to+".new "+to)
	}
	return err
}

// stream makes a request whose answer is the events of a command. They end when
// the context ends.
func (in *inside) stream(ctx context.Context, c command) (events *events, err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	err = in.api.patient(ctx, func() error {
		header := http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
		res, err := in.api.Send(ctx, http.MethodPost, in.path("/exec/stream"), header, bytes.NewReader(text)) //nolint:bodyclose // events closes it
		if err != nil {
			return err
		}
		events = newEvents(res.Body)
		return nil
	})
	return events, err
}

// events are the events of a command.
type events struct {
	body  io.ReadCloser
	lines *bufio.Scanner
}

// maxEvent limits a line of an event stream.
const maxEvent = 4 << 20

func newEvents(body io.ReadCloser) *events {
	e := &events{body: body, lines: bufio.NewScanner(body)}
	e.lines.Buffer(nil, maxEvent)
	return e
}

// next returns an event's name and data.
func (e *events) next() (name, data string, err error) {
	var lines []string
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case e.lines.Text() == "" && name != "":
			return name, strings.Join(lines, "\n"), nil
		case field == "event":
			name = value
		case field == "data":
			lines = append(lines, value)
		}
	}
	return "", "", cmp.Or(e.lines.Err(), io.ErrUnexpectedEOF)
}

// talk is a program that joins the guest. It implements guestkit.Program.
// Output arrives as events in base64; each input is a separate command.
type talk struct {
	*inside
	feed   string
	events *events
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once

	first  []byte // what was received by Start
	end    error
	half   string // of base64
	stderr []byte
}

// Start implements guestkit.Runner. It waits for the program's first message,
// which says that it accepts input.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	t := &talk{inside: in, feed: dir + "/feed-" + rand.Text()}
	vars := hosted.Env(env)
	vars[guest.FeedEnv] = t.feed
	t.ctx, t.cancel = context.WithCancel(in.p.Open)
	stop := context.AfterFunc(ctx, t.cancel)
	var err error
	if t.events, err = in.stream(t.ctx, asRoot(vars, argv...)); err == nil {
		t.first, t.end = t.listen()
	}
	if !stop() || ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// maxText limits the bytes that are kept of a command's error output.
const maxText = 300

// listen waits for output or the end of the command.
func (t *talk) listen() ([]byte, error) {
	for {
		name, data, err := t.events.next()
		if err != nil {
			return nil, t.broken("the connection to the sandbox was lost")
		}
		switch name {
		case "stdout":
			return t.decode(data)
		case "stderr":
			t.stderr = append(t.stderr, data[:min(len(data), maxText-len(t.stderr))]...)
		case "error":
			return nil, t.broken("the service did not run the command")
		case "exit":
			code, err := strconv.Atoi(strings.TrimSpace(data))
			if err != nil {
				return nil, t.broken("the service's events are invalid")
			}
			return nil, &guestkit.Exit{Code: code, Status: "exited", Stderr: t.stderr}
		}
	}
}

// decode decodes the complete part of base64 text that may be cut anywhere.
func (t *talk) decode(text string) (out []byte, err error) {
	text = t.half + strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == ' ' {
			return -1
		}
		return r
	}, text)
	whole := len(text) &^ 3
	t.half = text[whole:]
	// Each write of the program ends with padding if necessary.
	for text = text[:whole]; text != ""; {
		n := len(text)
		if i := strings.IndexByte(text, '='); i >= 0 {
			n = i&^3 + 4
		}
		if out, err = base64.StdEncoding.AppendDecode(out, []byte(text[:n])); err != nil {
			return nil, t.broken("what the sandbox says was damaged on the way")
		}
		text = text[n:]
	}
	return out, nil
}

// Receive implements guestkit.Program.
func (t *talk) Receive() ([]byte, error) {
	if t.first != nil || t.end != nil {
		data, err := t.first, t.end
		t.first = nil
		return data, err
	}
	return t.listen()
}

// most is the maximum input in a variable of a command: Linux accepts strings
// of 128 KiB.
const most = 90_000

// Send implements guestkit.Program. Longer input goes through a file.
func (t *talk) Send(ctx context.Context, data []byte) error {
	if t.p.Open.Err() != nil {
		return t.broken("the provider was closed")
	}
	line := base64.StdEncoding.EncodeToString(data[:min(len(data), most)])
	if len(data) > most {
		file, sum, err := t.upload(ctx, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err != nil {
			return err
		}
		line = "@" + file + " " + sum
	}
	const script = `[ -p "$ATOLL_TO" ] && printf '%s\n' "$ATOLL_LINE" 1<>"$ATOLL_TO"`
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := t.stream(ctx, asRoot(map[string]string{"ATOLL_TO": t.feed, "ATOLL_LINE": line}, "/bin/sh", "-c", script))
	if err != nil {
		return err
	}
	defer e.body.Close()
	for {
		name, data, err := e.next()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return t.broken("the connection to the sandbox was lost")
		case name == "exit" && strings.TrimSpace(data) == "0":
			return nil
		case name == "exit", name == "error":
			return t.broken("the sandbox takes no input")
		}
	}
}

// Close implements guestkit.Program.
func (t *talk) Close() error {
	t.once.Do(func() {
		t.cancel()
		if t.events != nil {
			_ = t.events.body.Close()
		}
	})
	return nil
}
