package host

import (
	"context"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// screenPort is where the screen of a sandbox is served. In a sandbox of a
// Workdir, nothing listens: every connection gets a VNC server of its own, which
// other users of the machine cannot reach.
const screenPort = 5900

// Dial implements driver.Dialer.
func (in *Instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if in.provider.workdir == "" || port != screenPort {
		return in.Client.Dial(ctx, port)
	}
	return in.showScreen()
}

// showScreen starts a VNC server for the display of this process, and returns the
// connection of its only viewer. The server ends with that, and with the sandbox.
func (in *Instance) showScreen() (net.Conn, error) {
	refuse := func(code sandbox.Code, message, hint string) (net.Conn, error) {
		return nil, &sandbox.Error{Code: code, Op: "host.screen", Subject: string(in.id), Message: message, Hint: hint}
	}
	if !in.provider.screen {
		return refuse(sandbox.CodeDenied, "the owner of the machine does not share its screen ("+string(catalog.ConsentRequired)+")", "the owner shares it there with: atoll machine screen on")
	}
	if os.Getenv("DISPLAY") == "" {
		return refuse(sandbox.CodeConflict, "the machine's program has no display", "on that machine, in its graphical session: atoll machine join")
	}
	program, err := exec.LookPath("x11vnc")
	if err != nil {
		return refuse(sandbox.CodeUnsupported, "the machine has no x11vnc, which shows its screen", "on that machine, install x11vnc, and start again: atoll machine join")
	}
	conn, theirs, err := guest.Socketpair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: program, Args: []string{program, "-inetd", "-q", "-norc", "-nopw", "-shared", "-wait", "50", "-display", os.Getenv("DISPLAY")},
		Env: append(os.Environ(), markerEnv+"="+string(in.id)), Stdin: theirs, Stdout: theirs, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.why.Reason != "" {
		conn.Close()
		return nil, goneError(in.id)
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	s := &screen{Conn: conn, end: func() {
		conn.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM) // it removes its shared memory, which outlives SIGKILL
		time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	}}
	if in.screens == nil {
		in.screens = map[*screen]struct{}{}
	}
	in.screens[s] = struct{}{}
	go func() {
		_ = cmd.Wait() // its viewer has left, it was killed, or it says why to nobody
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(in.screens, s)
	}()
	return s, nil
}

// screen is the connection of a viewer of the screen.
type screen struct {
	net.Conn
	end func() // ends the server and the connection; may be called again
}

// Close implements net.Conn.
func (s *screen) Close() error {
	s.end()
	return nil
}
