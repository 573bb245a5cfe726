package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// The reference decides as documented, rule by rule, without the optimizations
// of the compiled form.

func refHost(pattern string, f Flow) bool {
	p, err := parsePattern(pattern)
	if err != nil {
		panic(err)
	}
	in := false
	for _, r := range p.ports {
		in = in || r.low <= f.Port && f.Port <= r.high
	}
	switch {
	case !in:
		return false
	case p.prefix.IsValid():
		return f.Addr.IsValid() && p.prefix.Contains(f.Addr)
	case f.Name == "":
		return false
	case p.any:
		return true
	case p.suffix != "":
		return strings.HasSuffix(f.Name, "."+p.suffix)
	}
	return f.Name == p.name
}

func refRule(r sandbox.Rule, f Flow) bool {
	for _, h := range r.Hosts {
		p, _ := parsePattern(h)
		if p.prefix.IsValid() && f.Name != "" && r.Action == sandbox.Allow {
			continue // for bare addresses
		}
		if refHost(h, f) {
			return true
		}
	}
	return false
}

var refPaths = map[string]*regexp.Regexp{} // compiling takes longer than matching

// refPath matches by a regular expression.
func refPath(pattern, path string) bool {
	var re strings.Builder
	for _, seg := range strings.Split(strings.TrimPrefix(pattern, "/"), "/") {
		switch {
		case seg == "**":
			re.WriteString(`(/[^/]*)*`)
		case seg == "*":
			re.WriteString(`/[^/]+`)
		default:
			re.WriteString("/" + strings.ReplaceAll(regexp.QuoteMeta(seg), `\*`, `[^/]*`))
		}
	}
	compiled := refPaths[pattern]
	if compiled == nil {
		compiled = regexp.MustCompile("^" + re.String() + "$")
		refPaths[pattern] = compiled
	}
	return compiled.MatchString(path)
}

func refRequest(rules []sandbox.Rule, f Flow, method, path string) int {
	for i, r := range rules {
		if !refRule(r, f) || len(r.Methods) > 0 && !slices.Contains(r.Methods, method) {
			continue
		}
		if len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, func(p string) bool { return refPath(p, path) }) {
			return i + 1
		}
	}
	return 0
}

var (
	someHosts = []string{
		"a.example", "b.example", "*.a.example", "*.example", "*", "x.a.example", "a.example:8080", "*.example:8000-9000", "*:*",
		"192.5.6.0/24", "192.5.6.7", "192.5.0.0/16:*", "[2606:2800::/32]:443", "2606:2800::1",
	}
	someNames = []string{"a.example", "b.example", "x.a.example", "y.x.a.example", "example", "c.other", ""}
	someAddrs = []string{"192.5.6.7", "192.5.7.8", "93.184.216.34", "2606:2800::1", ""}
	somePorts = []uint16{80, 443, 8080, 9000, 22}
	somePaths = []string{"/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/b", "/a/b/a/b"}
	patterns  = []string{"/", "/a", "/a/**", "/**", "/*", "/a/*", "/**/b", "/a*", "/*/b/**", "/a/b", "/**/a/**/b"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func randomRules(r *rand.Rand) []sandbox.Rule {
	var rules []sandbox.Rule
	for range r.IntN(8) {
		rule := sandbox.Rule{Action: pick(r, []sandbox.Action{sandbox.Allow, sandbox.Deny})}
		for range 1 + r.IntN(3) {
			rule.Hosts = append(rule.Hosts, pick(r, someHosts))
		}
		if r.IntN(3) == 0 {
			rule.Methods = []string{pick(r, []string{"GET", "POST"})}
		}
		if r.IntN(3) == 0 {
			rule.Paths = []string{pick(r, patterns), pick(r, patterns)}
		}
		rules = append(rules, rule)
	}
	return rules
}

// The index, the optimizations and the merging of lists do not change
// decisions: on many random profiles, the compiled form decides like the
// reference, and a connection is allowed exactly if some request on it could
// be.
func TestAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	for range 1000 {
		rules := randomRules(r)
		p := compile(t, sandbox.Profile{Rules: rules}, Options{})
		for range 20 {
			f := flow(pick(r, someNames), pick(r, someAddrs), pick(r, somePorts))
			if f.Name == "" && !f.Addr.IsValid() {
				continue
			}
			compareRequests(t, p, rules, f)
			compareResolve(t, p, rules, f)
		}
		if t.Failed() {
			t.Fatalf("%+v", rules)
		}
	}
}

func compareRequests(t *testing.T, p *Policy, rules []sandbox.Rule, f Flow) {
	t.Helper()
	host := f.Name
	if host == "" {
		host = f.Addr.String()
		if f.Addr.Is6() {
			host = "[" + host + "]"
		}
	}
	any := false
	for _, method := range []string{"GET", "POST", "PUT"} {
		for _, path := range somePaths {
			want := refRequest(rules, f, method, path)
			got := p.Request(f, Request{Method: method, TLS: true, Host: host, Path: path})
			if got.Number != want || got.Allow != (want > 0 && rules[want-1].Action == sandbox.Allow) {
				t.Errorf("%s %s on %+v: rule %d, want %d", method, path, f, got.Number, want)
			}
			any = any || got.Allow
		}
	}
	c := p.Connect(f)
	if any && !c.Allow {
		t.Errorf("%+v: no connection for requests that are allowed", f)
	}
	if c.Allow && !c.Inspect && !any {
		t.Errorf("%+v: a connection nobody looks into, and no request is allowed", f)
	}
	if c.Allow && !c.Inspect {
		for _, method := range []string{"GET", "PUT"} {
			if n := refRequest(rules, f, method, "/some/where"); n == 0 || rules[n-1].Action != sandbox.Allow {
				t.Errorf("%+v: nobody looks into it, and %s is not allowed", f, method)
			}
		}
	}
}

func compareResolve(t *testing.T, p *Policy, rules []sandbox.Rule, f Flow) {
	t.Helper()
	if f.Name == "" {
		return
	}
	for _, port := range somePorts {
		for _, method := range []string{"GET", "POST", "PUT"} {
			for _, path := range somePaths {
				n := refRequest(rules, Flow{Name: f.Name, Port: port}, method, path)
				if n > 0 && rules[n-1].Action == sandbox.Allow && !p.CanResolve(f.Name) {
					t.Errorf("%s does not resolve, and port %d of it is allowed", f.Name, port)
				}
			}
		}
	}
}

// A learned profile allows exactly the requests that were seen.
func TestLearn(t *testing.T) {
	seen := []Seen{
		{"api.example.com", 443, "GET", "/v1/a"},
		{"api.example.com", 443, "POST", "/v1/a"},
		{"API.example.com.", 443, "GET", "/v1/b%20c/*"},
		{"db.example.com", 5432, "", ""},
		{"192.5.6.7", 22, "", ""},
		{"2606:2800::1", 443, "GET", "/x"},
		{"both.example", 443, "GET", "/p"},
		{"both.example", 443, "", ""},
		{"bad host", 443, "GET", "/"},
		{"a.example", 443, "GET", "/%2e%2e%2fx"},
		{"a.example", 443, "CONNECT", "/"},
	}
	profile, left := Learn("learned", seen)
	if len(left) != 3 {
		t.Errorf("left: %+v", left)
	}
	p := compile(t, profile, Options{})
	ask := func(host string, port uint16, method, path string) bool {
		h, err := ParseHost(host)
		if err != nil {
			t.Fatal(err)
		}
		f := Flow{Name: h.Name, Addr: h.Addr, Port: port}
		c := p.Connect(f)
		if method == "" || !c.Inspect {
			return c.Allow
		}
		name := host
		if h.Addr.Is6() {
			name = "[" + host + "]"
		}
		return p.Request(f, Request{Method: method, TLS: true, Host: name, Path: path}).Allow
	}
	for _, s := range seen[:8] {
		if !ask(s.Host, s.Port, s.Method, s.Path) {
			t.Errorf("%+v is not allowed by %+v", s, profile)
		}
	}
	for _, s := range []Seen{
		{"api.example.com", 443, "PUT", "/v1/a"},
		{"api.example.com", 443, "GET", "/v1/a/b"},
		{"api.example.com", 443, "POST", "/v1/b%20c/*"},
		{"api.example.com", 443, "GET", "/v1/b%20c/d"},
		{"api.example.com", 80, "GET", "/v1/a"},
		{"www.example.com", 443, "GET", "/v1/a"},
		{"db.example.com", 443, "", ""},
		{"192.5.6.8", 22, "", ""},
		{"2606:2800::1", 443, "GET", "/y"},
	} {
		if ask(s.Host, s.Port, s.Method, s.Path) {
			t.Errorf("%+v is allowed, and was never seen", s)
		}
	}
}

// For any input, a canonical host is canonical, and other parsers read it in
// the same way.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.com", "EXAMPLE.com.", "bücher.example", "xn--bcher-kva.example", "127.1", "0x7f.1", "[::1]", "::ffff:10.0.0.1", "a..b", "a\x00.example", "1.2.3.4.", "ex\u3002ample.com", "fe80::1%eth0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHost(s)
		if err != nil {
			if h != (Host{}) {
				t.Errorf("%q: an error and a host", s)
			}
			return
		}
		if (h.Name == "") == !h.Addr.IsValid() || h.Addr.Is4In6() {
			t.Errorf("%q is %+v", s, h)
		}
		if strings.ContainsAny(h.Name, "\x00/:@%\\ \t\r\n[]*") || strings.HasSuffix(h.Name, ".") || strings.ToLower(h.Name) != h.Name {
			t.Errorf("%q became %q", s, h.Name)
		}
		if again, err := ParseHost(h.String()); err != nil || again != h {
			t.Errorf("%q became %q and then %+v, %v", s, h, again, err)
		}
		if _, err := netip.ParseAddr(h.Name); err == nil {
			t.Errorf("%q is a name that is an address", h.Name)
		}
	})
}

// For any input, normalising a normalised path does not change it, it has no
// "..", and the standard library reads it in the same way.
func FuzzNormalizePath(f *testing.F) {
	for _, s := range []string{"/", "/a/../b", "/%2e%2e/", "/a%2Fb", "/a%252e", "/a;b/..;/c", "//a///b/.", "/%41%zz", "/\u00fc", "/a%5cb", "/%00", "/{x}|y^", "/a/.../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		norm, err := NormalizePath(s)
		if err != nil {
			return
		}
		if again, err := NormalizePath(norm); err != nil || again != norm {
			t.Errorf("%q became %q and then %q, %v", s, norm, again, err)
		}
		u, err := url.ParseRequestURI(norm)
		if err != nil || u.EscapedPath() != norm || u.RawQuery != "" {
			t.Errorf("%q: the standard library reads %q: %v", norm, u, err)
			return
		}
		for _, plain := range []string{u.Path, unescapeAll(u.Path), unescapeAll(unescapeAll(u.Path))} {
			for seg := range strings.FieldsFuncSeq(plain, func(r rune) bool { return r == '/' || r == '\\' }) {
				if name, _, _ := strings.Cut(seg, ";"); name == ".." {
					t.Errorf("%q climbs: %q", norm, plain)
				}
			}
		}
		if strings.Contains(norm, "//") || strings.ContainsAny(norm, "\\?#\x00") {
			t.Errorf("%q became %q", s, norm)
		}
	})
}

// Matching a path is the same as matching it by a regular expression.
func FuzzPathPattern(f *testing.F) {
	f.Add("/a/*/c*", "/a/b/cd")
	f.Add("/**/x/**", "/a/x")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if len(pattern) > 64 || len(path) > 128 || strings.ContainsAny(pattern+path, "%;") {
			return
		}
		p, err := parsePath(pattern)
		norm, err2 := NormalizePath(pattern)
		r, err3 := parseRequestPath(path)
		if err != nil || err2 != nil || err3 != nil || strings.ContainsAny(norm+r.normal, "%;") {
			return
		}
		if got, want := p.match(&r, false), refPath(norm, r.normal); got != want {
			t.Errorf("%q against %q: %v", norm, r.normal, got)
		}
	})
}

// A profile that compiles answers every question without a panic.
func FuzzCompile(f *testing.F) {
	f.Add("*.example.com:80-90", "/a/**", "GET", "a.example.com", uint16(85), "/a/b")
	f.Add("[2001:db8::/32]:443", "/*", "POST", "", uint16(443), "/%2f")
	f.Fuzz(func(t *testing.T, host, path, method, name string, port uint16, asked string) {
		p, err := Compile(sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{host}, Paths: []string{path}, Methods: []string{method}}}}, Options{})
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("%v", err)
			}
			return
		}
		fl := Flow{Name: name, Port: port}
		p.CanResolve(name)
		if d := p.Request(fl, Request{Method: method, TLS: true, Host: name, Path: asked}); d.Allow && !p.Connect(fl).Allow {
			t.Errorf("%+v: a request without a connection", fl)
		}
		_, _ = p.Explain(method, fmt.Sprintf("https://%s:%d%s", name, port, asked))
	})
}

func TestClassOf(t *testing.T) {
	for addr, want := range map[string]Class{
		"93.184.216.34": Public, "2606:2800:220:1::1": Public, "8.8.8.8": Public,
		"127.0.0.1": Loopback, "127.255.255.254": Loopback, "0.0.0.0": Loopback, "0.1.2.3": Loopback, "::": Loopback, "::1": Loopback, "::ffff:127.0.0.1": Loopback,
		"10.0.0.1": Private, "172.16.0.1": Private, "172.32.0.1": Public, "192.168.1.1": Private, "100.64.0.1": Private, "100.128.0.1": Public, "fd00::1": Private, "fec0::1": Private, "::ffff:10.0.0.1": Private,
		"169.254.1.1": LinkLocal, "fe80::1": LinkLocal,
		"169.254.169.254": Metadata, "::ffff:169.254.169.254": Metadata, "fd00:ec2::254": Metadata, "100.100.100.200": Metadata, "168.63.129.16": Metadata,
		"224.0.0.1": Multicast, "239.255.255.250": Multicast, "ff02::1": Multicast, "255.255.255.255": Reserved, "240.0.0.1": Reserved,
		"192.0.2.1": Reserved, "198.18.0.1": Reserved, "198.51.100.1": Reserved, "203.0.113.1": Reserved, "2001:db8::1": Reserved, "4000::1": Reserved,
		"64:ff9b::a9fe:a9fe": Embedding, "2002:a00:1::1": Embedding, "2001::1": Embedding, "::7f00:1": Embedding, "::ffff:0:7f00:1": Embedding, "fe80::1%eth0": Reserved,
	} {
		if got := ClassOf(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is %s, want %s", addr, got, want)
		}
	}
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	meta := netip.MustParseAddr("169.254.169.254")
	if permits(all, meta, Metadata) || !permits(append(all, netip.PrefixFrom(meta, 32)), meta, Metadata) || !permits(all, netip.MustParseAddr("10.0.0.1"), Private) {
		t.Error("who allows everything allows metadata, or who names it does not")
	}
}

// Ten thousand rules cost no more than ten.
func BenchmarkRequest(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		var rules []sandbox.Rule
		for i := range n {
			r := allow(fmt.Sprintf("host-%d.example.com", i), fmt.Sprintf("*.zone-%d.example", i))
			r.Methods, r.Paths = []string{"GET"}, []string{"/v1/**"}
			rules = append(rules, r)
		}
		p := compile(b, sandbox.Profile{Rules: rules}, Options{})
		f := flow(fmt.Sprintf("host-%d.example.com", n-1), somewhere, 443)
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			for b.Loop() {
				if !p.Connect(f).Allow || !p.Request(f, Request{Method: "GET", TLS: true, Host: f.Name, Path: "/v1/x/y"}).Allow {
					b.Fatal("denied")
				}
			}
		})
	}
}
