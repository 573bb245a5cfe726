package microvm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// monitor is a connection with QEMU's monitor. QEMU serves one at a time.
type monitor struct {
	conn *net.UnixConn
	dec  *json.Decoder
	stop func() bool
}

// withMonitor connects with the monitor of a sandbox and calls f. The connection
// ends with the context.
func (d stateDir) withMonitor(ctx context.Context, f func(*monitor) error) error {
	ctx, cancel := context.WithTimeout(ctx, monitorTime)
	defer cancel()
	conn, err := dialIn(ctx, d.dir, fileQMP)
	if err != nil {
		return err
	}
	defer conn.Close()
	m := &monitor{conn: conn, dec: json.NewDecoder(io.LimitReader(conn, maxMonitor))}
	m.stop = context.AfterFunc(ctx, func() { conn.Close() })
	defer m.stop()
	var greeting struct{ QMP json.RawMessage }
	err = m.dec.Decode(&greeting)
	if err == nil {
		err = m.call("qmp_capabilities", nil, nil)
	}
	if err == nil {
		err = f(m)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

const (
	// monitorTime limits one conversation with QEMU, which may write the memory.
	monitorTime = 10 * time.Minute
	maxMonitor  = 64 << 20 // bytes that QEMU may send in one conversation
)

// call makes a call and decodes its result, unless that is nil. Files are passed
// on with it.
func (m *monitor) call(name string, args, result any, fds ...int) error {
	text, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{name, args})
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := m.conn.WriteMsgUnix(append(text, '\n'), oob, nil); err != nil {
		return err
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Class, Desc string }
			Event  string
		}
		if err := m.dec.Decode(&answer); err != nil {
			return err
		}
		switch {
		case answer.Event != "":
		case answer.Error != nil:
			return fmt.Errorf("QEMU refuses %s: %s", name, answer.Error.Desc)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(answer.Return, result)
		}
	}
}

// statePaused is the state of a machine whose processors are stopped.
const statePaused = "paused"

// machineState asks QEMU for the state of its machine.
func (d stateDir) machineState(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var s struct{ Status string }
	err := d.withMonitor(ctx, func(m *monitor) error { return m.call("query-status", nil, &s) })
	if s.Status == "postmigrate" {
		s.Status = statePaused
	}
	return s.Status, err
}

// console returns the end of what the kernel and the guest wrote.
func (d stateDir) console(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience/5)
	defer cancel()
	var text string
	err := d.withMonitor(ctx, func(m *monitor) error {
		return m.call("ringbuf-read", map[string]any{"device": "console", "size": 65536}, &text)
	})
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(strings.ReplaceAll(text, "\r", "")), "?")
}

// lastLines returns the end of a console's text, for an error.
func lastLines(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-4):], " / ")
}

// freeze stops the machine's processors.
func (d stateDir) freeze(ctx context.Context) error {
	return d.withMonitor(ctx, func(m *monitor) error { return m.call("stop", nil, nil) })
}

// thaw continues the machine.
func (d stateDir) thaw(ctx context.Context) error {
	return d.withMonitor(ctx, func(m *monitor) error { return m.call("cont", nil, nil) })
}

// lockedBuffer keeps the last bytes that are written.
type lockedBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	b.text = b.text[max(0, len(b.text)-4096):]
	return len(p), nil
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(b.text), "?"))
}

func unsupported(op, subject, message string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "microvm." + op, Subject: subject, Message: message}
}
