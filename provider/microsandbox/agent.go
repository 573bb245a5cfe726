package microsandbox

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/cbor"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/wsexec"
	"github.com/atoll-run/atoll/sandbox"
)

// inside is the agent in one sandbox.
type inside struct {
	p       *Provider
	sandbox string // its ID
	name    sandbox.ID
}

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.name), Message: message}
}

// Wake implements hosted.Inside. It starts a sandbox that is stopped. It never
// creates another one.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.name, in.sandbox, func(now hosted.Sandbox) (bool, error) {
		if now.Status == running {
			return true, nil
		}
		return false, in.p.api.Call(ctx, http.MethodPost, "/v1/sandboxes/"+in.sandbox+"/start", struct{}{}, nil)
	})
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return hosted.Script(ctx, in.Start, script, nil)
}

// Upload implements guestkit.Runner.
func (in *inside) Upload(ctx context.Context, file string, guest *program.Program) error {
	q, dir := hosted.Quote([]string{file}), hosted.Quote([]string{path.Dir(file)})
	if _, err := in.Run(ctx, "mkdir -p "+dir); err != nil {
		return err
	}
	body, err := guest.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	if err := in.write(ctx, file+".new", body); err != nil {
		return err
	}
	_, err = in.Run(ctx, "chmod 0755 "+q+".new && mv "+q+".new "+q)
	return err
}

// write writes a file as root.
func (in *inside) write(ctx context.Context, file string, body io.Reader) error {
	ws, a, err := in.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = ws.CloseNow() }()
	ask := func(op string, args map[string]any) error {
		return ws.Write(ctx, websocket.MessageBinary, frame(a.id, opens, "core.fs.request", map[string]any{"op": map[string]any{op: args}}))
	}
	send := func(part []byte) error {
		return ws.Write(ctx, websocket.MessageBinary, frame(a.id, 0, "core.fs.data", map[string]any{"data": part}))
	}
	err = ask("OpenFile", map[string]any{"path": file, "options": map[string]any{
		"read": false, "write": true, "append": false, "create": true, "truncate": true, "create_new": false, "mode": 0o644, "user": nil,
	}})
	opened, err := a.answer(ctx, ws, err)
	if err != nil {
		return err
	}
	handle, ok := opened["Handle"].(int64)
	if !ok {
		return in.broken("the agent in the sandbox opens no file")
	}
	a.id++
	err = ask("Write", map[string]any{"handle": uint64(handle), "offset": 0, "len": nil})
	for part := make([]byte, maxInput); err == nil; {
		n, readErr := io.ReadFull(body, part)
		if n > 0 {
			err = send(part[:n])
		}
		if err == nil && readErr != nil {
			if err = send([]byte{}); readErr != io.EOF && readErr != io.ErrUnexpectedEOF {
				return readErr
			}
			break
		}
	}
	if _, err = a.answer(ctx, ws, err); err != nil {
		return err
	}
	a.id++
	_, err = a.answer(ctx, ws, ask("CloseHandle", map[string]any{"handle": uint64(handle)}))
	return err
}

// answer waits for the answer to a request about files. asked is the error of the
// request.
func (a *agent) answer(ctx context.Context, ws *websocket.Conn, asked error) (data map[string]any, err error) {
	for err = asked; err == nil; {
		m, ok, invalid := a.next()
		switch text, _ := m.payload["error"].(string); {
		case invalid != nil:
			return nil, invalid
		case ok && m.id == a.id && m.payload["ok"] == true:
			data, _ = m.payload["data"].(map[string]any)
			return data, nil
		case ok && m.id == a.id:
			return nil, a.in.broken("the agent in the sandbox writes no file: " + a.in.p.api.Clip(text))
		case ok:
			continue
		}
		var more []byte
		_, more, err = ws.Read(ctx)
		a.buf = append(a.buf, more...)
	}
	return nil, a.lost(ctx, err)
}

// lost returns the error of a connection.
func (a *agent) lost(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case sandbox.CodeOf(err) == "":
		return a.in.broken("the connection to the sandbox was lost")
	}
	return err
}

// The agent's protocol: frames of a length, an ID, flags and a message in CBOR.
// Before them it sends which IDs the client may use.
const (
	generation = 5 // of the protocol
	preamble   = 8 // bytes
	header     = 5 // bytes of ID and flags
	maxFrame   = 4 << 20
	maxInput   = 1 << 20
	opens      = 2 // flag of the first message with an ID
	maxText    = 300
	kill       = 9 // SIGKILL
)

// frame is a message of a command.
func frame(id uint32, flags byte, kind string, payload map[string]any) []byte {
	body := cbor.Append(nil, map[string]any{"v": generation, "t": kind, "p": cbor.Append(nil, payload)})
	out := binary.BigEndian.AppendUint32(nil, uint32(header+len(body)))
	out = append(binary.BigEndian.AppendUint32(out, id), flags)
	return append(out, body...)
}

// message is a message of the agent.
type message struct {
	id      uint32
	kind    string
	payload map[string]any
}

// agent is the stream of bytes of an agent.
type agent struct {
	in  *inside
	buf []byte // received, and not decoded yet
	id  uint32 // of the command
}

// next returns the next message, if all of it has been received.
func (a *agent) next() (m message, ok bool, err error) {
	if len(a.buf) < 4 {
		return m, false, nil
	}
	n := binary.BigEndian.Uint32(a.buf)
	if n < header || n > maxFrame {
		return m, false, a.in.broken("the agent in the sandbox sends no frames")
	}
	if uint32(len(a.buf)-4) < n {
		return m, false, nil
	}
	body := a.buf[4+header : 4+n]
	m.id, a.buf = binary.BigEndian.Uint32(a.buf[4:]), a.buf[4+n:]
	envelope, err := dictionary(body)
	if err == nil {
		m.kind, _ = envelope["t"].(string)
		text, _ := envelope["p"].([]byte)
		m.payload, err = dictionary(text)
	}
	if err != nil {
		return m, false, a.in.broken("the agent in the sandbox sends an invalid message")
	}
	return m, true, nil
}

// dictionary decodes a map.
func dictionary(data []byte) (map[string]any, error) {
	v, err := cbor.Decode(data)
	m, _ := v.(map[string]any)
	return m, err
}

// decode returns the output in what was received, and how the command ended.
func (a *agent) decode(data []byte, stderr *[]byte) (out []byte, err error) {
	a.buf = append(a.buf, data...)
	for {
		m, ok, err := a.next()
		if err != nil || !ok {
			return out, err
		}
		if m.id != a.id {
			continue
		}
		text, _ := m.payload["data"].([]byte)
		switch m.kind {
		case "core.exec.stdout":
			out = append(out, text...)
		case "core.exec.stderr":
			*stderr = append(*stderr, text[:min(len(text), maxText-len(*stderr))]...)
		case "core.exec.exited":
			code, ok := m.payload["code"].(int64)
			if !ok {
				return out, a.in.broken("the agent does not say how the command ended")
			}
			return out, &guestkit.Exit{Code: int(code), Status: "exited", Stderr: *stderr}
		case "core.exec.failed", "core.error":
			text, _ := m.payload["message"].(string)
			return out, a.in.broken("the agent in the sandbox refuses the command: " + a.in.p.api.Clip(text))
		}
	}
}

// connect connects to the agent, which is then ready.
func (in *inside) connect(ctx context.Context) (ws *websocket.Conn, a *agent, err error) {
	c := &in.p.api.Client
	err = c.Patient(ctx, func() (err error) {
		ws, err = c.Dial(ctx, "ws"+strings.TrimPrefix(strings.TrimSuffix(c.Base.String(), "/"), "http")+"/v1/sandboxes/"+in.sandbox+"/agent")
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	a = &agent{in: in}
	if err := a.greet(ctx, ws); err != nil {
		_ = ws.CloseNow()
		return nil, nil, a.lost(ctx, err)
	}
	return ws, a, nil
}

// Start implements guestkit.Runner.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	ws, a, err := in.connect(ctx)
	if err != nil {
		return nil, err
	}
	err = ws.Write(ctx, websocket.MessageBinary, frame(a.id, opens, "core.exec.request", map[string]any{
		"cmd": argv[0], "args": argv[1:], "env": slices.Concat([]string{}, env), "cwd": "/", "user": "root", "tty": false, "rows": 24, "cols": 80, "rlimits": []any{},
	}))
	if err != nil {
		_ = ws.CloseNow()
		return nil, a.lost(ctx, err)
	}
	return wsexec.New(in.p.Open, &in.p.Conns, ws, wsexec.Protocol{
		MaxInput: maxInput, Decode: a.decode,
		Encode:   func(input []byte) []byte { return frame(a.id, 0, "core.exec.stdin", map[string]any{"data": input}) },
		Farewell: frame(a.id, 0, "core.exec.signal", map[string]any{"signal": kill}),
		Lost:     func() error { return in.broken("the connection to the sandbox was lost") },
	}), nil
}

// greet reads which IDs the client may use, and waits until the agent is ready.
func (a *agent) greet(ctx context.Context, ws *websocket.Conn) error {
	ws.SetReadLimit(2 * maxFrame)
	for ready := false; !ready; {
		kind, data, err := ws.Read(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			continue
		}
		a.buf = append(a.buf, data...)
		if a.id == 0 {
			if len(a.buf) < preamble {
				continue
			}
			first, end := binary.BigEndian.Uint32(a.buf), binary.BigEndian.Uint32(a.buf[4:])
			if a.id = max(first, 1); a.id >= end {
				return a.in.broken("the agent in the sandbox is too old")
			}
			a.buf = a.buf[preamble:]
		}
		m, ok, err := a.next()
		if err != nil {
			return err
		}
		if ready = ok && m.kind == "core.ready"; ok && !ready {
			return a.in.broken("the agent in the sandbox is not ready")
		}
	}
	return nil
}

var _ hosted.Inside = (*inside)(nil)
