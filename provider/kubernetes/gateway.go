package kubernetes

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/netfiles"
	"github.com/atoll-run/atoll/sandbox"
)

// Admit returns the certificate of the authority that a sandbox trusts, in PEM, if
// the password is that of the sandbox and from is an address of its pod. Otherwise
// it is CodeDenied. Another error means that this is not known now.
type Admit func(ctx context.Context, id sandbox.ID, password string, from netip.Addr) (ca []byte, err error)

// OpenGateway lets sandboxes reach Atoll's egress gateway as an HTTP proxy at an
// address.
type OpenGateway func(at netip.AddrPort, admit Admit) (Gateway, error)

// Gateway is Atoll's egress gateway. It must be safe for concurrent use.
type Gateway interface {
	// Connect connects a sandbox, and returns the certificate that its programs must
	// trust, in PEM. ca is the one that they trust already. Nil: none.
	Connect(ctx context.Context, id sandbox.ID, ca []byte) ([]byte, error)
	// Disconnect ends the connections of a sandbox.
	Disconnect(id sandbox.ID)
	Close() error
}

// gateway is the use of Atoll's gateway by the sandboxes of one directory.
type gateway struct {
	dir  string
	at   netip.AddrPort // as pods reach it
	pods *peer          // the pods behind that address; nil: it is not a service
	open OpenGateway
	p    *Provider

	opening sync.Mutex
	served  Gateway // nil: not yet

	mu     sync.Mutex
	places map[string][]netip.Addr // the addresses of a sandbox
	closed bool
}

// newGateway returns the gateway that the options name. Nil: none.
func (p *Provider) newGateway() (*gateway, error) {
	o := &p.opts
	if o.Gateway == "" {
		if o.GatewayPods != "" {
			return nil, invalid(gatewayPodsEnv, "needs "+gatewayEnv, nil)
		}
		return nil, nil
	}
	g := &gateway{dir: filepath.Join(o.Dir, "gateway"), open: o.OpenGateway, p: p, places: map[string][]netip.Addr{}}
	var err error
	if g.at, err = netip.ParseAddrPort(o.Gateway); err != nil || g.at.Port() == 0 || g.at.Addr().IsUnspecified() || g.at.Addr().Zone() != "" {
		return nil, invalid(gatewayEnv, fmt.Sprintf("%q is not an address with a port, such as 10.0.0.5:7072", o.Gateway), nil)
	}
	if o.NetworkPolicy != Enforced {
		return nil, invalid(gatewayEnv, "needs "+policyEnv+"="+Enforced+": without it, sandboxes could go around the gateway", nil)
	}
	if o.GatewayPods != "" {
		if g.pods, err = parsePods(o.GatewayPods); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// parsePods reads NAMESPACE/LABEL=VALUE,...
func parsePods(text string) (*peer, error) {
	bad := invalid(gatewayPodsEnv, fmt.Sprintf("%q is not NAMESPACE/LABEL=VALUE, with one label or more", text), nil)
	namespace, labels, ok := strings.Cut(text, "/")
	if !ok || !usableName.MatchString(namespace) {
		return nil, bad
	}
	p := &peer{Namespace: &selector{map[string]string{"kubernetes.io/metadata.name": namespace}}, Pod: &selector{map[string]string{}}}
	for one := range strings.SplitSeq(labels, ",") {
		k, v, ok := strings.Cut(one, "=")
		if !ok || k == "" || v == "" {
			return nil, bad
		}
		p.Pod.Labels[k] = v
	}
	return p, nil
}

// rule lets a pod reach the gateway. A policy may be applied before or after the
// address of a service is replaced with that of its pod.
func (g *gateway) rule() egressRule {
	r := egressRule{To: []peer{block(netip.PrefixFrom(g.at.Addr(), g.at.Addr().BitLen()))}, Ports: []port{{Protocol: "TCP", Port: g.at.Port()}}}
	if g.pods != nil {
		r.To = append(r.To, *g.pods)
	}
	return r
}

// serve begins to listen, once.
func (g *gateway) serve() (Gateway, error) {
	g.opening.Lock()
	defer g.opening.Unlock()
	if g.served != nil {
		return g.served, nil
	}
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed || g.open == nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "network", Message: "there is no gateway here", Hint: "start a daemon with: atoll up"}
	}
	if _, err := g.key(); err != nil {
		return nil, err
	}
	served, err := g.open(g.at, g.admit)
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: gatewayEnv, Message: "the gateway cannot listen: " + err.Error(), Hint: "choose another port", Cause: err,
		}
	}
	g.served = served
	return served, nil
}

func (g *gateway) close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.opening.Lock()
	defer g.opening.Unlock()
	if g.served == nil {
		return nil
	}
	return g.served.Close()
}

// unfinished is how old a file is that is certainly no longer being written.
const unfinished = time.Minute

// sweep removes what killed processes left: files that they were writing, and the
// certificates of sandboxes without a record. A sandbox has a record before it has
// a certificate. What cannot be removed is left to the next start.
func (g *gateway) sweep() {
	files, _ := os.ReadDir(g.dir) // missing: nothing to do
	for _, f := range files {
		path := filepath.Join(g.dir, f.Name())
		if strings.HasPrefix(f.Name(), newPrefix) {
			if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > unfinished {
				_ = os.Remove(path)
			}
			continue
		}
		id, ok := strings.CutSuffix(f.Name(), ".crt")
		if _, known := g.p.Get(id); ok && !known {
			g.strip(id, path)
		}
	}
}

// strip removes the certificate of a sandbox, unless that has a record or another
// process makes it now.
func (g *gateway) strip(id, path string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // one try
	l, err := g.p.Lock(ctx, id)
	if err != nil {
		return
	}
	defer l.Unlock()
	if r := l.Read(); r.Binding == "" { // an empty record, which Lock has made
		_ = os.Remove(path)
		_ = l.Remove()
	}
}

const (
	keySize   = 32
	newPrefix = ".new-" // of files that are being written
)

// key returns the key of the passwords, and makes it if there is none.
func (g *gateway) key() ([]byte, error) {
	file := filepath.Join(g.dir, "key")
	key, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, keySize)
		_, _ = rand.Read(key) // never fails: it crashes the program instead
		if err = os.MkdirAll(g.dir, 0o700); err == nil {
			err = exclusive(file, key)
		}
		if errors.Is(err, fs.ErrExist) { // another process made it
			key, err = os.ReadFile(file)
		}
	}
	if err == nil && len(key) != keySize {
		err = errors.New("it is damaged")
	}
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: file, Message: "the key of the gateway's passwords cannot be used: " + err.Error(), Cause: err}
	}
	return key, nil
}

// exclusive writes a file that does not exist yet, completely or not at all.
func exclusive(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), newPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), file)
}

// password returns that of a sandbox and its pod.
func (g *gateway) password(id sandbox.ID, sb string) (string, error) {
	key, err := g.key()
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(string(id) + "\n" + sb))
	return hex.EncodeToString(h.Sum(nil)), nil
}

// certificate is the file with the authorities that the programs of a sandbox trust. It exists for
// every sandbox that uses the gateway.
func (g *gateway) certificate(id sandbox.ID) string { return filepath.Join(g.dir, string(id)+".crt") }

// uses reports whether a sandbox uses the gateway, and what its programs trust.
func (g *gateway) uses(id sandbox.ID) (ca []byte, used bool, err error) {
	ca, err = os.ReadFile(g.certificate(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return ca, err == nil, err
}

var errStranger = &sandbox.Error{Code: sandbox.CodeDenied, Subject: "network", Message: "this is not the password of a sandbox, or not from its pod"}

// admit is Admit.
func (g *gateway) admit(ctx context.Context, id sandbox.ID, password string, from netip.Addr) ([]byte, error) {
	r, known := g.p.Get(string(id))
	want, err := g.password(id, r.ServiceID)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(want), []byte(password)) != 1 || !known || r.ServiceID == "" || r.AdoptedElsewhere || r.Destroying {
		return nil, errStranger
	}
	ca, used, err := g.uses(id)
	if err != nil {
		return nil, err
	}
	places, err := g.placesOf(ctx, r.ServiceID)
	switch {
	case err == hosted.ErrNone || err == nil && (!used || !slices.Contains(places, from)):
		return nil, errStranger
	case err != nil:
		return nil, err
	}
	return ca, nil
}

// placesOf returns the addresses that connections of a pod come from: its own, and
// those of its node, whose network may translate them. A pod keeps its addresses.
func (g *gateway) placesOf(ctx context.Context, sb string) ([]netip.Addr, error) {
	g.mu.Lock()
	all := g.places[sb]
	g.mu.Unlock()
	if all != nil {
		return all, nil
	}
	p, err := g.p.api.get(ctx, sb)
	if err != nil {
		return nil, err
	}
	all = p.addresses()
	if len(p.Status.PodIPs) > 0 {
		g.mu.Lock()
		g.places[sb] = all
		g.mu.Unlock()
	}
	return all, nil
}

func (p *pod) addresses() (all []netip.Addr) {
	for _, ip := range slices.Concat(p.Status.PodIPs, p.Status.HostIPs, []address{{p.Status.HostIP}}) {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// connect connects a new sandbox. Its programs have not run yet.
func (g *gateway) connect(ctx context.Context, id sandbox.ID) error {
	served, err := g.serve()
	if err != nil {
		return err
	}
	ca, err := served.Connect(ctx, id, nil)
	if err != nil {
		return err
	}
	return exclusive(g.certificate(id), ca)
}

// forget disconnects a sandbox that has ended, or that does not use the gateway.
func (g *gateway) forget(id sandbox.ID) error {
	g.opening.Lock()
	served := g.served
	g.opening.Unlock()
	if served != nil {
		served.Disconnect(id)
	}
	r, _ := g.p.Get(string(id))
	g.mu.Lock()
	delete(g.places, r.ServiceID)
	g.mu.Unlock()
	if err := os.Remove(g.certificate(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// environment is that of the programs of a sandbox that uses the gateway.
func (g *gateway) environment(id sandbox.ID, sb string) (map[string]string, error) {
	password, err := g.password(id, sb)
	if err != nil {
		return nil, err
	}
	proxy := (&url.URL{Scheme: "http", User: url.UserPassword(string(id), password), Host: g.at.String()}).String()
	env := map[string]string{"NODE_USE_ENV_PROXY": "1"}
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env[name] = proxy
	}
	env["no_proxy"] = "localhost,127.0.0.1,::1"
	env["NO_PROXY"] = env["no_proxy"]
	netfiles.TrustEnv(env)
	return env, nil
}

// CanUseGateway implements driver.GatewayUser.
func (p *Provider) CanUseGateway() bool { return p.gateway != nil && p.gateway.open != nil }

// UsesGateway implements driver.GatewayUser.
func (p *Provider) UsesGateway(_ context.Context, id sandbox.ID) (bool, error) {
	if p.gateway == nil || sandbox.ValidateName(string(id)) != nil {
		return false, nil
	}
	_, used, err := p.gateway.uses(id)
	if err == nil && used {
		_, err = p.gateway.serve()
	}
	return used, err
}

// Close implements driver.Provider.
func (p *Provider) Close() error {
	err := p.Core.Close()
	if p.gateway != nil {
		err = cmp.Or(err, p.gateway.close())
	}
	return err
}

// Configure sends the guest the defaults of commands. With the gateway, they have
// its proxy, and the files of authorities have its authority.
func (in *Instance) Configure(ctx context.Context, d guest.Defaults) error {
	g := in.p.gateway
	if g == nil {
		return in.Instance.Configure(ctx, d)
	}
	ca, used, err := g.uses(in.ID())
	if err != nil || !used {
		return cmp.Or(err, in.Instance.Configure(ctx, d))
	}
	env, err := g.environment(in.ID(), in.Sandbox)
	if err != nil {
		return err
	}
	maps.Copy(env, d.Env)
	d.Env = env
	if err := in.Instance.Configure(ctx, d); err != nil {
		return err
	}
	return in.Use(ctx, false, func(ctx context.Context, c *guest.Client) error { return netfiles.Files{Client: c}.Trust(ctx, ca, "") })
}
