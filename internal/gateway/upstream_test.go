package gateway_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/sandbox"
)

// want runs scripts, each of which must print something.
func (s *rigSandbox) want(scripts map[string]string) {
	s.r.tb.Helper()
	for script, want := range scripts {
		if out, _ := s.sh(script); !strings.Contains(out, want) {
			s.r.tb.Errorf("%s: %q lacks %q", script, out, want)
		}
	}
}

// TestDNSServers looks up names only at the DNS servers of a profile. Returned
// addresses are checked like any others.
func TestDNSServers(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test")
	w.lead(w.evil, "inside.test")
	settings := w.settings()
	settings.Nameservers = []string{net.JoinHostPort(w.evil.String(), "53")} // a trap
	settings.Hosts = map[string][]netip.Addr{"good.test": {w.evil}}          // of the machine
	r := newRigIn(t, settings, w.outside.do)
	rules := func(servers ...string) gateway.Policy {
		return gateway.Policy{Profile: sandbox.Profile{
			DNSServers: servers,
			Rules:      []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"good.test", "inside.test", "unknown.test"}}},
		}}
	}
	b := r.sandbox("asks", rules(w.dns))
	b.want(map[string]string{
		"curl -sS http://good.test/a":    `"URI":"/a"`,
		"curl -sS http://inside.test/":   "Couldn't connect",
		"curl -sS http://unknown.test/b": "Couldn't connect",
	})
	if hits, violations, asked := w.taken(); len(violations) > 0 || len(hits) != 1 || len(asked) == 0 {
		t.Errorf("%d hits, the server was asked for %s, %s", len(hits), asked, violations)
	}
	for id, p := range map[sandbox.ID]gateway.Policy{
		"private": rules(net.JoinHostPort(w.evil.String(), "53")),
		"ceiling": func() gateway.Policy {
			p := rules(w.dns)
			p.EgressLimits = []messages.EgressLimit{{Name: "names", Profile: sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"*"}}}}}}
			return p
		}(),
	} {
		r.sandbox(id, p).want(map[string]string{"curl -sS http://good.test/a": "Couldn't connect"})
		if hits, violations, asked := w.taken(); len(hits)+len(violations)+len(asked) > 0 {
			t.Errorf("%s: %d hits, %s, asked %s", id, len(hits), violations, asked)
		}
		r.awaitEvent(id, func(e gateway.Event) bool { return e.Verdict == messages.Denied && e.Host == "good.test" })
	}
}

// TestUpstreamProxy connects through the proxy of a profile. Its password is
// not revealed, and no traffic bypasses it.
func TestUpstreamProxy(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "plain.test", "api.test", "proxy.test")
	w.lead(w.evil, "inside.test")
	plain, secure := &aProxy{w: w}, &aProxy{w: w}
	w.outside.do(func() {
		w.each(w.listen(w.good, 1080), plain.socks)
		config := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return w.issue(h.ServerName), nil }}
		w.each(tls.NewListener(w.listen(w.good, 1081), config), secure.socks)
	})
	r := w.rig()
	through := func(address, password string, tls *sandbox.ProxyTLS) gateway.Policy {
		return gateway.Policy{ProxyPassword: []byte(password), Profile: sandbox.Profile{
			Proxy: &sandbox.UpstreamProxy{Address: address, Username: "user", TLS: tls},
			Rules: []sandbox.Rule{
				{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/ok/**"}},
				{Action: sandbox.Allow, Hosts: []string{"plain.test", "inside.test"}},
			},
		}}
	}
	for id, p := range map[sandbox.ID]gateway.Policy{
		"by-name":    through("proxy.test:1080", proxyPassword, nil),
		"by-address": through(w.good.String()+":1080", proxyPassword, nil),
		"over-tls":   through("proxy.test:1081", proxyPassword, &sandbox.ProxyTLS{CA: string(w.rootPEM)}),
	} {
		proxy := plain
		if id == "over-tls" {
			proxy = secure
		}
		before := len(proxy.asked())
		r.sandbox(id, p).want(map[string]string{
			"curl -sS http://plain.test/a":        `"URI":"/a"`,
			"curl -sS https://api.test/ok/c":      `"URI":"/ok/c"`,
			"curl -sS https://api.test/else":      "egress_denied",
			"curl -sS http://inside.test/":        "Couldn't connect",
			"curl -sS -m 9 http://elsewhere.test": "Could not resolve host",
		})
		if asked := proxy.asked()[before:]; !strings.Contains(asked, ":80") || !strings.Contains(asked, ":443") || strings.Contains(asked, w.evil.String()) {
			t.Errorf("%s: the proxy was asked for %s", id, asked)
		}
		r.mu.Lock()
		if said := fmt.Sprintf("%+v", r.events[id]); strings.Contains(said, proxyPassword) {
			t.Errorf("%s: an event has the password: %s", id, said)
		}
		r.mu.Unlock()
	}
	w.taken()
	for id, p := range map[sandbox.ID]gateway.Policy{
		"wrong-password": through("proxy.test:1080", "wrong", nil),
		"no-proxy":       through("proxy.test:1099", proxyPassword, nil),
		"no-socks":       through("proxy.test:80", proxyPassword, nil),
		"not-trusted":    through("proxy.test:1081", proxyPassword, &sandbox.ProxyTLS{}),
		"not-public":     through("inside.test:22", proxyPassword, nil),
	} {
		if id == "not-trusted" {
			p.Profile.Proxy.TLS.ServerName = "wrong.test"
		}
		r.sandbox(id, p).want(map[string]string{"curl -sS http://plain.test/past": "Couldn't connect"})
		if hits, violations, _ := w.taken(); len(violations) > 0 || strings.Contains(fmt.Sprint(hits), "/past") {
			t.Errorf("%s: %v, %s", id, hits, violations)
		}
	}
}

// TestSteeredInTheClear adds no credential to a request without TLS if the
// profile sets its own DNS servers.
func TestSteeredInTheClear(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test")
	r := w.rig()
	inject := []sandbox.Injection{{Secret: "s", Mode: sandbox.InjectBearer}}
	p := profile(sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test:80", "api.test:443"}, Inject: inject})
	p.Secrets = []messages.Secret{{Name: "s", Value: []byte(proxyPassword)}}
	p.Profile.DNSServers = []string{w.dns}
	r.sandbox("steered", p).want(map[string]string{
		"curl -sS http://api.test/clear":  "plaintext",
		"curl -sS https://api.test/there": `"URI":"/there"`,
	})
	hits, _, _ := w.taken()
	if len(hits) != 1 || hits[0].Header.Get("Authorization") != "Bearer "+proxyPassword {
		t.Errorf("%+v", hits)
	}
}
