package e2b_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/sandbox"
)

// listen serves one line to every connection at an address, and counts connections.
func listen(t *testing.T, address string) *atomic.Int64 {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if errors.Is(err, os.ErrPermission) {
		need.Root(t, "it serves port 80, which rules with a name are about")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var met atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			met.Add(1)
			// Closing with unread data would reset the connection, and the answer might
			// be lost.
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached"))
			c.Close()
		}
	}()
	return &met
}

// fetch gets pages by HTTP and returns the result of each.
const fetch = `python3 - <<'EOF'
import urllib.request as u
for url in %q.split():
    try: print(u.urlopen(url, timeout=30).read().decode())
    except Exception as e: print("timeout" if "timed out" in str(e) else "refused")
EOF`

// TestEgress checks that the service enforces what a sandbox may reach.
func TestEgress(t *testing.T) {
	// Addresses of the loopback that are this process's own.
	pid := os.Getpid()
	named, other := fmt.Sprintf("127.77.%d.%d", pid>>8&0xff, 1+pid%250), fmt.Sprintf("127.78.%d.%d", pid>>8&0xff, 1+pid%250)
	allowed, never := listen(t, named+":80"), listen(t, other+":80")
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, fmt.Appendf(nil, "%s good.test\n%s evil.test\n", named, other), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ATOLL_EGRESS_ALLOW", "127.0.0.0/8")
	t.Setenv("ATOLL_EGRESS_HOSTS", hosts)
	need.Program(t, "python3")
	s := serve(t)
	p, err := e2b.New(s.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, tt := range []struct {
		name, want string
		plain      sandbox.EgressRules
	}{
		{"some", "reached refused", sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "good.test"}}}},
		{"nothing", "refused refused", sandbox.EgressRules{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, err := p.Create(t.Context(), &sandbox.Spec{
				ID: sandbox.ID("egress-" + tt.name), Image: "host", Network: sandbox.Network{Egress: []string{"good.test"}, Plain: &tt.plain},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := in.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			if got := strings.Join(strings.Fields(run(t, in, fmt.Sprintf(fetch, "http://good.test/ http://evil.test/"))), " "); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
	if allowed.Load() != 1 || never.Load() != 0 {
		t.Errorf("met %d and %d times, want 1 and 0", allowed.Load(), never.Load())
	}
}

// asked is a service that creates nothing and records the requests.
type asked struct{ body map[string]any }

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("[]")), Request: r}
	if r.Method == http.MethodPost {
		answer.StatusCode, answer.Body = http.StatusTeapot, io.NopCloser(strings.NewReader(`{"code":418,"message":"no"}`))
		return answer, json.NewDecoder(r.Body).Decode(&a.body)
	}
	return answer, nil
}

// TestEgressAsked checks the requests, and that untranslated rules do not count
// as no rules.
func TestEgressAsked(t *testing.T) {
	all := []any{"0.0.0.0/0"}
	for name, tt := range map[string]struct {
		plain    *sandbox.EgressRules
		internet bool
		network  any
	}{
		"nothing":   {&sandbox.EgressRules{}, false, nil},
		"unbounded": {&sandbox.EgressRules{Open: true, Allow: []sandbox.EgressTarget{{Host: "a.test"}}}, true, nil},
		"some": {
			&sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "a.test"}, {Host: "*.b.test"}, {Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}, false,
			map[string]any{"allowOut": []any{"a.test", "*.b.test", "192.0.2.0/24"}, "denyOut": all},
		},
	} {
		service := &asked{}
		opts := at(t.TempDir(), "k", "http://127.0.0.1:1")
		opts.Transport = service
		p, err := e2b.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		spec := &sandbox.Spec{ID: "asked", Image: "host", Network: sandbox.Network{Egress: []string{"a.test"}, Plain: tt.plain}}
		if _, err := p.Create(t.Context(), spec); err == nil {
			t.Errorf("%s: a sandbox of a service that makes none", name)
		}
		if service.body["allow_internet_access"] != tt.internet || !reflect.DeepEqual(service.body["network"], tt.network) {
			t.Errorf("%s: asked for %v", name, service.body)
		}
		service.body, spec.Network.Plain = nil, nil
		if _, err = p.Create(t.Context(), spec); p.ErrorCode(err) != sandbox.CodeUnsupported || service.body != nil {
			t.Errorf("%s: rules without a translation: %v, %v", name, err, service.body)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
