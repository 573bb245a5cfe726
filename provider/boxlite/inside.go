package boxlite

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/wsexec"
	"github.com/atoll-run/atoll/sandbox"
)

// inside runs commands and uploads files in one box.
type inside struct {
	p    *Provider
	id   string // the server's
	name sandbox.ID
}

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.name), Message: message}
}

// Upload implements guestkit.Runner. The archive is unpacked in the root
// directory, so that no mount is in the way. If the server refuses it, a
// command writes the guest.
func (in *inside) Upload(ctx context.Context, file string, guest *program.Program) error {
	body, err := guest.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	archive, err := packed(file, text)
	if err != nil {
		return err
	}
	err = in.extract(ctx, archive)
	if code := sandbox.CodeOf(err); code == sandbox.CodeInvalid || code == sandbox.CodeUnsupported {
		q := hosted.Quote([]string{file})
		script := "umask 022; mkdir -p " + hosted.Quote([]string{path.Dir(file)}) + " && head -c " + strconv.Itoa(len(text)) + " >" + q + ".new && chmod 0755 " + q + ".new && mv " + q + ".new " + q
		_, err = in.run(ctx, script, text)
	}
	return err
}

// packed is an archive of a program and the directories above it.
func packed(file string, text []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	var errs []error
	for i, c := range file {
		if c == '/' && i > 0 {
			errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: file[1:i] + "/", Mode: 0o755}))
		}
	}
	errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file[1:], Mode: 0o755, Size: int64(len(text))}))
	_, err := w.Write(text)
	return out.Bytes(), errors.Join(append(errs, err, w.Close())...)
}

func (in *inside) extract(ctx context.Context, archive []byte) error {
	where, err := in.p.api.path(ctx, "/boxes/"+in.id+"/files?"+url.Values{"path": {"/"}, "overwrite": {"true"}}.Encode())
	if err != nil {
		return err
	}
	c := &in.p.api.Client
	return c.Signed(ctx, func() error {
		return c.Upload(ctx, http.MethodPut, where, "application/x-tar", bytes.NewReader(archive))
	})
}

// execution is the request for a command.
type execution struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Dir     string            `json:"working_dir"`
}

// Start implements guestkit.Runner. It refuses a stopped box, because the
// server would start it without a configured guest. Only Resume starts boxes.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	b, err := in.p.Service.Get(ctx, in.name, in.id)
	if err == nil {
		err = in.p.Usable(b)
	}
	if err == nil {
		err = awake(b)
	}
	if err != nil {
		return nil, err
	}
	e := execution{Command: argv[0], Args: argv[1:], Env: hosted.Env(env), Dir: "/"}
	var made struct {
		ID string `json:"execution_id"`
	}
	if err := in.p.api.call(ctx, http.MethodPost, "/boxes/"+in.id+"/exec", e, &made); err != nil {
		return nil, err
	}
	if !usableID.MatchString(made.ID) {
		return nil, in.broken("the server names no command")
	}
	where := "/boxes/" + in.id + "/executions/" + made.ID
	ws, err := in.attach(ctx, where+"/attach")
	if err != nil {
		in.kill(ctx, where)
		return nil, err
	}
	var over atomic.Bool
	return wsexec.New(in.p.Open, &in.p.Conns, ws, wsexec.Protocol{
		Stdout: 1, Stderr: 2, MaxInput: 32 << 10,
		Ended: func(text, stderr []byte) error {
			err := in.ended(text, stderr)
			if err != nil {
				over.Store(true)
			}
			return err
		},
		Lost: func() error { return in.broken("the connection to the sandbox was lost") },
		Release: func(ctx context.Context) {
			if !over.Load() {
				in.kill(ctx, where)
			}
		},
	}), nil
}

// attach connects to a command. Only one client can be connected.
func (in *inside) attach(ctx context.Context, below string) (ws *websocket.Conn, err error) {
	c := &in.p.api.Client
	where, err := in.p.api.path(ctx, below)
	if err != nil {
		return nil, err
	}
	err = c.Signed(ctx, func() error {
		ws, err = c.Dial(ctx, strings.TrimSuffix(c.Base.String(), "/")+where)
		return err
	})
	return ws, err
}

// killing limits ending a command without a connection.
const killing = 5 * time.Second

// kill ends a command without a connection. The server also does that after a
// while.
func (in *inside) kill(ctx context.Context, where string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killing)
	defer cancel()
	_ = in.p.api.call(ctx, http.MethodDelete, where, nil, nil)
}

// ended parses a text message. It returns nil unless the command has ended. An
// error message of the server does not end it.
func (in *inside) ended(text, stderr []byte) error {
	var m struct {
		Type string `json:"type"`
		Code *int   `json:"exit_code"`
	}
	switch err := json.Unmarshal(text, &m); {
	case err != nil:
		return in.broken("the server's message is invalid")
	case m.Type == "exit" && m.Code == nil:
		return in.broken("the server does not say how the command ended")
	case m.Type == "exit":
		return &guestkit.Exit{Code: *m.Code, Status: "exited", Stderr: stderr}
	}
	return nil
}

// run runs a script with input and returns its output, which must be short.
func (in *inside) run(ctx context.Context, script string, input []byte) (string, error) {
	return hosted.Script(ctx, in.Start, script, input)
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return in.run(ctx, script, nil)
}

// Wake implements hosted.Inside: it starts the same box, with its files but
// without its processes. Atoll never stops a box to pause it, because that
// would end its processes.
func (in *inside) Wake(ctx context.Context) error { return in.p.start(ctx, in.name, in.id) }
