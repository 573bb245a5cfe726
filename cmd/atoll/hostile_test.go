package main

import (
	"bytes"
	"context"
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
	"github.com/atoll-run/atoll/sandbox"
)

// memoryMB returns the proportional set size of a process.
func memoryMB(t testing.TB, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kb float64
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Pss: %f kB", &kb); err == nil {
			return kb / 1024
		}
	}
	t.Fatal("no proportional set size")
	return 0
}

// Clients that open many connections and streams and read nothing use a limited
// amount of memory and do not block other clients.
func TestHostileClients(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "hostile")
	socket := filepath.Join(s.state, atoll.SocketName)
	before := memoryMB(t, s.daemon.Process.Pid)
	dial := func(send string) net.Conn {
		t.Helper()
		c, err := net.Dial("unix", socket)
		if err == nil {
			_, err = io.WriteString(c, send)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}

	const silent, unread, events = 500, 16, 16
	for i := range silent { // that send nothing, or incomplete requests
		dial([]string{"", "GET /v1/sandboxes HTTP/1.1\r\nHost: atoll\r\nX-Slow: "}[i%2])
	}
	for range unread { // streams of endless output without a reader
		p, err := b.Exec(t.Context(), sandbox.Command{Shell: "exec cat /dev/zero", Hold: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
	}
	for range events {
		dial("GET /v1/events/stream HTTP/1.1\r\nHost: atoll\r\n\r\n")
	}
	for what, body := range map[string]string{
		"deep JSON":    strings.Repeat(`{"labels":`, 100_000),
		"deep lists":   `{"args":` + strings.Repeat("[", 1_000_000),
		"a large body": `{"shell":"` + strings.Repeat("x", 8<<20) + `"}`,
	} {
		wantStatus(t, socket, what, "POST", "/v1/sandboxes/hostile/exec", body, nil)
	}
	huge := http.Header{}
	for i := range 100 {
		huge.Set(fmt.Sprint("X-", i), strings.Repeat("x", 8<<10))
	}
	wantStatus(t, socket, "headers of 800 KiB", "GET", "/v1/sandboxes", "", huge)

	if got := run(t, b, "echo works"); got != "works" {
		t.Errorf("a command says %q", got)
	}
	// Each unread stream has windows of a few hundred KiB on both sides.
	grown := memoryMB(t, s.daemon.Process.Pid) - before
	t.Logf("%.1f MB, %.1f more than before", before+grown, grown)
	if limit := 100.0; grown > limit {
		t.Errorf("the daemon has grown by %.1f MB", grown)
	}
}

// wantStatus sends a request that must be rejected with a client error.
func wantStatus(t *testing.T, socket, what, method, path, body string, header http.Header) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://atoll"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil { // the connection may be closed before the request is sent
		if resp, err = client.Get("http://atoll/healthz"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: the daemon is not well: %v", what, err)
		}
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode < 400 || resp.StatusCode > 499 {
		t.Errorf("%s: %s", what, resp.Status)
	}
}
