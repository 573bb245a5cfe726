package microsandbox

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
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
	p    *Provider
	box  string // its ID
	name sandbox.ID
}

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.name), Message: message}
}

// Wake implements hosted.Inside. It starts a sandbox that is stopped. It never
// creates another one.
func (in *inside) Wake(ctx context.Context) error {
	return in.p.Move(ctx, in.name, in.box, func(now hosted.Box) (bool, error) {
		if now.Status == running {
			return true, nil
		}
		return false, in.p.api.Call(ctx, http.MethodPost, "/v1/sandboxes/"+in.box+"/start", struct{}{}, nil)
	})
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return hosted.Script(ctx, in.Start, script, nil)
}

// Upload implements guestkit.Runner.
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
	q, dir := hosted.Quote([]string{file}), hosted.Quote([]string{path.Dir(file)})
	_, err = hosted.Script(ctx, in.Start, "set -e; umask 022; mkdir -p "+dir+"; head -c "+strconv.Itoa(len(text))+" >"+q+".new; chmod 0755 "+q+".new; mv "+q+".new "+q, text)
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

// Start implements guestkit.Runner.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	c := &in.p.api.Client
	var ws *websocket.Conn
	err := c.Patient(ctx, func() (err error) {
		ws, err = c.Dial(ctx, "ws"+strings.TrimPrefix(strings.TrimSuffix(c.Base.String(), "/"), "http")+"/v1/sandboxes/"+in.box+"/agent")
		return err
	})
	if err != nil {
		return nil, err
	}
	a := &agent{in: in}
	if err = a.greet(ctx, ws); err == nil {
		err = ws.Write(ctx, websocket.MessageBinary, frame(a.id, opens, "core.exec.request", map[string]any{
			"cmd": argv[0], "args": argv[1:], "env": slices.Concat([]string{}, env), "cwd": "/", "user": "root", "tty": false, "rows": 24, "cols": 80, "rlimits": []any{},
		}))
	}
	if err != nil {
		_ = ws.CloseNow()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if sandbox.CodeOf(err) == "" {
			err = in.broken("the connection to the sandbox was lost")
		}
		return nil, err
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
