package bridgeapi

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestTunnelDomain(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"127.0.0.1:8787": "localhost:8787", "[::1]:8787": "localhost:8787", "[::1]": "localhost", "127.0.0.1": "localhost",
		"localhost:8787": "localhost:8787", "atoll.example": "atoll.example", "atoll.example:443": "atoll.example:443", "192.0.2.1:8787": "", "[2001:db8::1]": "",
	} {
		if got, err := tunnelDomain(host); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", host, got, err, want)
		}
	}
}

// TestTunnelPasswords: an address is valid for one port of one sandbox, and for
// one tunnel.
func TestTunnelPasswords(t *testing.T) {
	t.Parallel()
	a, b := &tunnels{secret: []byte("one")}, &tunnels{secret: []byte("another")}
	seen := map[string]bool{}
	for _, got := range []string{
		a.password("sb-1", 8080, "n"), a.password("sb-2", 8080, "n"), a.password("sb-1", 8081, "n"), a.password("sb-1", 8080, "m"), b.password("sb-1", 8080, "n"),
	} {
		host := "8080-sb-1-" + got + ".localhost"
		if seen[got] || !tunnelHost().MatchString(host) || len(host) > 63+len(".localhost") {
			t.Errorf("%q", host)
		}
		seen[got] = true
	}
	for _, label := range []string{"", "{", "[]", "null7"} {
		if made, ok := tunnelTo(&sandbox.Sandbox{Labels: map[string]string{"bridge.tunnel.8080": label}}, 8080); ok {
			t.Errorf("the label %q is the tunnel %+v", label, made)
		}
	}
}

func TestSessionIDs(t *testing.T) {
	t.Parallel()
	for id, good := range map[string]bool{
		"a": true, "A.b_c-9": true, ".": true, "..": false, "a..b": false, "": false, "a/b": false, "a b": false, "a\n": false, "ü": false, "a\x00": false,
	} {
		if err := checkSession(id); (err == nil) != good {
			t.Errorf("%q: %v", id, err)
		}
	}
}
