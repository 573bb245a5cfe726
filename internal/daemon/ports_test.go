package daemon_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// echo starts a server inside and returns its port.
func echo(t *testing.T, s *atoll.Sandbox) uint16 {
	t.Helper()
	p, err := s.Exec(t.Context(), sandbox.Command{Args: []string{"echod"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	var port uint16
	if _, err := fmt.Fscan(p.Stdout(), &port); err != nil {
		t.Fatal(err)
	}
	return port
}

func TestDial(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	s := create(t, c, sandbox.Spec{Name: "one"})
	port := echo(t, s)
	conn, err := s.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		conn.Write(content)
		conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_, err = s.Dial(t.Context(), port+1)
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = s.Dial(t.Context(), 0)
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = atoll.Handle(daemontest.Bearer(t, d, "nonsense"), s.ID()).Dial(t.Context(), port)
	wantCode(t, err, sandbox.CodeUnauthorized)
	_, err = atoll.Handle(bearer(t, d, "", "read", "write"), s.ID()).Dial(t.Context(), port)
	wantCode(t, err, sandbox.CodeDenied)
	// One record of the connection, however much went over it.
	opened := 0
	for e, err := range c.Events(t.Context(), sandbox.EventQuery{Types: []string{"port.opened"}}) {
		if err != nil || e.Subject != fmt.Sprint(port) || e.Sandbox != s.ID() {
			t.Errorf("%+v, %v", e, err)
		}
		opened++
	}
	if opened != 1 {
		t.Errorf("%d connections on record, want 1", opened)
	}
	if u, err := s.Usage(t.Context()); err != nil || u.PIDs < 1 || u.Memory != -1 || u.CPU != -1 {
		t.Errorf("%+v, %v", u, err)
	}
	open, err := s.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, _ := open.Read(make([]byte, 1)); n != 0 {
		t.Error("a destroyed sandbox says something")
	}
	_, err = s.Dial(t.Context(), port)
	wantCode(t, err, sandbox.CodeGone)
}

// TestTooManyConnections: the connections of a caller are limited, and closed
// ones are no longer counted.
func TestTooManyConnections(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	s := create(t, daemontest.Client(t, d), sandbox.Spec{Name: "one"})
	port := echo(t, s)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var err error
	for len(open) <= 300 && err == nil {
		var c net.Conn
		if c, err = s.Dial(t.Context(), port); err == nil {
			open = append(open, c)
		}
	}
	wantCode(t, err, sandbox.CodeExhausted)
	for _, c := range open {
		c.(interface{ CloseWrite() error }).CloseWrite()
		if _, err := io.ReadAll(c); err != nil { // the other side has ended too
			t.Fatal(err)
		}
		c.Close()
	}
	open = nil
	for { // the daemon releases the connection slightly after its caller sees the end
		c, err := s.Dial(t.Context(), port)
		if err == nil {
			c.Close()
			return
		}
		wantCode(t, err, sandbox.CodeExhausted)
	}
}

// visit requests a port through the proxy and returns the status.
func visit(t *testing.T, d *daemon.Daemon, host string, headers ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.TCP().String()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// A server that echoes is not one of HTTP: the proxy that reached it says so.
const (
	reached = http.StatusBadGateway
	refused = http.StatusUnauthorized
)

func plainTCP(o *daemon.Options) { o.Listen, o.Plain = "127.0.0.1:0", true }

func portToken(t *testing.T, s *atoll.Sandbox, opts atoll.PortTokenOptions) string {
	t.Helper()
	token, err := s.PortToken(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return token.Token
}

// TestAttackPortTokens: a token gives access to its ports, and nothing else.
func TestAttackPortTokens(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, plainTCP)
	owner := daemontest.Client(t, d)
	key, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	mine, yours := create(t, owner, sandbox.Spec{Name: "mine"}), create(t, owner, sandbox.Spec{Name: "yours"})
	foreign := create(t, bearer(t, d, "other", "admin"), sandbox.Spec{Name: "theirs"})
	port := echo(t, mine)
	echo(t, yours)
	all := portToken(t, mine, atoll.PortTokenOptions{})
	one := portToken(t, mine, atoll.PortTokenOptions{Ports: []uint16{port}})
	none := portToken(t, mine, atoll.PortTokenOptions{Ports: []uint16{port + 1}})
	short := portToken(t, mine, atoll.PortTokenOptions{Expires: time.Millisecond})
	keyed := portToken(t, atoll.Handle(daemontest.Bearer(t, d, key.Token), mine.ID()), atoll.PortTokenOptions{})
	host := func(ref string, port uint16) string { return fmt.Sprintf("%d-%s.localhost", port, ref) }
	for visit(t, d, host("mine", port), "Atoll-Token", short) != refused {
		// Its time is over in a moment.
	}
	for name, tt := range map[string]struct {
		host, token string
		want        int
	}{
		"all":             {host("mine", port), all, reached},
		"by id":           {host(string(mine.ID()), port), all, reached},
		"one":             {host("mine", port), one, reached},
		"of a key":        {host("mine", port), keyed, reached},
		"other port":      {host("mine", port), none, refused},
		"other sandbox":   {host("yours", port), all, refused},
		"other tenant":    {host("theirs", port), all, refused},
		"other's id":      {host(string(foreign.ID()), port), all, refused},
		"never was":       {host("never", port), all, refused},
		"nothing":         {host("mine", port), "", refused},
		"API key":         {host("mine", port), key.Token, refused},
		"nobody listens":  {host("mine", port+1), all, reached},
		"name that is no": {host("-x", port), all, refused},
	} {
		if got := visit(t, d, tt.host, "Atoll-Token", tt.token); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	// The API refuses it on every host.
	if got := visit(t, d, "localhost", "Authorization", "Bearer "+all); got != refused {
		t.Errorf("the API takes a token for ports: %d", got)
	}
	if err := owner.Admin().RevokeKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	if got := visit(t, d, host("mine", port), "Atoll-Token", keyed); got != refused {
		t.Errorf("the token of a revoked key: %d", got)
	}
	// It is valid at the next daemon, until its sandbox is gone; a sandbox of
	// the same name is another.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = m.Start(t, plainTCP)
	if got := visit(t, d, host("mine", port), "Atoll-Token", all); got != reached {
		t.Errorf("at the next daemon: %d", got)
	}
	owner = daemontest.Client(t, d)
	if err := owner.Remove(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	create(t, owner, sandbox.Spec{Name: "mine"})
	if got := visit(t, d, host("mine", port), "Atoll-Token", all); got != refused {
		t.Errorf("the namesake of a sandbox that is gone: %d", got)
	}
	nowhere(t, m.Dir, all, one, keyed)
}

// nowhere searches for secrets in all files of the daemon.
func nowhere(t *testing.T, dir string, secrets ...string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("a token is in %s", path)
			}
		}
		if filepath.Base(path) == "ports.key" {
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", path, info.Mode(), err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPortURL(t *testing.T) {
	d := daemontest.New(t).Start(t, plainTCP)
	s := create(t, daemontest.Client(t, d), sandbox.Spec{Name: "one"})
	_, err := s.PortURL(8000)
	wantCode(t, err, sandbox.CodeUnsupported) // a socket has no host name
	port := d.TCP().(*net.TCPAddr).Port
	c, err := atoll.New(atoll.Options{Host: "http://" + d.TCP().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := atoll.Handle(c, s.ID()).PortURL(8000)
	if want := fmt.Sprintf("http://8000-%s.localhost:%d", s.ID(), port); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	c, err = atoll.New(atoll.Options{Host: "https://atoll.example"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := atoll.Handle(c, s.ID()).PortURL(8000); err != nil || !strings.HasSuffix(got, ".atoll.example") || !strings.HasPrefix(got, "https://8000-") {
		t.Errorf("%s, %v", got, err)
	}
}
