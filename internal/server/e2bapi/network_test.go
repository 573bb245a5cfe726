package e2bapi

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func parseNetwork(t *testing.T, text string) *network {
	t.Helper()
	n := &network{}
	if err := json.Unmarshal([]byte(text), n); err != nil {
		t.Fatal(err)
	}
	return n
}

// rules formats a profile as lines for the tables below.
func rules(p *sandbox.Profile) string {
	var lines []string
	for _, r := range p.Rules {
		line := string(r.Action) + " " + strings.Join(r.Hosts, " ")
		for _, i := range r.Inject {
			line += " [" + i.Name + ": " + i.Format + " " + i.Secret
			for _, part := range i.Parts {
				if line += "<" + part.Text + ">" + part.Secret; part.Audience != "" {
					line += "@" + part.Audience
				}
			}
			line += "]"
		}
		lines = append(lines, line)
	}
	return strings.Join(append(lines, "else "+string(p.Default)), "; ")
}

func TestNetworkBecomesAProfile(t *testing.T) {
	for _, c := range []struct {
		internet   bool
		asked, say string
	}{
		{true, `{}`, "else allow"},
		{false, `{"allowOut":[]}`, "else deny"},
		{true, `{"denyOut":["0.0.0.0/0"]}`, "deny 0.0.0.0/0:*; else deny"},
		{true, `{"denyOut":["192.0.2.7","2001:db8::/32"]}`, "deny 192.0.2.7/32:* [2001:db8::/32]:*; else allow"},
		{false, `{"allowOut":["Example.com","*.b.test","192.0.2.0/24"]}`, "allow example.com *.b.test 192.0.2.0/24:*; else deny"},
		{true, `{"allowOut":["192.0.2.1"],"denyOut":["192.0.2.0/24"]}`, "allow 192.0.2.1/32:*; deny 192.0.2.0/24:*; else allow"},
		// A transform allows nothing by itself.
		{false, `{"allowOut":[],"rules":{"a.test":[{"transform":{"headers":{"K":"${e2b.secrets.S}"}}}]}}`, "else deny"},
		// If its domain is allowed, it comes first, and so does the most specific of several.
		{
			false,
			`{"allowOut":["*.a.test"],"rules":{"*.a.test":[{"transform":{"headers":{"K":"x ${e2b.secrets.S}"}}}],"b.a.test":[{"transform":{"headers":{"K":"${e2b.secrets.t}"}}}]}}`,
			"allow b.a.test [K: {} t]; allow *.a.test [K: x {} s]; allow *.a.test; else deny",
		},
		// A header may contain any number of secrets.
		{
			false,
			`{"allowOut":["a.test"],"rules":{"a.test":[{"transform":{"headers":{"A":"plain {}","B":"${e2b.secrets.S}:${e2b.secrets.t} x","C":"{} ${e2b.secrets.s}"}}}]}}`,
			"allow a.test [A:  <plain {}>] [B:  <>s<:><>t< x>] [C:  <{} ><>s]; allow a.test; else deny",
		},
		// A token of the sandbox has the audience from the request.
		{
			false, `{"allowOut":["a.test"],"rules":{"a.test":[{"transform":{"headers":{"A":"Bearer ${e2b.identity.tokens.my aws}","B":"${e2b.secrets.s} ${e2b.identity.tokens.my aws}"}}}]}}`,
			"allow a.test [A:  <Bearer ><>@sts.example.com] [B:  <>s< ><>@sts.example.com]; allow a.test; else deny",
		},
		// DNS servers can be reached where a name is allowed.
		{false, `{"allowOut":["a.test"],"dnsServers":["192.0.2.53"]}`, "allow a.test; allow 192.0.2.53/32:*; else deny"},
		{false, `{"allowOut":["a.test"],"dnsServers":["127.0.0.53"]}`, "allow a.test; else deny"},
		{false, `{"allowOut":["192.0.2.7"],"dnsServers":["192.0.2.53"]}`, "allow 192.0.2.7/32:*; else deny"},
		// Deny rules also apply if everything else is allowed.
		{
			true, `{"denyOut":["192.0.2.0/24"],"rules":{"a.test":[{"transform":{"headers":{"K":"${e2b.secrets.s}"}}}]}}`,
			"deny 192.0.2.0/24:*; allow a.test [K: {} s]; else allow",
		},
	} {
		n, err := parseNetwork(t, c.asked).spec(c.internet, map[string]string{"my aws": "sts.example.com"})
		if err != nil || n.Inline == nil {
			t.Errorf("%s: %v", c.asked, err)
			continue
		}
		if got := rules(n.Inline); got != c.say {
			t.Errorf("%s:\n got %s\nwant %s", c.asked, got, c.say)
		}
	}
}

func TestNetworkIsRefused(t *testing.T) {
	long := strings.Repeat("x", 2049)
	for asked, code := range map[string]sandbox.Code{
		`{"allowOut":["example.com"]}`:                                                      sandbox.CodeInvalid, // and everything else, too?
		`{"denyOut":["example.com"]}`:                                                       sandbox.CodeInvalid,
		`{"denyOut":["10.0.0.0/33"]}`:                                                       sandbox.CodeInvalid,
		`{"rules":{"*":[{"transform":{"headers":{"A":"${e2b.secrets.t}"}}}]}}`:              sandbox.CodeInvalid,
		`{"rules":{"a.test":[{},{}]}}`:                                                      sandbox.CodeInvalid,
		`{"rules":{"a.test":[{"transform":{"headers":{"A":"` + long + `"}}}]}}`:             sandbox.CodeInvalid,
		`{"rules":{"a.test":[{"transform":{"headers":{"A":""}}}]}}`:                         sandbox.CodeInvalid,
		`{"rules":{"a.test":[{"transform":{"headers":{"A":"${e2b.identity.tokens.t}"}}}]}}`: sandbox.CodeInvalid, // which was not registered
		`{"rules":{"a.test":[{"transform":{"headers":{"A":"${e2b.unknown.t}"}}}]}}`:         sandbox.CodeUnsupported,
		`{"egressProxy":{"address":"192.0.2.1:1080","password":"p"}}`:                       sandbox.CodeInvalid,
		`{"dnsServers":["2001:db8::53"]}`:                                                   sandbox.CodeInvalid,
		`{"dnsServers":["name.test"]}`:                                                      sandbox.CodeInvalid,
	} {
		if _, err := parseNetwork(t, asked).spec(true, nil); sandbox.CodeOf(err) != code {
			t.Errorf("%s: %v", asked, err)
		}
	}
}

// TestNetworkIsShownAsAsked also checks that a sandbox without a requested
// network has none.
func TestNetworkIsShownAsAsked(t *testing.T) {
	asked := `{"allowPublicTraffic":true,"allowOut":["a.test","192.0.2.0/24"],"denyOut":["0.0.0.0/0","198.51.100.0/24"],"rules":{"a.test":[{"transform":{"headers":{"K":"Bearer ${e2b.secrets.s}","L":"{plain}","M":"${e2b.secrets.s}${e2b.secrets.t}","N":"Bearer ${e2b.identity.tokens.aws}"}}}]}}`
	n, err := parseNetwork(t, asked).spec(true, map[string]string{"aws": "sts.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"e2b.token.aws": "sts.example.com", "e2b.token.zoo": "sts.example.com"}
	if got := toNetwork(&sandbox.Detail{Sandbox: sandbox.Sandbox{Labels: labels}, Spec: sandbox.Spec{Network: n}}); !reflect.DeepEqual(got, parseNetwork(t, asked)) {
		text, _ := json.Marshal(got)
		t.Errorf("asked for %s, shown %s", asked, text)
	}
	none, err := (*network)(nil).spec(false, nil)
	if err != nil || none.Asked() || toNetwork(&sandbox.Detail{}) != nil {
		t.Errorf("nobody asked for a network: %v %v", none, err)
	}
}

func TestPortsThatServeHTTPS(t *testing.T) {
	labels := map[string]string{}
	if err := parseNetwork(t, `{"httpsPorts":[8443,65535,8443]}`).label(labels); err != nil {
		t.Fatal(err)
	}
	if n := toNetwork(&sandbox.Detail{Sandbox: sandbox.Sandbox{Labels: labels}}); n == nil || !reflect.DeepEqual(n.HTTPSPorts, []int{8443, 65535}) {
		t.Errorf("shown as %+v", n)
	}
	var many []string
	for i := range maxHTTPSPorts + 1 {
		many = append(many, strconv.Itoa(8000+i))
	}
	for _, bad := range []string{"0", "-1", "65536", "49983", strings.Join(many, ",")} {
		if err := parseNetwork(t, `{"httpsPorts":[`+bad+`]}`).label(map[string]string{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestProxyIsShownWithoutWhatIsOnlyTaken also checks the sandbox.UpstreamProxy.
func TestProxyIsShownWithoutWhatIsOnlyTaken(t *testing.T) {
	n, err := parseNetwork(t, `{"dnsServers":["192.0.2.53"],"egressProxy":{"address":"p.test:1080","username":"u","password":"canary","tls":{"enabled":true,"serverName":"q.test","caCert":"PEM"}}}`).spec(false, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.UpstreamProxy{Address: "p.test:1080", Username: "u", Password: "canary", TLS: &sandbox.ProxyTLS{ServerName: "q.test", CA: "PEM"}}
	if p := n.Inline; !reflect.DeepEqual(p.Proxy, want) || !reflect.DeepEqual(p.DNSServers, []string{"192.0.2.53"}) {
		t.Errorf("%+v", p)
	}
	text, _ := json.Marshal(toNetwork(&sandbox.Detail{Spec: sandbox.Spec{Network: n}}))
	shown := `"dnsServers":["192.0.2.53"]`
	if proxy := `"egressProxy":{"address":"p.test:1080","username":"u","tls":{"enabled":true,"serverName":"q.test"}}`; !strings.Contains(string(text), proxy) || !strings.Contains(string(text), shown) {
		t.Errorf("shown %s", text)
	}
}
