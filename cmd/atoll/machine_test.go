package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// A machine in a network of its own, which only makes outbound connections, is
// enrolled and used by two sessions at once, while its cable is pulled and the NATS
// server is killed. Nothing runs twice, no byte is lost or repeated. Then its
// program and the daemon are killed, and its sandboxes are still there. In the end
// it is revoked, and leaves nothing.
func TestMachineInItsOwnNetwork(t *testing.T) {
	need.Full(t, "TestRB110CutInTheMiddle cuts the connection of a machine on this network")
	n := newNetwork(t)
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: net.JoinHostPort(n.here, "0")}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, n.here)
	broker.start(t)
	s := soakerOf(t, built.atoll, filepath.Join(t.TempDir(), "state"), "--machines-file", filepath.Join(broker.dir, "machines.json"))
	m := n.join(t, s, broker)

	ctx, fail := context.WithCancel(t.Context())
	defer fail()
	var busy sync.WaitGroup
	sessions := map[string]*atoll.Session{}
	at := &middle{over: ctx.Done(), fail: fail, reached: make(chan string), release: make(chan struct{}), went: make(chan string)}
	for _, name := range []string{"one", "two"} {
		spec := small
		spec.Provider = m.provider(t, s)
		x, err := s.client.Sessions().Create(t.Context(), spec, atoll.SessionOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		sessions[name] = x
		busy.Go(func() { throughACommand(t, x, at) })
		busy.Go(func() { upload(t, x, at) })
	}
	for i := range cuts {
		if !at.gather(t, 2*len(sessions)) {
			break
		}
		if i%2 == 0 {
			n.cable(t, "down")
			at.goOn(t, 2*len(sessions))
			m.await(t, s, "reconnecting")
			n.cable(t, "up")
		} else {
			broker.kill()
			at.goOn(t, 2*len(sessions))
			broker.start(t)
		}
	}
	busy.Wait()
	if t.Failed() {
		return
	}
	want := func(when string) {
		t.Helper()
		for name, x := range sessions {
			var got string
			err := persist(t.Context(), func() error {
				res, err := x.Run(t.Context(), sandbox.Command{Shell: "wc -l </root/count"})
				got = strings.TrimSpace(string(res.Stdout))
				return err
			})
			if err != nil || got != "1" {
				t.Errorf("%s, session %s: the command ran %q times, %v; want once", when, name, got, err)
			}
		}
	}
	want("after the cuts")
	m.kill()
	m.serve(t)
	want("after the machine's program was killed")
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	_ = m.cmd.Wait()
	wantFiles(t, sessions["one"], sandbox.AgentOffline)
	m.serve(t)
	wantFiles(t, sessions["one"], "")
	s.kill()
	s.start(t)
	want("after the daemon was killed")
	m.wantNothingListens(t)

	if err := s.client.Admin().RevokeMachine(t.Context(), "lab"); err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Wait(); err == nil || !strings.Contains(m.said.String(), "revoked") {
		t.Errorf("the revoked machine's program ends with %v: %s", err, &m.said)
	}
	leave := n.command(m.env, built.atoll, "machine", "leave")
	if out, err := leave.CombinedOutput(); err != nil {
		t.Errorf("leave: %v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(m.state, "machine", "enrolment.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the enrolment is still there: %v", err)
	}
	if left := n.processes(t); len(left) > 0 {
		t.Errorf("left on the machine: %q", left)
	}
}

// wantFiles waits until the document of capabilities gives a reason why there are
// no files, "" if there are (RB-28).
func wantFiles(t *testing.T, x *atoll.Session, why sandbox.UnavailableReason) {
	t.Helper()
	err := eventually(func() error {
		doc, err := x.Capabilities(t.Context())
		if c := doc.FileSystem; err == nil && (c.Reason != why || c.Available != (why == "") || doc.Terminal.Reason != why) {
			err = fmt.Errorf("files: %+v, terminal: %+v; want the reason %q", c, doc.Terminal, why)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A transfer has transfer bytes. After each of its first parts, it waits for a cut.
const (
	transfer = 6 << 20
	cuts     = 4
	part     = 512 << 10 // all of them fit into what may be under way
)

// middle is where all transfers wait until the connection is cut, to go on while
// it is. It is over when one of them has failed.
type middle struct {
	over    <-chan struct{}
	fail    func()
	reached chan string // who waits for a cut
	release chan struct{}
	went    chan string // who has handed on more during the cut
}

// gather waits until all of n transfers wait for a cut.
func (m *middle) gather(t *testing.T, n int) bool {
	for range n {
		select {
		case who := <-m.reached:
			t.Logf("%s waits for a cut", who)
		case <-m.over:
			return false
		}
	}
	return true
}

// goOn lets all of n transfers go on, and waits until they have.
func (m *middle) goOn(t *testing.T, n int) {
	for _, step := range []func() bool{
		func() bool {
			select {
			case m.release <- struct{}{}:
			case <-m.over:
				return false
			}
			return true
		},
		func() bool {
			select {
			case who := <-m.went:
				t.Logf("%s went on", who)
			case <-m.over:
				return false
			}
			return true
		},
	} {
		for range n {
			if !step() {
				return
			}
		}
	}
}

// held reads what is transferred. At the end of a part it waits for a cut, and
// the next Read says that what came after it was handed on.
type held struct {
	*bytes.Reader
	who  string
	at   *middle
	back <-chan struct{} // has something when a part has come back; nil: it does not come back
	done int             // parts
	cut  bool
}

func (h *held) Read(p []byte) (int, error) {
	if h.cut {
		h.cut = false
		select {
		case h.at.went <- h.who:
		case <-h.at.over:
		}
	}
	most := 64 << 10
	if h.done < cuts {
		left := (h.done+1)*part - (transfer - h.Len())
		if left == 0 {
			if err := h.wait(); err != nil {
				return 0, err
			}
			h.done, h.cut, left = h.done+1, true, part
		}
		most = min(most, left)
	}
	return h.Reader.Read(p[:min(len(p), most)])
}

// wait waits until the connection is cut.
func (h *held) wait() error {
	if h.back != nil {
		select {
		case <-h.back:
		case <-h.at.over:
			return errors.New("another transfer has failed")
		}
	}
	select {
	case h.at.reached <- h.who:
	case <-h.at.over:
		return errors.New("another transfer has failed")
	}
	select {
	case <-h.at.release:
		return nil
	case <-h.at.over:
		return errors.New("another transfer has failed")
	}
}

// throughACommand sends bytes through a command of a session and compares what
// comes back.
func throughACommand(t *testing.T, x *atoll.Session, at *middle) {
	p, err := x.Exec(t.Context(), sandbox.Command{Shell: "echo ran >>/root/count; cat; exit 7", Stdin: true, Hold: time.Minute})
	if err != nil {
		t.Error(err)
		at.fail()
		return
	}
	defer p.Close()
	data, back := seeded(transfer), make(chan struct{}, cuts)
	var writing sync.WaitGroup
	writing.Go(func() {
		in := &held{Reader: bytes.NewReader(data), who: "the command of " + x.Name(), at: at, back: back}
		if _, err := io.Copy(p.Stdin(), struct{ io.Reader }{in}); err != nil {
			t.Errorf("session %s: writing: %v", x.Name(), err)
			at.fail()
		}
		_ = p.Stdin().Close()
	})
	got := sha256.New()
	for range cuts {
		if _, err = io.CopyN(got, p.Stdout(), part); err != nil {
			break
		}
		back <- struct{}{}
	}
	if err == nil {
		_, err = io.Copy(got, p.Stdout())
	}
	if err != nil {
		at.fail()
	}
	writing.Wait()
	if want := sha256.Sum256(data); err != nil || !bytes.Equal(got.Sum(nil), want[:]) {
		t.Errorf("session %s: what came is not what was sent, %v", x.Name(), err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 7 {
		t.Errorf("session %s: the command ended with %+v, %v; want the exit code 7", x.Name(), exit, err)
	}
}

// upload writes a file of a session, and reads it again.
func upload(t *testing.T, x *atoll.Session, at *middle) {
	data := seeded(transfer)
	in := &held{Reader: bytes.NewReader(data), who: "the upload of " + x.Name(), at: at}
	if _, err := x.Files().Write(t.Context(), "/root/big", struct{ io.Reader }{in}, atoll.WriteOptions{}); err != nil {
		t.Errorf("session %s: upload: %v", x.Name(), err)
		at.fail()
		return
	}
	res, err := x.Run(t.Context(), sandbox.Command{Shell: "sha256sum </root/big"})
	if want := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || !strings.HasPrefix(string(res.Stdout), want) {
		t.Errorf("session %s: the uploaded file: %q, %v; want %s", x.Name(), res.Stdout, err, want)
	}
}

// network is a network namespace with a cable to this machine's.
type network struct {
	ns          *os.File
	here, there string // addresses at the ends of the cable
	link        string // the end of the cable in the namespace
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	need.Root(t, "others may not make network namespaces with cables")
	need.Program(t, "ip")
	id := mathrand.IntN(1 << 13)
	at := func(host int) string { return fmt.Sprintf("198.18.%d.%d", id>>6, id&63<<2|host) } // RFC 2544
	n := &network{here: at(1), there: at(2), link: "v0"}
	n.inside(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		n.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	t.Cleanup(func() { n.ns.Close() })
	outer := fmt.Sprintf("atoll%d", id)
	hold := exec.Command("sleep", "60") // names the namespace
	n.inside(t, hold.Start)
	defer func() { _ = hold.Process.Kill(); _ = hold.Wait() }()
	ip(t, nil, "link add "+outer+" type veth peer name "+n.link+" netns "+strconv.Itoa(hold.Process.Pid))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", outer).Run() })
	ip(t, nil, "addr add "+n.here+"/30 dev "+outer)
	ip(t, nil, "link set "+outer+" up")
	ip(t, n, "addr add "+n.there+"/30 dev "+n.link)
	ip(t, n, "link set lo up")
	n.cable(t, "up")
	return n
}

// cable pulls the machine's cable, or puts it back.
func (n *network) cable(t *testing.T, state string) {
	t.Helper()
	ip(t, n, "link set "+n.link+" "+state)
}

func ip(t *testing.T, n *network, args string) {
	t.Helper()
	cmd := exec.Command("ip", strings.Fields(args)...)
	run := func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return err
	}
	if n != nil {
		n.inside(t, run)
	} else if err := run(); err != nil {
		t.Fatal(err)
	}
}

// inside runs f on a thread in the namespace, which comes back afterwards.
func (n *network) inside(t *testing.T, f func() error) {
	t.Helper()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if n.ns != nil {
		err = unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET)
	}
	if err == nil {
		err = f()
	}
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		t.Fatal(back) // with the thread locked, so that it ends
	}
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
}

// command returns a command that runs in the namespace.
func (n *network) command(env []string, program string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), n.ns.Fd()), program}, args...)...)
	cmd.Env = env
	return cmd
}

// processes lists what runs in the namespace.
func (n *network) processes(t *testing.T) (list []string) {
	t.Helper()
	want, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", n.ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range all {
		if is, err := os.Readlink(path); err == nil && is == want {
			line, _ := os.ReadFile(filepath.Join(path, "../../cmdline"))
			list = append(list, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return list
}

// certify makes a certificate for an address.
func certify(t *testing.T, dir, address string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "atoll test"}, IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	made, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: made}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// natsServer is the program atoll-nats.
type natsServer struct {
	program, dir, address string
	cmd                   *exec.Cmd
}

func (b *natsServer) file(name string) string { return filepath.Join(b.dir, name) }

func (b *natsServer) start(t *testing.T) {
	t.Helper()
	b.cmd = exec.Command(b.program, "--listen", b.address, "--tls-cert", b.file("cert.pem"), "--tls-key", b.file("key.pem"), "--out", b.file("machines.json"))
	b.cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+b.file("cert.pem"))
	said, err := b.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := b.address
	line, err := bufio.NewReader(said).ReadString('\n')
	_, rest, ok := strings.Cut(line, "listening on ")
	if err != nil || !ok {
		t.Fatalf("atoll-nats says %q, %v", line, err)
	}
	b.address, _, _ = strings.Cut(rest, ";")
	if strings.HasSuffix(first, ":0") {
		t.Cleanup(b.kill)
		t.Setenv("SSL_CERT_FILE", b.file("cert.pem")) // of the daemon, too
	}
}

func (b *natsServer) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

// joined is a machine whose program runs in a network of its own.
type joined struct {
	network *network
	state   string
	env     []string
	cmd     *exec.Cmd
	said    safeBuffer
}

// join enrols the machine lab and serves it.
func (n *network) join(t *testing.T, s *soaker, broker *natsServer) *joined {
	t.Helper()
	invited, err := s.client.Admin().InviteMachine(t.Context(), sandbox.NewMachineToken{Name: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(invited.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &joined{network: n, state: filepath.Join(t.TempDir(), "state")}
	m.env = append(os.Environ(), "ATOLL_STATE_DIR="+m.state, "ATOLL_KERNEL="+built.atoll)
	enrol := n.command(m.env, built.atoll, "machine", "join", "--enrol-only", "--yes", "--name", "lab", "--token-file", token,
		"--ca", broker.file("cert.pem"), "tls://"+broker.address)
	if out, err := enrol.CombinedOutput(); err != nil {
		t.Fatalf("join: %v: %s", err, out)
	}
	m.serve(t)
	t.Cleanup(func() {
		m.kill()
		_ = n.command(m.env, built.atoll, "machine", "leave").Run() // if the test failed before it
	})
	return m
}

// serve starts the program and waits until the daemon hears it.
func (m *joined) serve(t *testing.T) {
	t.Helper()
	m.cmd = m.network.command(m.env, built.atoll, "machine", "join")
	m.cmd.Stderr = &m.said
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (m *joined) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// provider returns the machine's provider once the machine is online.
func (m *joined) provider(t *testing.T, s *soaker) string {
	t.Helper()
	return m.await(t, s, "online")
}

// await waits until the daemon says how the machine lives, and returns its
// provider.
func (m *joined) await(t *testing.T, s *soaker, liveness string) string {
	t.Helper()
	var name string
	err := eventually(func() error {
		all, err := s.client.Admin().Machines(t.Context())
		if err == nil && (len(all) != 1 || all[0].Liveness != liveness) {
			err = fmt.Errorf("%+v is not one machine that is %s", all, liveness)
		}
		if err == nil {
			name = all[0].Provider
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v; it said %s", err, &m.said)
	}
	return name
}

// wantNothingListens fails if somebody else could connect to the machine.
func (m *joined) wantNothingListens(t *testing.T) {
	t.Helper()
	const listens, loopback4, loopback6 = "0A", "0100007F", "00000000000000000000000001000000"
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", m.cmd.Process.Pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if host, _, _ := strings.Cut(f[1], ":"); f[3] == listens && !slices.Contains([]string{loopback4, loopback6}, host) {
				t.Errorf("the machine listens for others: %s", line)
			}
		}
	}
}

// safeBuffer is a buffer for the output of a running program.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A machine whose owner turned updates on continues in the program of its daemon,
// with the same process.
func TestMachineUpdates(t *testing.T) {
	fullOnly(t)
	old, next := filepath.Join(built.dir, "atoll-0.4.0"), filepath.Join(built.dir, "atoll-0.5.0")
	goBuild(t, old, ".", "-X main.release=0.4.0")
	goBuild(t, next, ".", "-X main.release=0.5.0")
	broker := &natsServer{program: filepath.Join(t.TempDir(), "atoll-nats"), dir: t.TempDir(), address: "127.0.0.1:0"}
	build(broker.program, "../atoll-nats")
	certify(t, broker.dir, "127.0.0.1")
	broker.start(t)
	s := soakerOf(t, next, filepath.Join(t.TempDir(), "state"), "--machines-file", broker.file("machines.json"))
	invited, err := s.client.Admin().InviteMachine(t.Context(), sandbox.NewMachineToken{Name: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(invited.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(old, append([]string{"--state-dir", state, "machine"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("join", "--enrol-only", "--yes", "--token-file", token, "--ca", broker.file("cert.pem"), "tls://"+broker.address)
	if out := run("status"); !strings.Contains(out, "off") {
		t.Errorf("updates are on after joining: %s", out)
	}
	serve := exec.Command(old, "--state-dir", state, "machine", "join")
	var said safeBuffer
	serve.Stderr = &said
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
	}()
	runs := func(version string) {
		t.Helper()
		var out string
		err := eventually(func() error {
			if out = run("status", "--json"); strings.Contains(out, `"version": "`+version+`"`) && strings.Contains(out, `"connected": true`) {
				return nil
			}
			return errors.New(out)
		})
		if err != nil {
			t.Fatalf("version %s does not serve: %v; it says %s", version, err, &said)
		}
	}
	runs("0.4.0")
	if out := run("updates", "on", "--yes"); !strings.Contains(out, "run any program as you") {
		t.Errorf("turning updates on does not say what the owner agrees to: %s", out)
	}
	runs("0.5.0")
	err = eventually(func() error { // after its trial
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", serve.Process.Pid))
		if err == nil && !strings.HasPrefix(exe, filepath.Join(state, "machine", "program")) {
			err = fmt.Errorf("the process runs %s", exe)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	runs("0.5.0")
}

// On a whole machine, git works and a port is a stream. Its screen is used only
// while its owner shares it, and what runs there ends when that changes. RB-102,
// RB-105, RB-113, RB-116.
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
	program := func(args ...string) *exec.Cmd {
		cmd := exec.Command(built.atoll, append([]string{"--state-dir", state, "machine"}, args...)...)
		cmd.Env = append(os.Environ(), "DISPLAY=:77.0", "XAUTHORITY=/nowhere")
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
	for who, c := range map[string]*atoll.Client{"the owner": s.client, "a reader": read} {
		for _, port := range []uint16{0, 5900} { // a VNC server of the machine's owner may listen there
			if _, err := atoll.Handle(c, box.ID()).OpenStream(t.Context(), sandbox.NewStream{Kind: "desktop", Port: port}); sandbox.CodeOf(err) != sandbox.CodeConflict {
				t.Errorf("%s, a stream of it: %v, want %s", who, err, sandbox.CodeConflict)
			}
		}
	}
	long, err := box.Exec(t.Context(), sandbox.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	run("screen", "off")
	wantScreen(false)
	if exit, err := long.Wait(t.Context()); err == nil && exit.Code == 0 {
		t.Errorf("a command that began with the screen ended with %+v", exit)
	}
	if out := run("status", "--json"); !strings.Contains(out, `"screen": false`) {
		t.Errorf("the status is %s", out)
	}
}
