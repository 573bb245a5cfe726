package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
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
func (s *soaker) watch(t *testing.T, a sandbox.StreamAccess) *websocket.Conn {
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

// On a whole machine, git works and a port is a stream. Its screen is used, and
// watched, only while its owner shares it, and what runs there ends when that
// changes. RB-102, RB-105, RB-113, RB-116.
func TestWholeMachine(t *testing.T) {
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: "127.0.0.1:0"}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, "127.0.0.1")
	broker.start(t)
	s := soakerOf(t, built.atoll, filepath.Join(t.TempDir(), "state"), "--machines-file", broker.file("machines.json"))
	invited, err := s.client.Admin().InviteMachine(t.Context(), sandbox.NewMachineToken{Name: "desk", WholeMachine: true})
	if err != nil {
		t.Fatal(err)
	}
	token, state := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(token, []byte(invited.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	// A stand-in for x11vnc: it greets as a VNC server does, and notes its arguments.
	programs := t.TempDir()
	shows := "#!/bin/sh\necho \"$*\" >>'" + programs + "/shown'\nprintf 'RFB 003.008\\n' >&0\nexec cat >/dev/null\n"
	if err := os.WriteFile(filepath.Join(programs, "x11vnc"), []byte(shows), 0o755); err != nil {
		t.Fatal(err)
	}
	program := func(args ...string) *exec.Cmd {
		cmd := exec.Command(built.atoll, append([]string{"--state-dir", state, "machine"}, args...)...)
		cmd.Env = append(os.Environ(), "DISPLAY=:77.0", "XAUTHORITY=/nowhere", "PATH="+programs+":"+os.Getenv("PATH"))
		return cmd
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := program(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		return string(out)
	}
	offered := t.TempDir()
	run("join", "--enrol-only", "--yes", "--whole-machine", offered, "--token-file", token, "--ca", broker.file("cert.pem"), "tls://"+broker.address)
	m := &joined{cmd: program("join")}
	m.cmd.Stderr = &m.said
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	box, err := s.client.Create(t.Context(), sandbox.Spec{Name: "desk", Provider: m.provider(t, s)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	init := "git init -q -b main . && echo one >file && git add file"
	if r, err := box.Run(t.Context(), sandbox.Command{Args: []string{"/bin/sh", "-c", init}}); err != nil || r.Exit.Code != 0 {
		t.Fatalf("git init: %+v, %v", r, err)
	}
	if st, err := box.Git(offered).Status(t.Context()); err != nil || len(st.Files) != 1 || st.Files[0].Path != "file" {
		t.Errorf("git status is %+v, %v", st, err)
	}
	// A session there has its files where other sandboxes have them, and finds them
	// when it moves on.
	x, err := s.client.Sessions().Create(t.Context(), sandbox.Spec{Provider: m.provider(t, s)}, atoll.SessionOptions{Name: "moves"})
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
	if err := x.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, page := s.fetch(t, "/metrics"); !strings.Contains(page, `atoll_machines{liveness="online"} 1`) || strings.Contains(page, "atoll_machine_streams 0") {
		t.Errorf("the metrics of machines are %s", page)
	}
	// display is what commands see of the machine's screen.
	display := func() (string, error) {
		r, err := box.Run(t.Context(), sandbox.Command{Args: []string{"/bin/sh", "-c", `echo "$DISPLAY,$XAUTHORITY"`}})
		return strings.TrimSpace(string(r.Stdout)), err
	}
	look := sandbox.ComputerRequest{Actions: []sandbox.ComputerAction{{Action: "screenshot"}}}
	// wantScreen waits until the screen is shared, or not: the daemon hears of it
	// when the machine is back.
	wantScreen := func(shared bool) {
		t.Helper()
		err := eventually(func() error {
			_, err := box.UseComputer(t.Context(), look)
			denied := sandbox.CodeOf(err) == sandbox.CodeDenied && strings.Contains(err.Error(), string(sandbox.ConsentRequired))
			if denied == shared || sandbox.CodeOf(err) == sandbox.CodeUnavailable {
				return fmt.Errorf("a screenshot says %w", err)
			}
			want := ","
			if shared {
				want = ":77.0,/nowhere"
			}
			if got, err := display(); got != want || err != nil {
				return fmt.Errorf("commands see the screen %q, %w, want %q", got, err, want)
			}
			return nil
		})
		if err != nil {
			t.Errorf("shared %v: %v; the machine says %s", shared, err, &m.said)
		}
	}
	wantScreen(false)
	ask := program("screen", "on")
	ask.Stdin = strings.NewReader("no\n")
	if out, err := ask.CombinedOutput(); err == nil || !strings.Contains(string(out), "SEE AND USE THE SCREEN") {
		t.Errorf("without an agreement: %v, %s", err, out)
	}
	wantScreen(false)
	if out := run("screen", "on", "--yes"); !strings.Contains(out, "SCREEN") {
		t.Errorf("it says %s", out)
	}
	wantScreen(true)
	if _, err := box.StartDesktop(t.Context(), sandbox.Screen{Width: 800, Height: 600}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("starting a desktop on it: %v, want %s", err, sandbox.CodeConflict)
	}
	reader, err := s.client.Admin().CreateKey(t.Context(), sandbox.NewKey{Name: "reader", Verbs: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	read, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(s.state, atoll.SocketName), Key: reader.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := box.Record(t.Context(), sandbox.NewRecording{Kind: sandbox.RecordDesktop}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("recording it: %v, want %s", err, sandbox.CodeConflict)
	}
	if _, err := box.OpenStream(t.Context(), sandbox.NewStream{Kind: "desktop", Port: 5901, Mode: "control"}); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a desktop at another port of it: %v, want %s", err, sandbox.CodeConflict)
	}
	var open []*websocket.Conn
	var access []sandbox.StreamAccess
	for who, c := range map[string]*atoll.Client{"the owner": s.client, "a reader": read} {
		a, err := atoll.Handle(c, box.ID()).OpenStream(t.Context(), sandbox.NewStream{Kind: "desktop", TTL: 600})
		if err != nil {
			t.Fatalf("%s, a stream of it: %v", who, err)
		}
		ws := s.watch(t, a)
		defer func() { _ = ws.CloseNow() }()
		if _, said, err := ws.Read(t.Context()); err != nil || string(said) != "RFB 003.008\n" {
			t.Errorf("%s sees %q, %v", who, said, err)
		}
		open, access = append(open, ws), append(access, a)
	}
	long, err := box.Exec(t.Context(), sandbox.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	run("screen", "off")
	for _, ws := range open {
		if _, said, err := ws.Read(t.Context()); err == nil {
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
		a, err := box.OpenStream(t.Context(), sandbox.NewStream{Kind: kind, Port: 5900, Mode: "control"})
		if kind == "desktop" && (sandbox.CodeOf(err) != sandbox.CodeDenied || !strings.Contains(err.Error(), string(sandbox.ConsentRequired))) {
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
	if after := shown(); after != before || !strings.Contains(before, "-display :77.0") || !strings.Contains(before, "-inetd") {
		t.Errorf("without consent, the screen was shown:\n%s, before:\n%s", after, before)
	}
	if exit, err := long.Wait(t.Context()); err == nil && exit.Code == 0 {
		t.Errorf("a command that began with the screen ended with %+v", exit)
	}
	if out := run("status", "--json"); !strings.Contains(out, `"screen": false`) {
		t.Errorf("the status is %s", out)
	}
}
