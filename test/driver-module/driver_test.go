package driver_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/atolld"
	contract "github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"

	"example.com/driver"
)

func TestMain(m *testing.M) {
	atolld.Main()
	os.Exit(m.Run())
}

func start(t *testing.T, s *atolld.Server) *atoll.Client {
	t.Helper()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A program registers its own driver and uses it through the daemon.
func TestOwnDriver(t *testing.T) {
	dir, mine := t.TempDir(), driver.New()
	s := &atolld.Server{StateDir: dir, Provider: "mine", Providers: []atolld.Provider{{Name: "mine", Summary: "made here", Driver: mine}}}
	c := start(t, s)
	sb, err := c.Create(t.Context(), sandbox.Spec{Name: "one", Env: map[string]string{"WHO": "me"}}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if sb.Info().Provider != "mine" {
		t.Errorf("made by %q, want mine", sb.Info().Provider)
	}
	res, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo hello $WHO; exit 3"}, atoll.RunOptions{})
	if err != nil || string(res.Stdout) != "hello me\n" || res.Exit.Code != 3 {
		t.Errorf("%+v %v", res, err)
	}
	limited, err := c.Create(t.Context(), sandbox.Spec{Resources: sandbox.Resources{Memory: 64 << 20}}, atoll.CreateOptions{})
	if err != nil || limited.Info().Limits["memory"].Enforced || limited.Info().Limits["memory"].Why == "" {
		t.Errorf("a limit that is not enforced: %+v %v", limited.Info(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// The next daemon, with another default, finds the sandbox.
	c = start(t, &atolld.Server{StateDir: dir, Provider: "host", Providers: []atolld.Provider{{
		Name: "mine", Open: func(own string, options json.RawMessage) (contract.Provider, error) {
			if own == "" || string(options) != `{"a":1}` {
				t.Errorf("opened in %q with %s", own, options)
			}
			return mine, nil
		},
	}}, ProviderOptions: map[string]json.RawMessage{"mine": json.RawMessage(`{"a":1}`)}})
	again, err := c.Get(t.Context(), "one")
	if err != nil || again.ID() != sb.ID() || again.Info().State != sandbox.Running {
		t.Fatalf("%+v %v", again.Info(), err)
	}
	for _, ref := range []string{"one", string(limited.ID())} {
		if err := c.Remove(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	for f, err := range mine.List(t.Context()) {
		t.Errorf("%v is left, %v", f.ID, err)
	}
}

func TestProviderNeedsOneDriver(t *testing.T) {
	s := &atolld.Server{StateDir: t.TempDir(), Providers: []atolld.Provider{{Name: "mine"}}}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a provider without a driver was taken")
	}
	_ = s.Close()
}

// An embedded daemon has an egress gateway, which Main runs in a separate
// process: a sandbox with a network works, and reaches only what is allowed.
func TestEmbeddedNetwork(t *testing.T) {
	c := start(t, &atolld.Server{StateDir: t.TempDir()})
	all, err := c.Providers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Name == "gvisor" && !p.Available {
			t.Skip("gvisor cannot make sandboxes here")
		}
	}
	sb, err := c.Create(t.Context(), sandbox.Spec{Network: sandbox.Network{Egress: []string{"api.example.com"}}}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Destroy(t.Context())
	res, err := sb.Run(t.Context(), sandbox.Command{Shell: "cat /proc/net/dev"}, atoll.RunOptions{})
	if err != nil || !strings.Contains(string(res.Stdout), "eth0") {
		t.Errorf("%s%s %v, want a network card", res.Stdout, res.Stderr, err)
	}
	res, err = sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 5)"}}, atoll.RunOptions{})
	if err != nil || res.Exit.Code == 0 {
		t.Errorf("%+v %v, want a refusal", res, err)
	}
}
