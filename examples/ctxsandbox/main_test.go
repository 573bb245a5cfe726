package main

import (
	"bytes"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/atolld"
	"github.com/atoll-run/atoll/ctxsandbox"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const want = `exec: 0 "one argument with spaces\n"
shell: 3 false "to a log\n"
logs: "to a log\n"
list: true
run shell: "42\n"
`

func check(t *testing.T, c *atoll.Client) {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), ctxsandbox.New(c), &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
	for info := range c.List(t.Context(), atoll.ListOptions{}) {
		t.Errorf("%s was left", info.Name)
	}
}

// The provider host gives every command the network of the machine, so that it
// cannot hold what an empty list of hosts means.
func TestHostIsRefused(t *testing.T) {
	server := &atolld.Server{StateDir: t.TempDir(), Provider: "host"}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = ctxsandbox.New(c).RunShell(t.Context(), "true", 0, ctxsandbox.SandboxSpec{})
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("got %v, want unsupported", err)
	}
	for info := range c.List(t.Context(), atoll.ListOptions{}) {
		t.Errorf("%s was left", info.Name)
	}
}

func TestLocal(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.Socket = true })
	c, err := atoll.New(atoll.Options{Host: "unix://" + d.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	check(t, c)
}

// A daemon elsewhere, reached over TCP with a key.
func TestRemote(t *testing.T) {
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Listen, o.Plain = "127.0.0.1:0", true })
	made, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Name: "agent", Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := atoll.New(atoll.Options{Host: "http://" + d.TCP().String(), Key: made.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	check(t, c)
}
