package daemon_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// A daemon that is shutting down accepts no new connections, reports on
// existing ones that it is not ready, and lets running commands end.
func TestDrain(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.Socket, o.Drain = true, time.Minute })
	c, err := atoll.New(atoll.Options{Host: "unix://" + d.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := create(t, c, sandbox.Spec{Name: "one"})
	type outcome struct {
		result atoll.Result
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		r, err := s.Run(context.Background(), sandbox.Command{Shell: "echo began > /began; until test -e /go; do sleep 0.01; done; echo done"}, atoll.RunOptions{})
		ended <- outcome{r, err}
	}()
	for {
		if _, err := s.Files().Stat(t.Context(), "/began"); err == nil {
			break
		}
	}
	// Connections that were made before, and have asked nothing yet.
	var early []net.Conn
	for range 4 {
		conn, err := net.Dial("unix", d.Socket())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		early = append(early, conn)
	}
	ask := func(conn net.Conn, path string) int {
		t.Helper()
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: atoll\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := ask(early[3], "/readyz"); got != 200 { // the last is accepted, and so are those before it
		t.Fatal(got)
	}
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	for { // until the listener is closed
		conn, err := net.Dial("unix", d.Socket())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	for i, want := range []struct {
		path   string
		status int
	}{{"/readyz", 503}, {"/healthz", 200}, {"/v1/sandboxes", 503}} {
		if got := ask(early[i], want.path); got != want.status {
			t.Errorf("%s: %d", want.path, got)
		}
	}
	select {
	case out := <-ended:
		t.Fatalf("the command was cut off: %+v", out)
	case err := <-closed:
		t.Fatalf("the daemon did not wait: %v", err)
	default:
	}
	letGo(t, m, s.ID())
	if out := <-ended; out.err != nil || string(out.result.Stdout) != "done\n" {
		t.Errorf("%+v", out)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// letGo creates /go in a sandbox, without the daemon.
func letGo(t *testing.T, m *daemontest.Machine, id sandbox.ID) {
	t.Helper()
	p := m.Provider()
	defer p.Close()
	in, err := p.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"touch", "/go"}})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if exit, err := proc.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatal(exit, err)
	}
}
