package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// A machine asks for the consents of its owner, and whoever approves it takes them.
// They are withdrawn without a daemon. RB-102.
func TestMachineConsents(t *testing.T) {
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: "127.0.0.1:0"}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, "127.0.0.1")
	broker.start(t)
	s := soakerOf(t, built.atoll, filepath.Join(t.TempDir(), "state"), "--machines-file", broker.file("machines.json"))
	for _, take := range []bool{false, true} {
		state, offered := filepath.Join(t.TempDir(), "state"), t.TempDir()
		run := func(state string, want int, args ...string) string {
			t.Helper()
			cmd := exec.Command(built.atoll, append([]string{"--state-dir", state, "machine"}, args...)...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != want {
				t.Fatalf("%q ends with %d, want %d: %s", args, got, want, out)
			}
			return string(out)
		}
		name := map[bool]string{false: "without", true: "with"}[take]
		join := exec.Command(built.atoll, "--state-dir", state, "machine", "join", "--enrol-only", "--yes", "--whole-machine", offered, "--screen",
			"--name", name, "--ca", broker.file("cert.pem"), "tls://"+broker.address)
		var said safeBuffer
		join.Stderr = &said
		if err := join.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = join.Process.Kill() })
		var code string
		err := eventually(func() error {
			_, after, ok := strings.Cut(said.String(), "atoll machine approve --whole-machine --screen ")
			if code = strings.TrimSpace(after); !ok || code == "" {
				return errors.New(said.String())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if out := said.String(); !strings.Contains(out, "ANY COMMAND AS YOU") || !strings.Contains(out, "SEE AND USE THE SCREEN") {
			t.Errorf("joining does not say all that the owner agrees to: %s", out)
		}
		if out := run(s.state, 1, "approve", "--screen", code); !strings.Contains(out, "whole-machine, screen") || !strings.Contains(out, "--whole-machine CODE") {
			t.Errorf("approving the screen alone: %s", out)
		}
		args := []string{"approve", "--whole-machine", code}
		if take {
			args = append(args, "--screen")
		}
		if out := run(s.state, 0, args...); strings.Contains(out, "is not shared") == take {
			t.Errorf("approving says %s", out)
		}
		if err := join.Wait(); err != nil {
			t.Fatalf("%v: %s", err, &said)
		}
		if strings.Contains(said.String(), "did not take it") == take {
			t.Errorf("joining says %s", &said)
		}
		want := "whole-machine"
		if take {
			want = "whole-machine, screen"
		}
		if m, err := s.client.Admin().Machine(t.Context(), name); err != nil || m.Consents.String() != want {
			t.Errorf("the daemon knows the consents %v, %v; want %s", m.Consents, err, want)
		}
		if out := run(s.state, 0, "ls"); !strings.Contains(out, want) {
			t.Errorf("the list is %s", out)
		}
		if out := run(state, 0, "status", "--json"); strings.Contains(out, `"screen": true`) != take || !strings.Contains(out, `"to": "whole-machine"`) {
			t.Errorf("the status is %s", out)
		}
		if out := run(state, 0, "screen", "off"); strings.Contains(out, "screen") {
			t.Errorf("after the screen was withdrawn: %s", out)
		}
		if out := run(state, 0, "status", "--json"); strings.Contains(out, `"to": "screen"`) {
			t.Errorf("the status is %s", out)
		}
	}
}

// watch connects to a stream.
func (s *soaker) watch(t *testing.T, a viewing.StreamAccess) *websocket.Conn {
	t.Helper()
	local := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.state, atoll.SocketName))
	}}}
	ws, res, err := websocket.Dial(t.Context(), "ws://localhost"+a.URL, &websocket.DialOptions{HTTPClient: local})
	if err != nil {
		t.Fatal(err)
	}
	if res.Body != nil {
		res.Body.Close()
	}
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(`{"token":"`+a.Token+`"}`)); err != nil {
		t.Fatal(err)
	}
	return ws
}

// whole is a whole machine and its daemon.
type whole struct {
	*joined
	daemon  *soaker
	offered string // its directory
	sandbox *atoll.Sandbox
	program func(args ...string) *exec.Cmd // atoll machine ARGS, there
}

// wholeMachine enrols a machine as a whole, and serves it with variables more.
func wholeMachine(t *testing.T, env ...string) *whole {
	t.Helper()
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: "127.0.0.1:0"}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, "127.0.0.1")
	broker.start(t)
	w := &whole{offered: t.TempDir()}
	w.daemon = soakerOf(t, built.atoll, filepath.Join(t.TempDir(), "state"), "--machines-file", broker.file("machines.json"))
	invited, err := w.daemon.client.Admin().InviteMachine(t.Context(), operator.NewMachineToken{Name: "desk", WholeMachine: true})
	if err != nil {
		t.Fatal(err)
	}
	token, state := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(token, []byte(invited.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	w.program = func(args ...string) *exec.Cmd {
		cmd := exec.Command(built.atoll, append([]string{"--state-dir", state, "machine"}, args...)...)
		cmd.Env = append(os.Environ(), env...)
		return cmd
	}
	w.run(t, "join", "--enrol-only", "--yes", "--whole-machine", w.offered, "--token-file", token, "--ca", broker.file("cert.pem"), "tls://"+broker.address)
	w.joined = &joined{cmd: w.program("join")}
	w.cmd.Stderr = &w.said
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	if w.sandbox, err = w.daemon.client.Create(t.Context(), sandbox.Spec{Name: "desk", Provider: w.provider(t, w.daemon)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.sandbox.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return w
}

// run runs atoll machine ARGS there, which must succeed.
func (w *whole) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.program(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

// On a whole machine, git works, and sessions move away with their files. RB-113.
func TestWholeMachine(t *testing.T) {
	need.Program(t, "git")
	w := wholeMachine(t)
	s, sb, offered := w.daemon, w.sandbox, w.offered
	init := "git init -q -b main . && echo one >file && git add file"
	if r, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"/bin/sh", "-c", init}}); err != nil || r.Exit.Code != 0 {
		t.Fatalf("git init: %+v, %v", r, err)
	}
	if st, err := sb.Git(offered).Status(t.Context()); err != nil || len(st.Files) != 1 || st.Files[0].Path != "file" {
		t.Errorf("git status is %+v, %v", st, err)
	}
	// A session there has its files where other sandboxes have them, and finds them
	// when it moves on.
	x, err := s.client.Sessions().Create(t.Context(), sandbox.Spec{Provider: w.provider(t, s)}, atoll.SessionOptions{Name: "moves"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Files().Write(t.Context(), "/workspace/dir/carried", strings.NewReader("carried"), atoll.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(offered, "dir", "carried")); err != nil || string(got) != "carried" {
		t.Errorf("on the machine, the file is %q, %v", got, err)
	}
	if moved, err := x.Swap(t.Context(), "gvisor"); err != nil || !moved.Swapped {
		t.Fatalf("it does not move: %+v, %v", moved, err)
	}
	for path, want := range map[string]string{"/workspace/dir/carried": "carried", "/workspace/file": "one\n"} {
		var got []byte
		r, err := x.Files().Read(t.Context(), path, atoll.ReadOptions{})
		if err == nil {
			got, err = io.ReadAll(r)
			_ = r.Close()
		}
		if err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
	// It does not move back: files of the machine's owner would be overwritten.
	if err := os.WriteFile(filepath.Join(offered, "file"), []byte("the owner's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if moved, err := x.Swap(t.Context(), w.provider(t, s)); err != nil || moved.Swapped || !strings.Contains(moved.Reason, "belongs to the machine's owner") {
		t.Errorf("a move to the machine: %+v, %v; want a refusal", moved, err)
	}
	if got, err := os.ReadFile(filepath.Join(offered, "file")); err != nil || string(got) != "the owner's\n" {
		t.Errorf("after that, the owner's file is %q, %v", got, err)
	}
	if err := x.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, page := s.fetch(t, "/metrics"); !strings.Contains(page, `atoll_machines{liveness="online"} 1`) || strings.Contains(page, "atoll_machine_streams 0") {
		t.Errorf("the metrics of machines are %s", page)
	}
}

// xvfb starts an X server, and returns the name of its display.
func xvfb(t *testing.T) string {
	t.Helper()
	r, ready, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(need.Program(t, "Xvfb"), "-displayfd", "3", "-screen", "0", "800x600x24", "-noreset", "-nolisten", "tcp")
	var said safeBuffer
	cmd.ExtraFiles, cmd.Stderr = []*os.File{ready}, &said
	err = cmd.Start()
	ready.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it removes its files
		_ = cmd.Wait()
	})
	n, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("Xvfb: %v: %s", err, &said)
	}
	return ":" + strings.TrimSpace(n) + ".0"
}

// rfb is the connection of a viewer to a VNC server.
type rfb struct{ net.Conn }

// greet begins the protocol (RFC 6143), and returns the size of the screen.
func (r rfb) greet(t *testing.T) (width, height int) {
	t.Helper()
	_ = r.SetDeadline(time.Now().Add(time.Minute)) // a server that says nothing
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatalf("a viewer: %v", err)
		}
		return b
	}
	write := func(text string) {
		if _, err := io.WriteString(r, text); err != nil {
			t.Fatalf("a viewer: %v", err)
		}
	}
	if said := string(read(12)); said != "RFB 003.008\n" {
		t.Fatalf("a viewer sees %q", said)
	}
	write("RFB 003.008\n")
	if kinds := read(int(read(1)[0])); !bytes.Contains(kinds, []byte{1}) {
		t.Fatalf("a viewer is asked for %v", kinds)
	}
	write("\x01") // no password
	if result := read(4); !bytes.Equal(result, make([]byte, 4)) {
		t.Fatalf("a viewer is refused: %v", result)
	}
	write("\x01") // shared
	is := read(24)
	read(int(binary.BigEndian.Uint32(is[20:]))) // its name
	return int(binary.BigEndian.Uint16(is)), int(binary.BigEndian.Uint16(is[2:]))
}

// point moves the pointer.
func (r rfb) point(x, y uint16) error {
	_, err := r.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{5, 0}, x), y))
	return err
}

// The screen of a whole machine is used, and watched, only while its owner shares
// it, and what runs there ends when that changes. A viewer leaves nothing on the
// machine. RB-102, RB-105, RB-116.
func TestWholeMachineScreen(t *testing.T) {
	x11vnc, xdotool := need.Program(t, "x11vnc"), need.Program(t, "xdotool")
	need.Program(t, "scrot")
	screen := xvfb(t)
	// It notes the arguments and the process of every x11vnc.
	programs := t.TempDir()
	notes := "#!/bin/sh\necho \"$$ $*\" >>'" + programs + "/shown'\nexec " + x11vnc + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(programs, "x11vnc"), []byte(notes), 0o755); err != nil {
		t.Fatal(err)
	}
	w := wholeMachine(t, "DISPLAY="+screen, "XAUTHORITY=/nowhere", "PATH="+programs+":"+os.Getenv("PATH"))
	s, sb := w.daemon, w.sandbox
	run := func(args ...string) string {
		t.Helper()
		return w.run(t, args...)
	}
	pointer := func() string {
		cmd := exec.Command(xdotool, "getmouselocation")
		cmd.Env = append(os.Environ(), "DISPLAY="+screen)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("xdotool: %v: %s", err, out)
		}
		where, _, _ := strings.Cut(string(out), " screen:")
		return where
	}
	// display is what commands see of the machine's screen.
	display := func() (string, error) {
		r, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"/bin/sh", "-c", `echo "$DISPLAY,$XAUTHORITY"`}})
		return strings.TrimSpace(string(r.Stdout)), err
	}
	look := viewing.ComputerRequest{Actions: []viewing.ComputerAction{{Action: "screenshot"}}}
	// wantScreen waits until the screen is shared, or not: the daemon hears of it
	// when the machine is back.
	wantScreen := func(shared bool) {
		t.Helper()
		err := eventually(func() error {
			_, err := sb.UseComputer(t.Context(), look)
			denied := sandbox.CodeOf(err) == sandbox.CodeDenied && strings.Contains(err.Error(), string(catalog.ConsentRequired))
			if denied == shared || shared != (err == nil) {
				return fmt.Errorf("a screenshot says %w", err)
			}
			want := ","
			if shared {
				want = screen + ",/nowhere"
			}
			if got, err := display(); got != want || err != nil {
				return fmt.Errorf("commands see the screen %q, %w, want %q", got, err, want)
			}
			return nil
		})
		if err != nil {
			t.Errorf("shared %v: %v; the machine says %s", shared, err, &w.said)
		}
	}
	wantScreen(false)
	ask := w.program("screen", "on")
	ask.Stdin = strings.NewReader("no\n")
	if out, err := ask.CombinedOutput(); err == nil || !strings.Contains(string(out), "SEE AND USE THE SCREEN") {
		t.Errorf("without an agreement: %v, %s", err, out)
	}
	wantScreen(false)
	if out := run("screen", "on", "--yes"); !strings.Contains(out, "SCREEN") {
		t.Errorf("it says %s", out)
	}
	wantScreen(true)
	acts := viewing.ComputerRequest{Actions: []viewing.ComputerAction{{Action: "move", X: new(123), Y: new(45)}, {Action: "screenshot"}}}
	if got, err := sb.UseComputer(t.Context(), acts); err != nil || got.Screenshot.Width != 800 || got.Screenshot.Height != 600 {
		t.Errorf("using it: %+v, %v", got, err)
	}
	if got := pointer(); got != "x:123 y:45" {
		t.Errorf("the pointer is at %s", got)
	}
	if _, err := sb.StartDesktop(t.Context(), viewing.Screen{Width: 800, Height: 600}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("starting a desktop on it: %v, want %s", err, sandbox.CodeConflict)
	}
	reader, err := s.client.Admin().CreateKey(t.Context(), operator.NewKey{Name: "reader", Verbs: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	read, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(s.state, atoll.SocketName), Key: reader.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := sb.Record(t.Context(), viewing.NewRecording{Kind: viewing.RecordDesktop}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("recording it: %v, want %s", err, sandbox.CodeConflict)
	}
	if _, err := sb.OpenStream(t.Context(), viewing.NewStream{Kind: "desktop", Port: 5901, Mode: "control"}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a desktop at another port of it: %v, want %s", err, sandbox.CodeConflict)
	}
	var open []rfb
	var access []viewing.StreamAccess
	for _, viewer := range []struct {
		who, mode string
		client    *atoll.Client
	}{{"the owner", "control", s.client}, {"a reader", "view", read}} {
		a, err := atoll.Handle(viewer.client, sb.ID()).OpenStream(t.Context(), viewing.NewStream{Kind: "desktop", Mode: viewer.mode, TTL: 600})
		if err != nil {
			t.Fatalf("%s, a stream of it: %v", viewer.who, err)
		}
		r := rfb{websocket.NetConn(t.Context(), s.watch(t, a), websocket.MessageBinary)}
		defer r.Close()
		if width, height := r.greet(t); width != 800 || height != 600 {
			t.Errorf("%s sees %d x %d pixels", viewer.who, width, height)
		}
		open, access = append(open, r), append(access, a)
	}
	if err := open[1].point(300, 200); err != nil {
		t.Error(err)
	}
	if err := open[0].point(31, 47); err != nil {
		t.Error(err)
	}
	if err := eventually(func() error {
		if got := pointer(); got != "x:31 y:47" {
			return errors.New("the pointer is at " + got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	long, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	run("screen", "off")
	for _, r := range open {
		if said, err := io.ReadAll(r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the screen was withdrawn, a viewer sees %q", said)
		}
	}
	wantScreen(false)
	shown := func() string {
		text, err := os.ReadFile(filepath.Join(programs, "shown"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := shown()
	for _, a := range access { // an earlier token
		ws := s.watch(t, a)
		if _, said, err := ws.Read(t.Context()); err == nil {
			t.Errorf("after the screen was withdrawn, a viewer sees %q", said)
		}
	}
	for _, kind := range []string{"desktop", "port"} {
		a, err := sb.OpenStream(t.Context(), viewing.NewStream{Kind: kind, Port: 5900, Mode: "control"})
		if kind == "desktop" && (sandbox.CodeOf(err) != sandbox.CodeDenied || !strings.Contains(err.Error(), string(catalog.ConsentRequired))) {
			t.Errorf("a stream without consent: %v", err)
		}
		if err != nil {
			continue
		}
		ws := s.watch(t, a) // the machine refuses it by itself
		if _, said, err := ws.Read(t.Context()); err == nil {
			t.Errorf("%s: without consent, a viewer sees %q", kind, said)
		}
	}
	if after := shown(); after != before || !strings.Contains(before, "-display "+screen) || !strings.Contains(before, "-inetd") {
		t.Errorf("without consent, the screen was shown:\n%s, before:\n%s", after, before)
	}
	if exit, err := long.Wait(t.Context()); err == nil && exit.Code == 0 {
		t.Errorf("a command that began with the screen ended with %+v", exit)
	}
	if out := run("status", "--json"); !strings.Contains(out, `"screen": false`) {
		t.Errorf("the status is %s", out)
	}
	if err := eventually(func() error {
		segments, err := os.ReadFile("/proc/sysvipc/shm")
		for line := range strings.Lines(shown()) {
			pid, _, _ := strings.Cut(line, " ")
			for segment := range strings.Lines(string(segments)) {
				if f := strings.Fields(segment); f[4] == pid { // cpid
					return fmt.Errorf("x11vnc of process %s left shared memory: %s", pid, segment)
				}
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
