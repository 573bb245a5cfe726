package boxlite_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	service "github.com/atoll-run/atoll/internal/testing/servicetest/boxlite"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestOptions opens providers with valid and invalid options. None makes a
// network call.
func TestOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*boxlite.Options)
		good   bool
	}{
		"nothing":    {func(*boxlite.Options) {}, true},
		"a server":   {func(o *boxlite.Options) { o.URL = "http://127.0.0.1:1" }, true},
		"a path":     {func(o *boxlite.Options) { o.URL = "https://api.example.com/api/" }, true},
		"a prefix":   {func(o *boxlite.Options) { o.Prefix = "us-east/team-42" }, true},
		"climbing":   {func(o *boxlite.Options) { o.Prefix = "a/../b" }, false},
		"a query":    {func(o *boxlite.Options) { o.Prefix = "a?b" }, false},
		"no address": {func(o *boxlite.Options) { o.URL = "ftp://x" }, false},
		"a password": {func(o *boxlite.Options) { o.URL = "https://u:" + service.Key + "@x" }, false},
	} {
		opts := boxlite.Options{Connection: hosted.Connection{Dir: t.TempDir(), Key: credential.New("BOXLITE_API_KEY", service.Key, "", "")}}
		tt.change(&opts)
		p, err := boxlite.New(opts)
		if !tt.good {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), service.Key) {
				t.Errorf("%s: %v, want invalid", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		facts, err := p.Probe(t.Context())
		if err != nil || facts.Available || len(facts.Findings) == 0 {
			t.Errorf("%s: Probe: %+v, %v", name, facts, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAsked checks the requests for a sandbox.
func TestAsked(t *testing.T) {
	w := suite.Serve(t)
	p := open(t, w, func(o *boxlite.Options) { o.Image = "debian:12" })
	const private = `"inbound":{"mode":"disabled"}`
	for name, tt := range map[string]struct {
		network sandbox.Network
		image   string
		want    string
	}{
		"nothing": {sandbox.Network{}, "host", `{"outbound":{"mode":"disabled"},` + private + `}`},
		"nowhere": {sandbox.Network{Egress: []string{}, Plain: &sandbox.EgressRules{}}, "", `{"outbound":{"mode":"disabled"},` + private + `}`},
		"everything": {
			sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}, "python:3.11-slim", `{"outbound":{"mode":"enabled"},` + private + `}`,
		},
		"some": {
			sandbox.Network{Egress: []string{"a.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "a.test"}, {Host: "*.b.test"}, {Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}},
			"host", `{"outbound":{"mode":"enabled","allow_net":["a.test","*.b.test","192.0.2.0/24"]},` + private + `}`,
		},
	} {
		s := hostedtest.Spec("sb-asked")
		s.Image, s.Network, s.Lifetime.Timeout, s.Env = tt.image, tt.network, 90*time.Minute, map[string]string{"TOKEN": "secret"}
		s.Resources = sandbox.Resources{CPUs: 2, Memory: 512 << 20, Disk: 3<<30 + 1}
		in, err := p.Create(t.Context(), s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		id := w.Fake.Names()[0]
		if got := w.Fake.Flows(id); got != tt.want {
			t.Errorf("%s: asked for %s, want %s", name, got, tt.want)
		}
		image := tt.image
		if image == "" || image == "host" {
			image = "debian:12"
		}
		asked := w.Fake.Asked(id)
		if asked.Image != image || asked.CPUs != 2 || asked.Memory != 512 || asked.Disk != 4 || *asked.AutoStop != 5400 || asked.AutoDelete != 0 || *asked.AutoResume || len(asked.Env) > 0 {
			t.Errorf("%s: asked for %+v", name, asked)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestInterfaces checks that the script finds the interfaces of this machine.
func TestInterfaces(t *testing.T) {
	const machine = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1646520   17544    0    0    0     0          0         0  1646520   17544    0    0    0     0       0          0
  eth0:   10826      83    0    0    0     0          0         0     1206      13    0    0    0     0       0          0
 tap1:0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
`
	for text, want := range map[string]string{machine: "eth0\ntap1\n", strings.Join(strings.Split(machine, "\n")[:3], "\n") + "\n": ""} {
		script := strings.Replace(boxlite.Interfaces, "</proc/net/dev", "", 1)
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("it finds %q, %v, want %q", out, err, want)
		}
	}
}
