package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// fakeGateway records what a provider asks of the gateway.
type fakeGateway struct {
	mu     sync.Mutex
	at     netip.AddrPort
	admit  Admit
	has    map[sandbox.ID]bool
	closed int
}

func (f *fakeGateway) open(at netip.AddrPort, admit Admit) (Gateway, error) {
	f.at, f.admit, f.has = at, admit, map[sandbox.ID]bool{}
	return f, nil
}

func (f *fakeGateway) Connect(_ context.Context, id sandbox.ID, _ []byte) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has[id] = true
	return []byte("certificate"), nil
}

func (f *fakeGateway) Disconnect(id sandbox.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.has, id)
}

func (f *fakeGateway) Close() error {
	f.closed++
	return nil
}

func (s *server) openGateway(t *testing.T, dir string, f *fakeGateway) *Provider {
	return s.open(t, dir, func(o *Options) { o.Gateway, o.OpenGateway = "10.0.0.5:7072", f.open })
}

func TestGatewayOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Options)
		words  string // of the error; empty: none
	}{
		"none":              {func(*Options) {}, ""},
		"an address":        {func(o *Options) { o.Gateway = "10.0.0.5:7072" }, ""},
		"IPv6":              {func(o *Options) { o.Gateway = "[fd00::5]:7072" }, ""},
		"a service":         {func(o *Options) { o.Gateway, o.GatewayPods = "10.96.0.9:7072", "atoll/app=control,kind=a" }, ""},
		"a name":            {func(o *Options) { o.Gateway = "gateway.example:7072" }, "not an address with a port"},
		"no port":           {func(o *Options) { o.Gateway = "10.0.0.5" }, "not an address with a port"},
		"port 0":            {func(o *Options) { o.Gateway = "10.0.0.5:0" }, "not an address with a port"},
		"everything":        {func(o *Options) { o.Gateway = "0.0.0.0:7072" }, "not an address with a port"},
		"no policies":       {func(o *Options) { o.Gateway, o.NetworkPolicy = "10.0.0.5:7072", "" }, "could go around the gateway"},
		"pods alone":        {func(o *Options) { o.GatewayPods = "atoll/app=control" }, "needs " + gatewayEnv},
		"pods of all":       {func(o *Options) { o.Gateway, o.GatewayPods = "10.0.0.5:7072", "atoll/" }, "not NAMESPACE/LABEL=VALUE"},
		"pods of no space":  {func(o *Options) { o.Gateway, o.GatewayPods = "10.0.0.5:7072", "app=control" }, "not NAMESPACE/LABEL=VALUE"},
		"pods with a wrong": {func(o *Options) { o.Gateway, o.GatewayPods = "10.0.0.5:7072", "atoll/app" }, "not NAMESPACE/LABEL=VALUE"},
	} {
		o := Options{Dir: t.TempDir(), Kubeconfig: write(t, t.TempDir(), "config", []byte(config("server: https://127.0.0.1:1", "token: "+secretToken))), NetworkPolicy: Enforced}
		tt.change(&o)
		p, err := New(o)
		if tt.words == "" && err != nil || tt.words != "" && (sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.words)) {
			t.Errorf("%s: %v, want %q", name, err, tt.words)
		}
		if err == nil {
			if set := p.EgressAbility().GatewaySetting; (set == gatewayEnv) == (o.Gateway != "") || p.CanUseGateway() {
				t.Errorf("%s: the setting to name is %q, and it can use one: %v", name, set, p.CanUseGateway())
			}
			_ = p.Close()
		}
	}
}

// A pod that uses the gateway reaches nothing else, and what a policy can express
// needs no gateway.
func TestGatewayPolicy(t *testing.T) {
	egress := sandbox.Network{Egress: []string{"example.com"}}
	plain := egress
	plain.Plain = &sandbox.EgressRules{}
	for name, tt := range map[string]struct {
		network sandbox.Network
		pods    string
		want    string
	}{
		"names":      {egress, "", `"egress":[{"ports":[{"protocol":"TCP","port":7072}],"to":[{"ipBlock":{"cidr":"10.0.0.5/32"}}]}],`},
		"expressed":  {plain, "", ``},
		"no network": {sandbox.Network{}, "", ``},
		"a service": {egress, "atoll/app=control", `"egress":[{"ports":[{"protocol":"TCP","port":7072}],"to":[{"ipBlock":{"cidr":"10.0.0.5/32"}},` +
			`{"podSelector":{"matchLabels":{"app":"control"}},"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"atoll"}}}]}],`},
	} {
		t.Run(name, func(t *testing.T) {
			s, f := serve(t), &fakeGateway{}
			p := s.open(t, t.TempDir(), func(o *Options) { o.Gateway, o.GatewayPods, o.OpenGateway = "10.0.0.5:7072", tt.pods, f.open })
			var made policy
			s.before = func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/networkpolicies"):
					text, _ := io.ReadAll(r.Body)
					_ = json.Unmarshal(text, &made)
					_, _ = w.Write(text)
				case r.Method == http.MethodPost: // the pod is never made
					refuse(w, 403, "Forbidden", "exceeded quota")
				default:
					return false
				}
				return true
			}
			if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb", Network: tt.network}); sandbox.CodeOf(err) != sandbox.CodeExhausted {
				t.Fatal(err)
			}
			text, err := json.Marshal(made.Spec.Egress)
			got := ""
			if len(made.Spec.Egress) > 0 {
				got = `"egress":` + string(text) + `,`
			}
			if err != nil || got != tt.want || len(made.Spec.Types) != 2 {
				t.Errorf("%s, %v\nwant %s", got, err, tt.want)
			}
			if used, err := p.UsesGateway(t.Context(), "sb"); used || err != nil {
				t.Errorf("what was not made uses the gateway: %v", err)
			}
		})
	}
}

// Only a sandbox itself may use its rules, from its own pod, while that exists.
func TestGatewayAdmits(t *testing.T) {
	s, f, dir := serve(t), &fakeGateway{}, t.TempDir()
	p := s.openGateway(t, dir, f)
	for i, id := range []sandbox.ID{"sb-a", "sb-b", "sb-ended"} {
		made := s.made(t, p, id)
		made.Status.PodIPs, made.Status.HostIPs = []address{{"10.1.0." + string(rune('1'+i))}, {"fd00::1"}}, []address{{"10.9.0.1"}}
		if err := p.gateway.connect(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	s.made(t, p, "sb-plain").Status.PodIPs = []address{{"10.1.0.9"}}
	ended, _ := p.Get("sb-ended")
	delete(s.pods, split(ended.ServiceID).name)
	password := func(id sandbox.ID) string {
		r, _ := p.Get(string(id))
		text, err := p.gateway.password(id, r.ServiceID)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if f.at != netip.MustParseAddrPort("10.0.0.5:7072") || !f.has["sb-a"] {
		t.Fatalf("it listens at %v for %v", f.at, f.has)
	}
	for name, tt := range map[string]struct {
		id       sandbox.ID
		password string
		from     string
		ok       bool
	}{
		"itself":                  {"sb-a", password("sb-a"), "10.1.0.1", true},
		"by IPv6":                 {"sb-a", password("sb-a"), "fd00::1", true},
		"translated by its node":  {"sb-a", password("sb-a"), "10.9.0.1", true},
		"the other":               {"sb-b", password("sb-b"), "10.1.0.2", true},
		"with another's password": {"sb-b", password("sb-a"), "10.1.0.2", false},
		"as another":              {"sb-a", password("sb-b"), "10.1.0.2", false},
		"another's credential":    {"sb-a", password("sb-a"), "10.1.0.2", false},
		"no password":             {"sb-a", "", "10.1.0.1", false},
		"part of one":             {"sb-a", password("sb-a")[:10], "10.1.0.1", false},
		"unknown":                 {"sb-none", password("sb-none"), "10.1.0.1", false},
		"its pod has ended":       {"sb-ended", password("sb-ended"), "10.1.0.3", false},
		"without the gateway":     {"sb-plain", password("sb-plain"), "10.1.0.9", false},
	} {
		ca, err := f.admit(t.Context(), tt.id, tt.password, netip.MustParseAddr(tt.from))
		if (err == nil) != tt.ok || tt.ok && string(ca) != "certificate" || !tt.ok && sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("%s: %q, %v", name, ca, err)
		}
	}
	// A pod that got the name later is not the sandbox.
	old := password("sb-b")
	r, _ := p.Get("sb-b")
	s.pods[split(r.ServiceID).name].Meta.UID = "other"
	s.record(t, p, "sb-b", hosted.Record{ServiceID: split(r.ServiceID).name + "/other"})
	if _, err := f.admit(t.Context(), "sb-b", old, netip.MustParseAddr("10.1.0.2")); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("the password of an earlier pod: %v", err)
	}
	// What cannot be asked is no refusal, and no admission.
	down := s.made(t, p, "sb-down")
	down.Status.PodIPs = []address{{"10.1.0.7"}}
	if err := p.gateway.connect(t.Context(), "sb-down"); err != nil {
		t.Fatal(err)
	}
	s.before = func(w http.ResponseWriter, _ *http.Request) bool {
		refuse(w, 403, "Forbidden", "not now")
		return true
	}
	if _, err := f.admit(t.Context(), "sb-down", password("sb-down"), netip.MustParseAddr("10.1.0.7")); err == nil || err == error(errStranger) {
		t.Errorf("without the API server: %v", err)
	}
	s.before = nil
}

// The gateway is used until the sandbox has ended, and after a restart.
func TestGatewayEnds(t *testing.T) {
	s, f, dir := serve(t), &fakeGateway{}, t.TempDir()
	p := s.openGateway(t, dir, f)
	made := s.made(t, p, "sb-a")
	if err := p.gateway.connect(t.Context(), "sb-a"); err != nil {
		t.Fatal(err)
	}
	env, err := p.gateway.environment("sb-a", made.Meta.sandboxID())
	if proxy := env["https_proxy"]; err != nil || !strings.HasPrefix(proxy, "http://sb-a:") || !strings.HasSuffix(proxy, "@10.0.0.5:7072") || env["SSL_CERT_FILE"] == "" {
		t.Errorf("%v, %v", env, err)
	}
	again := &fakeGateway{}
	other := s.openGateway(t, dir, again)
	if used, err := other.UsesGateway(t.Context(), "sb-b"); used || err != nil || again.admit != nil {
		t.Errorf("another sandbox: %v, %v", used, err)
	}
	if used, err := other.UsesGateway(t.Context(), "sb-a"); !used || err != nil || again.admit == nil {
		t.Errorf("after a restart: %v, %v", used, err)
	}
	if now, err := other.gateway.environment("sb-a", made.Meta.sandboxID()); err != nil || now["https_proxy"] != env["https_proxy"] {
		t.Errorf("the password is another one: %v", err)
	}
	delete(s.pods, made.Meta.Name)
	if err := p.api.Clear(t.Context(), "sb-a", true); err != nil {
		t.Fatal(err)
	}
	if used, err := p.UsesGateway(t.Context(), "sb-a"); used || err != nil || f.has["sb-a"] {
		t.Errorf("after its end: %v, %v", used, err)
	}
	if err := p.Close(); err != nil || f.closed != 1 {
		t.Errorf("closed %d times, %v", f.closed, err)
	}
	if used, err := p.UsesGateway(t.Context(), "sb-a"); used || err != nil {
		t.Errorf("after Close: %v, %v", used, err)
	}
	if files, err := os.ReadDir(p.gateway.dir); err != nil || len(files) != 1 {
		t.Errorf("left: %v, %v", files, err)
	}
}

// A process that was killed may leave certificates of sandboxes that are no longer
// known, and files that it was writing. The next one removes them, and nothing else.
func TestGatewayDied(t *testing.T) {
	s, dir := serve(t), t.TempDir()
	p := s.openGateway(t, dir, &fakeGateway{})
	for _, id := range []sandbox.ID{"sb-lives", "sb-over", "sb-unknown"} {
		s.made(t, p, id)
		if err := p.gateway.connect(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	// Its lifetime ended while there was no daemon, so long ago that its record goes.
	r, _ := p.Get("sb-over")
	r.Ends = time.Now().Add(-48 * time.Hour)
	s.record(t, p, "sb-over", r)
	if err := os.Remove(p.Path("sb-unknown")); err != nil {
		t.Fatal(err)
	}
	now, before := filepath.Join(p.gateway.dir, ".new-1"), filepath.Join(p.gateway.dir, ".new-2")
	write(t, p.gateway.dir, ".new-1", []byte("cert"))
	write(t, p.gateway.dir, ".new-2", []byte("cert"))
	if err := os.Chtimes(before, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	// Another process is about to make a sandbox.
	l, err := p.Lock(t.Context(), "sb-now")
	if err != nil {
		t.Fatal(err)
	}
	write(t, p.gateway.dir, "sb-now.crt", []byte("certificate"))

	again := s.openGateway(t, dir, &fakeGateway{})
	l.Unlock()
	var left []string
	files, err := os.ReadDir(again.gateway.dir)
	for _, f := range files {
		left = append(left, f.Name())
	}
	if want := []string{filepath.Base(now), "key", "sb-lives.crt", "sb-now.crt"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left: %q, %v; want %q", left, err, want)
	}
	if used, err := again.UsesGateway(t.Context(), "sb-lives"); !used || err != nil {
		t.Errorf("the living one uses the gateway: %v, %v", used, err)
	}
	if ids := again.IDs(); slices.Contains(ids, "sb-over") || slices.Contains(ids, "sb-unknown") {
		t.Errorf("records: %q", ids)
	}
}

// A process that is killed when the certificate is written, and before the sandbox
// is complete, leaves a record with it, by which the next one removes both.
func TestGatewayKilled(t *testing.T) {
	s, dir, copied := serve(t), t.TempDir(), t.TempDir()
	p := s.openGateway(t, dir, &fakeGateway{})
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if _, err := os.Stat(p.gateway.certificate("sb")); err == nil && strings.HasSuffix(r.URL.Path, "/exec") {
			_ = os.CopyFS(filepath.Join(copied, "dir"), os.DirFS(dir)) // an existing copy is the one to keep
		}
		return false
	}
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb", Network: sandbox.Network{Egress: []string{"example.com"}}}); err == nil {
		t.Fatal("made without a guest")
	}
	s.before = nil
	again := s.openGateway(t, filepath.Join(copied, "dir"), &fakeGateway{})
	if used, err := again.UsesGateway(t.Context(), "sb"); !used || err != nil {
		t.Fatalf("it uses the gateway: %v, %v", used, err)
	}
	r, _ := again.Get("sb")
	if err := again.Erase(t.Context(), "sb", r.ServiceID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(again.gateway.certificate("sb")); err == nil {
		t.Error("the certificate is left")
	}
}

// A claimed pod uses the gateway as one that was made does: its policy is there
// before it is claimed and selects it, its password is that of its pod, and nothing
// is left of it.
func TestClaimGateway(t *testing.T) {
	s, f, dir := withPool(t), &fakeGateway{}, t.TempDir()
	p := s.open(t, dir, func(o *Options) { o.Pool, o.Gateway, o.OpenGateway = "warm", "10.0.0.5:7072", f.open })
	var limits policy
	var selected, certified bool
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/networkpolicies"):
			if len(s.pool.claims) > 0 {
				t.Error("the policy is later than the claim")
			}
			text, _ := io.ReadAll(r.Body)
			_ = json.Unmarshal(text, &limits)
			_, _ = w.Write(text)
		case strings.HasSuffix(r.URL.Path, "/exec"):
			name := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, root+"/pods/"), "/exec")
			_, err := os.Stat(p.gateway.certificate("sb"))
			certified = err == nil
			for label, value := range limits.Spec.Pods.Labels {
				selected = strings.HasPrefix(name, "pool-") && s.pods[name].Meta.Labels[label] == value
			}
			return false
		default:
			return false
		}
		return true
	}
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb", Image: "image", Network: sandbox.Network{Egress: []string{"example.com"}}}); err == nil {
		t.Fatal("made without a guest")
	}
	s.before = nil
	if len(limits.Spec.Egress) != 1 || len(limits.Spec.Egress[0].To) != 1 || limits.Spec.Egress[0].To[0].Block.CIDR != "10.0.0.5/32" || !selected || !certified {
		t.Errorf("the policy is %+v, selects the pod: %v; the certificate is there: %v", limits.Spec, selected, certified)
	}
	s.nothingLeft(t)
	if used, err := p.UsesGateway(t.Context(), "sb"); used || err != nil || f.has["sb"] {
		t.Errorf("what was not made uses the gateway: %v", err)
	}

	made := s.claimed(t, p, "sb")
	s.pods[made.Meta.Name].Status.PodIPs = []address{{"10.1.0.1"}}
	if err := p.gateway.connect(t.Context(), "sb"); err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddr("10.1.0.1")
	r, _ := p.Get("sb")
	password, err := p.gateway.password("sb", r.ServiceID)
	if err != nil || !strings.Contains(r.ServiceID, made.Meta.UID) {
		t.Fatalf("the service's ID is %q, %v; want one with the UID of the pod", r.ServiceID, err)
	}
	if ca, err := f.admit(t.Context(), "sb", password, from); err != nil || string(ca) != "certificate" {
		t.Errorf("its own: %q, %v", ca, err)
	}
	if other, _ := p.gateway.password("sb", strings.Replace(r.ServiceID, made.Meta.UID, "other", 1)); sandbox.CodeOf(second(f.admit(t.Context(), "sb", other, from))) != sandbox.CodeDenied {
		t.Error("the password of another pod is taken")
	}
	in, err := p.Attach(t.Context(), "sb")
	if err == nil {
		err = in.Destroy(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.nothingLeft(t)
	if used, err := p.UsesGateway(t.Context(), "sb"); used || err != nil || f.has["sb"] {
		t.Errorf("after its end: %v, %v", used, err)
	}
	if err := second(f.admit(t.Context(), "sb", password, from)); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("the password after its end: %v", err)
	}
}

func second(_ []byte, err error) error { return err }
