package policy

import (
	"net/netip"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// compile is Compile for profiles that are meant to be right.
func compile(t testing.TB, p sandbox.Profile, opts Options) *Policy {
	t.Helper()
	c, err := Compile(p, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func allow(hosts ...string) sandbox.Rule { return sandbox.Rule{Action: sandbox.Allow, Hosts: hosts} }

func deny(hosts ...string) sandbox.Rule { return sandbox.Rule{Action: sandbox.Deny, Hosts: hosts} }

func flow(name string, addr string, port uint16) Flow {
	f := Flow{Name: name, Port: port}
	if addr != "" {
		f.Addr = netip.MustParseAddr(addr)
	}
	return f
}

const somewhere = "93.184.216.34"

func TestConnect(t *testing.T) {
	read := allow("api.example.com")
	read.Methods, read.Paths = []string{"GET"}, []string{"/v1/**"}
	pinned := allow("pinned.example.com")
	pinned.TLS = sandbox.Passthrough
	p := compile(t, sandbox.Profile{Rules: []sandbox.Rule{
		deny("bad.example.org", "198.41.0.0/24"), read, allow("*.example.org", "db.example.com:5432", "192.5.6.0/24:*"), pinned,
		deny("everything.example.net"), allow("*.example.net:8000-8999"), deny("10.1.0.0/16:*"), allow("10.0.0.0/8", "inside.example.com"),
	}}, Options{Operator: Operator{Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Own: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:7070")}}})
	for _, tt := range []struct {
		f       Flow
		allow   bool
		why     Reason
		inspect bool
	}{
		{flow("api.example.com", "", 443), true, ByRule, true},
		{flow("api.example.com", somewhere, 80), true, ByRule, true},
		{flow("api.example.com", "", 22), false, ByDefault, false},
		{flow("api.example.com", "127.0.0.1", 443), false, BadAddress, false},
		{flow("api.example.com", "10.2.0.1", 443), true, ByRule, true}, // by name, and the operator allows the address
		{flow("api.example.com", "10.1.0.1", 443), true, ByRule, true}, // requests that the first rule matches
		{flow("inside.example.com", "10.1.0.1", 443), false, ByRule, false},
		{flow("inside.example.com", "10.2.0.1", 443), true, ByRule, false},
		{flow("inside.example.com", "192.168.0.1", 443), false, BadAddress, false},
		{flow("inside.example.com", "::ffff:169.254.169.254", 443), false, BadAddress, false},
		{flow("www.example.org", "", 443), true, ByRule, false},
		{flow("www.example.org", "198.41.0.4", 443), false, ByRule, false},
		{flow("a.b.example.org", "", 443), true, ByRule, false},
		{flow("example.org", "", 443), false, ByDefault, false},
		{flow("evilexample.org", "", 443), false, ByDefault, false},
		{flow("bad.example.org", "", 443), false, ByRule, false},
		{flow("db.example.com", "", 5432), true, ByRule, false},
		{flow("db.example.com", "", 443), false, ByDefault, false},
		{flow("pinned.example.com", "", 443), true, ByRule, false},
		{flow("a.example.net", "", 8500), true, ByRule, false},
		{flow("a.example.net", "", 443), false, ByDefault, false},
		{flow("", "192.5.6.30", 22), true, ByRule, false},
		{flow("", "192.5.7.30", 22), false, ByDefault, false},
		{flow("", "10.9.9.9", 443), true, ByRule, false},
		{flow("", "10.9.9.9", 7070), false, OwnPort, false},
		{flow("", "::ffff:10.9.9.9", 443), true, ByRule, false},
		{flow("", "::ffff:10.1.9.9", 443), false, ByRule, false},
		{flow("other.example.com", "192.5.6.30", 443), false, ByDefault, false}, // the rule is for bare addresses
		{flow("API.example.com", "", 443), false, BadHost, false},
		{Flow{}, false, BadHost, false},
	} {
		d := p.Connect(tt.f)
		if d.Allow != tt.allow || d.Reason != tt.why || d.Inspect != tt.inspect {
			t.Errorf("%+v: %+v (%s)", tt.f, d, d.Message())
		}
		if d.Allow && d.HostOnly == d.Inspect {
			t.Errorf("%+v: host-only and inspected: %+v", tt.f, d)
		}
	}
	for name, want := range map[string]bool{
		"api.example.com": true, "db.example.com": true, "a.example.net": true, "bad.example.org": false, "x.bad.example.org": true,
		"example.org": false, "": false, "10.0.0.1": false, "unknown.example": false, "API.example.com": false,
	} {
		if p.CanResolve(name) != want {
			t.Errorf("CanResolve(%q) is not %v", name, want)
		}
	}
}

func TestRequest(t *testing.T) {
	secret := deny("api.example.com")
	secret.Paths = []string{"/v1/secret/**"}
	read := allow("api.example.com")
	read.Name, read.Methods, read.Paths = "read", []string{"get"}, []string{"/v1/**", "/health"}
	write := allow("api.example.com", "[2606:2800::1]:443")
	write.Methods, write.Paths = []string{"POST"}, []string{"/v1/*/comments"}
	write.Inject = []sandbox.Injection{{Secret: "token", Mode: sandbox.InjectBearer}}
	write.WebSocket = true
	p := compile(t, sandbox.Profile{Rules: []sandbox.Rule{secret, read, write}}, Options{})
	f := flow("api.example.com", somewhere, 443)
	for _, tt := range []struct {
		method, host, path string
		want               string // the path that is forwarded; empty: refused
		why                Reason
	}{
		{"GET", "api.example.com", "/v1/x", "/v1/x", ByRule},
		{"GET", "API.EXAMPLE.COM.:443", "/health", "/health", ByRule},
		{"GET", "api.example.com:8443", "/health", "", Disagree},
		{"GET", "evil.example.com", "/health", "", Disagree},
		{"GET", "api.example.com@evil.example", "/health", "", BadHost},
		{"GET", "", "/health", "", BadHost},
		{"GET", "api.example.com", "/v2/x", "", ByDefault},
		{"GET", "api.example.com", "/v1/../v2/x", "", ByDefault},
		{"GET", "api.example.com", "/v2/../v1/%78", "/v1/x", ByRule},
		{"GET", "api.example.com", "/v1/secret/a", "", ByRule},
		{"GET", "api.example.com", "/v1/%73ecret/a", "", ByRule},
		{"GET", "api.example.com", "/v1//secret/a", "", ByRule},
		{"GET", "api.example.com", "/v1/%2573ecret/a", "", ByRule},
		{"GET", "api.example.com", "/v1%2fsecret/a", "", ByRule},
		{"GET", "api.example.com", "/v1/secret;x=1/a", "", ByRule},
		{"GET", "api.example.com", "/v1/x%2f..%2fsecret", "", BadPath},
		{"GET", "api.example.com", "/v1/..;/secret", "", BadPath},
		{"GET", "api.example.com", "/v1/%252e%252e/secret", "", BadPath},
		{"GET", "api.example.com", "/v1/\\secret", "", BadPath},
		{"GET", "api.example.com", "http://api.example.com/v1/x", "", BadPath},
		{"get", "api.example.com", "/v1/x", "", ByDefault},
		{"POST", "api.example.com", "/v1/a/comments", "/v1/a/comments", ByRule},
		{"POST", "api.example.com", "/v1/a%2Fb/comments", "", ByDefault},
		{"POST", "api.example.com", "/v1/a/b/comments", "", ByDefault},
		{"CONNECT", "api.example.com", "/", "", BadMethod},
		{"TRACE", "api.example.com", "/v1/x", "", BadMethod},
		{"GET\x00", "api.example.com", "/v1/x", "", BadMethod},
	} {
		d := p.Request(f, Request{Method: tt.method, TLS: true, Host: tt.host, Path: tt.path})
		if d.Allow != (tt.want != "") || d.Path != tt.want || d.Reason != tt.why {
			t.Errorf("%s %q %q: %+v (%s)", tt.method, tt.host, tt.path, d, d.Message())
		}
	}
	d := p.Request(f, Request{Method: "POST", TLS: true, Host: "api.example.com", Path: "/v1/a/comments", WebSocket: true})
	if !d.Allow || len(d.Inject) != 1 || !d.WebSocket {
		t.Errorf("%+v", d)
	}
	if d := p.Request(f, Request{Method: "GET", TLS: true, Host: "api.example.com", Path: "/health", WebSocket: true}); d.Reason != NoUpgrade {
		t.Errorf("%+v", d)
	}
	if d := p.Request(f, Request{Method: "POST", Host: "api.example.com", Path: "/v1/a/comments"}); d.Reason != Plaintext || d.Inject != nil {
		t.Errorf("%+v", d)
	}
	f = flow("api.example.com", somewhere, 80)
	if d := p.Request(f, Request{Method: "POST", Host: "api.example.com", Path: "/v1/a/comments"}); d.Allow {
		t.Errorf("a credential goes to port 80: %+v", d)
	}
}
