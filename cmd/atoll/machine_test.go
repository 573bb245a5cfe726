package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox/operator"
)

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
	invited, err := s.client.Admin().InviteMachine(t.Context(), operator.NewMachineToken{Name: "lab"})
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
