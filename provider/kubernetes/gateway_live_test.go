//go:build kubernetes

package kubernetes_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/gateway/proxy"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/kubernetes"
	"github.com/atoll-run/atoll/sandbox"
)

// machine is the address of this machine for the pods of make cluster.
const machine = "10.231.0.1"

// withGateway has Atoll's own gateway, and what it decided.
type withGateway struct {
	*live
	g  *gateway.Gateway
	at netip.AddrPort

	mu       sync.Mutex
	policies map[sandbox.ID]gateway.Policy
	events   []string
}

func (l *withGateway) open(dir string) (driver.Provider, error) {
	o := l.options(dir)
	o.Gateway = l.at.String()
	o.OpenGateway = func(at netip.AddrPort, admit kubernetes.Admit) (kubernetes.Gateway, error) {
		return proxy.Open(proxy.Options{Listen: at, Admit: proxy.Admit(admit), Link: func(ctx context.Context, id sandbox.ID, known gateway.Known) (*gateway.Link, error) {
			l.mu.Lock()
			policy := l.policies[id]
			l.mu.Unlock()
			return l.g.Connect(ctx, id, policy, known)
		}})
	}
	return kubernetes.New(o)
}

// decided returns the decisions about a sandbox so far.
func (l *withGateway) decided(t *testing.T) string {
	t.Helper()
	if err := l.g.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.events, "\n")
}

// node runs a command on the node of make cluster.
func node(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command("../../build/scripts/cluster", append([]string{"run", os.Getenv("ATOLL_CLUSTER")}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// A sandbox whose rules have names and credentials uses Atoll's gateway, and cannot
// go around it or use the rules of another.
func TestLiveGateway(t *testing.T) {
	for _, kind := range []string{"Pod", "Sandbox", "Claim"} {
		t.Run(kind, func(t *testing.T) { throughGateway(t, kind) })
	}
}

// throughGateway runs the test with pods that the provider makes, that an object
// makes, or that are claimed from a warm pool.
func throughGateway(t *testing.T, kind string) {
	t.Helper()
	if os.Getenv("ATOLL_KUBECONFIG") != "" {
		need.Thing(t, "the node of make cluster", "set ATOLL_CLUSTER instead of ATOLL_KUBECONFIG")
	}
	claimed := kind == "Claim"
	if claimed {
		kind = "Sandbox"
	}
	l := &withGateway{live: start(t, kind), policies: map[sandbox.ID]gateway.Policy{}}
	manifest := ""
	if claimed {
		manifest = l.stock(t, "debian:12", l.image)
	}
	const secret = "credential-0123456789"
	var seen sync.Map // by path: the credential of the last request
	outside := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.URL.Path, r.Header.Get("Authorization"))
		fmt.Fprint(w, "hello from outside")
	}))
	_ = outside.Listener.Close()
	listener, err := net.Listen("tcp", machine+":0")
	if err != nil {
		t.Fatal(err)
	}
	outside.Listener = listener
	outside.StartTLS()
	t.Cleanup(outside.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: outside.Certificate().Raw})
	address := netip.MustParseAddr(machine)
	l.g, err = gateway.New(gateway.Options{
		Dir: t.TempDir(), Executable: os.Getenv("ATOLL_BIN"),
		Settings: func() gateway.Settings {
			return gateway.Settings{
				Hosts: map[string][]netip.Addr{"example.com": {address}, "b.example.com": {address}}, Roots: roots, Private: []netip.Prefix{netip.PrefixFrom(address, 32)},
			}
		},
		Event: func(id sandbox.ID, e gateway.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, fmt.Sprintf("%s %s %s %s %s", id, e.Verdict, e.Kind, e.Host, e.Rule))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.g.Close() })
	free, err := net.Listen("tcp", machine+":0")
	if err != nil {
		t.Fatal(err)
	}
	l.at = netip.MustParseAddrPort(free.Addr().String())
	_ = free.Close()
	rule := func(name, host string) sandbox.Rule {
		return sandbox.Rule{
			Name: name, Action: sandbox.Allow, Hosts: []string{host + ":" + port}, Methods: []string{"GET"},
			Inject: []sandbox.Injection{{Secret: "token", Mode: sandbox.InjectBearer}},
		}
	}
	policy := func(r sandbox.Rule) gateway.Policy {
		return gateway.Policy{Profile: sandbox.Profile{Rules: []sandbox.Rule{r}}, Secrets: []messages.Secret{{Name: "token", Value: []byte(secret)}}}
	}
	l.policies["sb-a"], l.policies["sb-b"] = policy(rule("only-a", "example.com")), policy(rule("only-b", "b.example.com"))

	dir := t.TempDir()
	p, err := l.open(dir)
	if err != nil {
		t.Fatal(err)
	}
	create := func(id sandbox.ID) driver.Instance {
		in, err := p.Create(t.Context(), &sandbox.Spec{ID: id, Image: "host", Network: sandbox.Network{Egress: []string{"example.com"}}})
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	a, b := create("sb-a"), create("sb-b")
	if all := l.must(t, "get", "pods", "--selector", "atoll.run/id", "--output", "jsonpath={.items[*].metadata.name}"); claimed && (len(strings.Fields(all)) != 2 || strings.Contains(all, "sb-")) {
		t.Errorf("the pods %s are not those of the warm pool", all)
	}
	good, other := "https://example.com:"+port+"/", "https://b.example.com:"+port+"/"
	// The first attempts may be earlier than the plugin.
	want := func(in driver.Instance, script, text string) {
		t.Helper()
		begin := time.Now()
		for n := 1; ; n++ {
			got := hostedtest.Says(t, in, script)
			if strings.Contains(got, text) {
				t.Logf("%s: %s: %q, at attempt %d", in.ID(), script, strings.TrimSpace(got), n)
				return
			}
			if time.Since(begin) > 30*time.Second {
				t.Errorf("%s: %s: %q, want %q", in.ID(), script, got, text)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	want(a, "fetch "+good+"a", "200 hello from outside")
	want(b, "fetch "+other+"b", "200 hello from outside")
	for _, path := range []string{"/a", "/b"} {
		if got, _ := seen.Load(path); got != "Bearer "+secret {
			t.Errorf("the server saw the credential %v", got)
		}
	}
	want(a, "fetch "+other, "Forbidden")
	want(b, "fetch "+good, "Forbidden")
	want(a, "fetch "+strings.Replace(good, "example.com", machine, 1), "failed")
	if all := l.decided(t); !strings.Contains(all, "sb-a allowed http example.com only-a") || !strings.Contains(all, "sb-a denied dns b.example.com") {
		t.Errorf("the gateway decided:\n%s", all)
	}
	for _, where := range []string{hostedtest.Says(t, a, "env; cat /etc/atoll/* /proc/[0-9]*/environ; true"), l.must(t, "get", "pods,networkpolicies", "--output", "json")} {
		if strings.Contains(where, secret) || len(where) < 100 {
			t.Errorf("the credential is in the pod: %s", where)
		}
	}

	t.Run("around the gateway", func(t *testing.T) {
		direct := "nc -w 2 " + machine + " " + port + " </dev/null >/dev/null 2>&1 && echo reached || echo stopped"
		want(a, direct, "stopped")
		l.must(t, "delete", "networkpolicies", "--selector", "atoll.run/id=sb-b")
		want(b, direct, "reached") // it was the policy that stopped it
		want(a, direct, "stopped")
	})
	t.Run("as another sandbox", func(t *testing.T) {
		// As in most clusters, the gateway sees the addresses of pods.
		node(t, "iptables", "-t", "nat", "-I", "POSTROUTING", "-d", machine, "-j", "ACCEPT")
		defer node(t, "iptables", "-t", "nat", "-D", "POSTROUTING", "-d", machine, "-j", "ACCEPT")
		of := func(in driver.Instance) string { return strings.TrimSpace(hostedtest.Says(t, in, "echo $https_proxy")) }
		with := func(proxy string) string { return "https_proxy=" + proxy + " HTTPS_PROXY=" + proxy + " fetch " }
		want(b, "fetch "+other, "200 hello from outside")
		want(b, with(of(a))+good, "Proxy Authentication Required")
		want(b, with(strings.Replace(of(b), "sb-b", "sb-a", 1))+good, "Proxy Authentication Required")
		want(b, with("http://"+l.at.String())+good, "Proxy Authentication Required")
		want(a, "fetch "+good, "200 hello from outside")
	})
	t.Run("another policy", func(t *testing.T) {
		denied := l.policies["sb-a"]
		denied.Profile.Rules = nil
		if err := l.g.SetPolicy(t.Context(), "sb-a", denied); err != nil {
			t.Fatal(err)
		}
		want(a, "fetch "+good, "Forbidden")
	})
	t.Run("restart", func(t *testing.T) {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if p, err = l.open(dir); err != nil {
			t.Fatal(err)
		}
		if used, err := p.(driver.GatewayUser).UsesGateway(t.Context(), "sb-a"); err != nil || !used {
			t.Fatalf("UsesGateway: %v, %v", used, err)
		}
		if a, err = p.Attach(t.Context(), "sb-a"); err != nil {
			t.Fatal(err)
		}
		want(a, "fetch "+good+"again", "200 hello from outside") // with the certificate that it trusts
		if b, err = p.Attach(t.Context(), "sb-b"); err != nil {
			t.Fatal(err)
		}
	})
	for _, in := range []driver.Instance{a, b} {
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "gateway", string(in.ID())+".crt")); err == nil {
			t.Errorf("%s still has the gateway", in.ID())
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if claimed {
		l.must(t, "delete", "--cascade=foreground", "--filename", manifest)
		l.must(t, "wait", "--for=delete", "--timeout=1m", "pods", "--all")
	}
	if left := l.left(t); left != "" {
		t.Errorf("left: %s", left)
	}
}
