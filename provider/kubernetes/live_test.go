//go:build kubernetes

package kubernetes_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/kubernetes"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// live is a cluster, in which the test has a namespace of its own. The provider has
// the rights that the manifest grants, and no more.
type live struct {
	config, restricted, namespace string
	kubectlPath                   string
	image                         string
	kind                          string   // of the objects that sandboxes are
	pool                          string   // from which they are claimed
	class                         string   // RuntimeClass of pods, as in the options
	echo                          []string // nil: the image has Python
}

// kubectl runs the cluster's client.
func (l *live) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(l.kubectlPath, append([]string{"--kubeconfig", l.config, "--namespace", l.namespace}, args...)...).CombinedOutput()
	return string(out), err
}

func (l *live) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.kubectl(t, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// own prepares the node of make cluster: its files are in ATOLL_CLUSTER. The image
// has busybox and a program that echoes.
func (l *live) own(t *testing.T, dir string) {
	t.Helper()
	l.config, l.image, l.echo = filepath.Join(dir, "kubeconfig"), "localhost/atoll-test:1", []string{"/usr/bin/helper"}
	l.class = cmp.Or(l.class, "none") // runc
	path, err := os.ReadFile(filepath.Join(dir, "path"))
	if err != nil {
		need.Thing(t, "a cluster", "start one with make cluster, or set ATOLL_KUBECONFIG and ATOLL_KUBERNETES_IMAGE")
	}
	for _, place := range filepath.SplitList(strings.TrimSpace(string(path))) {
		if file := filepath.Join(place, "kubectl"); l.kubectlPath == "kubectl" && exec.Command(file, "version", "--client").Run() == nil {
			l.kubectlPath = file
		}
	}
	helper, fetch, archive := filepath.Join(t.TempDir(), "helper"), filepath.Join(t.TempDir(), "fetch"), filepath.Join(t.TempDir(), "image.tar")
	for _, argv := range [][]string{
		{"go", "build", "-buildvcs=false", "-o", helper, "../docker/testdata/helper"},
		{"go", "build", "-buildvcs=false", "-o", fetch, "./testdata/fetch"},
		{"../../build/scripts/cluster", "image", archive, l.image, "/bin/sh", helper, fetch},
		{"../../build/scripts/cluster", "load", dir, archive},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
		}
	}
}

func start(t *testing.T, kind string) *live {
	t.Helper()
	l := &live{
		kind: kind, class: os.Getenv("ATOLL_KUBERNETES_RUNTIME_CLASS"),
		config: os.Getenv("ATOLL_KUBECONFIG"), image: os.Getenv("ATOLL_KUBERNETES_IMAGE"), kubectlPath: "kubectl", namespace: "atoll-test-" + time.Now().UTC().Format("150405"),
	}
	if l.config == "" {
		l.own(t, os.Getenv("ATOLL_CLUSTER"))
	}
	text, err := os.ReadFile("../../build/deploy/kubernetes/provider-rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("atoll-sandboxes", l.namespace, "atoll-runtimes", l.namespace)
	manifest := filepath.Join(t.TempDir(), "rbac.yaml")
	if err := os.WriteFile(manifest, []byte(names.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	l.must(t, "apply", "--filename", manifest)
	t.Cleanup(func() { l.must(t, "delete", "--wait=false", "--filename", manifest) })
	l.restricted = l.as(t, l.must(t, "create", "token", "atoll"))
	return l
}

// as returns a kubeconfig of the cluster with a token.
func (l *live) as(t *testing.T, token string) string {
	t.Helper()
	view := func(field string) string {
		return l.must(t, "config", "view", "--raw", "--minify", "--flatten", "--output", "jsonpath={.clusters[0].cluster."+field+"}")
	}
	text := "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: '" + view("server") + "', certificate-authority-data: '" + view("certificate-authority-data") + "', tls-server-name: '" + view("tls-server-name") + "'}}]\n" +
		"users: [{name: u, user: {token: '" + token + "'}}]\n"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (l *live) options(dir string) kubernetes.Options {
	return kubernetes.Options{
		Dir: dir, Kubeconfig: l.restricted, Namespace: l.namespace, Image: l.image, NetworkPolicy: kubernetes.Enforced, Kind: l.kind, Pool: l.pool, RuntimeClass: l.class, Executable: os.Getenv("ATOLL_BIN"),
	}
}

func (l *live) open(dir string) (driver.Provider, error) { return kubernetes.New(l.options(dir)) }

// left returns what is left of sandboxes.
func (l *live) left(t *testing.T) string {
	t.Helper()
	what := "pods,networkpolicies"
	if l.kind == "Sandbox" {
		what += ",sandboxes.agents.x-k8s.io"
	}
	return l.must(t, "get", what, "--output", "name")
}

func TestLive(t *testing.T) { start(t, "Pod").run(t) }

// Sandboxes are objects of agent-sandbox, whose own controller makes their pods.
func TestLiveObjects(t *testing.T) {
	l := start(t, "Sandbox")
	if out, err := l.kubectl(t, "get", "sandboxes.agents.x-k8s.io"); err != nil && os.Getenv("ATOLL_KUBECONFIG") != "" {
		need.Thing(t, "agent-sandbox", "the cluster has none: "+out)
	}
	l.run(t)
}

// Sandboxes are claimed from a warm pool of agent-sandbox, whose own controller
// keeps it. Those that its template does not suit are made anew.
func TestLiveClaims(t *testing.T) {
	l := start(t, "Sandbox")
	if out, err := l.kubectl(t, "get", "sandboxwarmpools.extensions.agents.x-k8s.io"); err != nil && os.Getenv("ATOLL_KUBECONFIG") != "" {
		need.Thing(t, "agent-sandbox", "the cluster has no warm pools: "+out)
	}
	manifest := l.stock(t, "debian:12", l.image)
	ready := func() { t.Helper(); l.stocked(t) }
	dir := t.TempDir()
	p, err := l.open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if facts, err := p.Probe(t.Context()); err != nil || !facts.Available {
		t.Errorf("Probe: %+v, %v", facts, err)
	}
	claims := func() string { return l.must(t, "get", "sandboxclaims.extensions.agents.x-k8s.io", "--output", "name") }
	pod := func(id sandbox.ID) string {
		return l.must(t, "get", "pods", "--selector", "atoll.run/id="+string(id), "--output", "jsonpath={.items[*].metadata.name}")
	}
	spec := func(id sandbox.ID) *sandbox.Spec {
		return &sandbox.Spec{ID: id, Image: "host", Lifetime: sandbox.Lifetime{Timeout: time.Hour}, Labels: map[string]string{"k": "v"}}
	}
	begin := time.Now()
	in, err := p.Create(t.Context(), spec("sb-warm"))
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	if name := pod("sb-warm"); !strings.HasPrefix(name, "atoll-") || strings.Contains(name, "sb-warm") || claims() == "" {
		t.Errorf("the pod is %s, and the claims are %q", name, claims())
	}
	if got := hostedtest.Says(t, in, "echo kept >/kept; cat /kept"); got != "kept\n" {
		t.Errorf("it says %q", got)
	}
	other := *spec("sb-cold")
	other.Resources.Memory = 96 << 20
	begin = time.Now()
	cold, err := p.Create(t.Context(), &other)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("claimed in %v, made anew in %v", took, time.Since(begin))
	if name := pod("sb-cold"); !strings.Contains(name, "sb-cold") {
		t.Errorf("the pod of a sandbox that does not suit the pool is %s", name)
	}
	if err := cold.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	again, err := l.open(dir) // as after a restart
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if in, err = again.Attach(t.Context(), "sb-warm"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // the controller looks at it again
	if got := hostedtest.Says(t, in, "cat /kept"); got != "kept\n" {
		t.Errorf("after a restart it says %q", got)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := again.Attach(t.Context(), "sb-warm"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
	t.Run("removed by somebody", func(t *testing.T) {
		for what, remove := range map[string]func(id sandbox.ID){
			"pod":   func(id sandbox.ID) { l.must(t, "delete", "pod", pod(id)) },
			"claim": func(sandbox.ID) { l.must(t, "delete", "sandboxclaims.extensions.agents.x-k8s.io", "--all") },
			"object": func(id sandbox.ID) {
				l.must(t, "delete", "sandboxes.agents.x-k8s.io", pod(id))
				l.must(t, "wait", "--for=delete", "--timeout=1m", "pods", "--selector", "atoll.run/id="+string(id))
			},
		} {
			ready()
			id := sandbox.ID("sb-no-" + what)
			in, err := p.Create(t.Context(), spec(id))
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			remove(id)
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
				_, err := p.Attach(t.Context(), id)
				if p.ErrorCode(err) == sandbox.CodeGone {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("%s: Attach: %v, want gone", what, err)
					break
				}
			}
			if err := in.Destroy(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("suspended", func(t *testing.T) {
		ready()
		l.suspended(t, p, "sb-suspended-claim")
	})
	t.Run("conformance", func(t *testing.T) {
		drivertest.Run(t, drivertest.Harness{
			New:  func(context.Context) (driver.Provider, error) { return l.open(dir) },
			Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
			Echo: l.echo, Slow: true, Parallel: true, Only: []string{"lifecycle", "errors", "exec", "files"},
		})
	})
	l.must(t, "delete", "--filename", manifest)
	if left := claims(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// stock makes the warm pool of the manifest, in which pairs of strings are replaced.
// It returns the file that was applied.
func (l *live) stock(t *testing.T, replace ...string) (manifest string) {
	t.Helper()
	text, err := os.ReadFile("../../build/deploy/kubernetes/warm-pool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest = filepath.Join(t.TempDir(), "pool.yaml")
	if err := os.WriteFile(manifest, []byte(strings.NewReplacer(replace...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	l.must(t, "apply", "--filename", manifest)
	l.stocked(t)
	l.pool = "atoll"
	return manifest
}

// stocked waits until the warm pool has its pods.
func (l *live) stocked(t *testing.T) {
	t.Helper()
	l.must(t, "wait", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=3m", "sandboxwarmpools.extensions.agents.x-k8s.io/atoll")
}

// suspended suspends a sandbox's object and resumes it. Meanwhile the sandbox is
// lost. What the controller makes afterwards has none of its files, so it is gone.
func (l *live) suspended(t *testing.T, p driver.Provider, id sandbox.ID) {
	t.Helper()
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: id, Image: "host", Labels: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	hostedtest.Says(t, in, "echo kept >/kept")
	pod := func(field string) string {
		return l.must(t, "get", "pods", "--selector", "atoll.run/id="+string(id), "--output", "jsonpath={.items[*].metadata."+field+"}")
	}
	name, uid := pod("name"), pod("uid")
	mode := func(mode string) {
		l.must(t, "patch", "sandboxes.agents.x-k8s.io", name, "--type=merge", "--patch", `{"spec": {"operatingMode": "`+mode+`"}}`)
	}
	mode("Suspended")
	l.must(t, "wait", "--for=delete", "--timeout=1m", "pods/"+name)
	if state, err := p.(driver.StateTeller).State(t.Context(), id); state != sandbox.Lost || err != nil {
		t.Errorf("State: %s, %v, want lost", state, err)
	}
	var found *driver.Found
	for f, err := range p.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if f.ID == id {
			found = &f
		}
	}
	if found == nil || found.State != sandbox.Lost || found.Labels["k"] != "v" {
		t.Errorf("List: %+v, want lost", found)
	}
	if in, err = p.Attach(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Exec: %v, want unavailable", err)
	}
	mode("Running")
	l.must(t, "wait", "--for=create", "--timeout=1m", "pods/"+name)
	l.must(t, "wait", "--for=condition=Ready", "--timeout=1m", "pods/"+name)
	now := l.must(t, "get", "pods/"+name, "--output", "jsonpath={.metadata.uid}")
	if out, err := l.kubectl(t, "exec", name, "--", "ls", "/kept"); now == uid || err == nil {
		t.Errorf("the resumed object has the pod %s, and was %s; its file: %s", now, uid, out)
	}
	if _, err := p.Attach(t.Context(), id); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Pods with gVisor as their RuntimeClass, which is the one that the provider takes if
// no other is named: they have gVisor's kernel, and everything else works as with runc.
func TestLiveGvisor(t *testing.T) {
	l := start(t, "Pod")
	l.class = ""
	if out, err := l.kubectl(t, "get", "runtimeclass", "gvisor"); err != nil {
		if os.Getenv("ATOLL_KUBECONFIG") == "" {
			t.Fatal(out)
		}
		need.Thing(t, "gVisor", "the cluster has no RuntimeClass gvisor: "+out)
	}
	p, err := l.open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if facts, err := p.Probe(t.Context()); err != nil || !facts.Available || facts.Isolation != sandbox.IsolationKernel {
		t.Errorf("Probe: %s, %+v, %v; want kernel", facts.Isolation, facts.Findings, err)
	}
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-gvisor", Image: "host", Isolation: sandbox.IsolationKernel})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.must(t, "get", "pods", "--selector", "atoll.run/id=sb-gvisor", "--output", "jsonpath={.items[*].spec.runtimeClassName}"); got != "gvisor" {
		t.Errorf("the pod has the RuntimeClass %q, want gvisor", got)
	}
	if got := hostedtest.Says(t, in, "uname -r; dmesg"); !strings.Contains(got, "-gvisor\n") || !strings.Contains(got, "Starting gVisor...") {
		t.Errorf("the kernel that a program sees is not gVisor: %s", got)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	t.Run("memory", func(t *testing.T) { // of the pod, of which gVisor's kernel is a part
		in, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-full", Image: "host", Resources: sandbox.Resources{Memory: 128 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		// The pod may end before it is known that the program runs.
		if proc, err := in.Exec(t.Context(), &sandbox.Command{Shell: "dd if=/dev/zero of=/dev/null bs=400M count=1"}); err == nil {
			if exit, err := proc.Wait(t.Context()); err == nil {
				t.Errorf("a program that uses more memory than the sandbox has: %+v", exit)
			}
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			_, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"})
			if p.ErrorCode(err) == sandbox.CodeConflict && strings.Contains(err.Error(), "OOMKilled") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("Exec: %v, and the pod is %s", err, l.must(t, "get", "pods", "--output", "jsonpath={.items[*].status}"))
			}
		}
		if state, err := p.(driver.StateTeller).State(t.Context(), "sb-full"); state != sandbox.Failed || err != nil {
			t.Errorf("State: %s, %v, want failed", state, err)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if l.echo != nil {
		t.Run("egress", l.egress)
	}
	l.run(t)
}

// A sandbox is claimed from a warm pool whose pods run with gVisor, and not from one
// whose pods do not.
func TestLiveGvisorClaims(t *testing.T) {
	l := start(t, "Sandbox")
	l.class = "gvisor"
	for _, what := range []string{"runtimeclass/gvisor", "sandboxwarmpools.extensions.agents.x-k8s.io"} {
		if out, err := l.kubectl(t, "get", what); err != nil {
			if os.Getenv("ATOLL_KUBECONFIG") == "" {
				t.Fatal(out)
			}
			need.Thing(t, "gVisor and agent-sandbox", "the cluster lacks one of them: "+out)
		}
	}
	for _, suits := range []bool{false, true} {
		class := "# runtimeClassName: gvisor"
		if suits {
			class = "runtimeClassName: gvisor"
		}
		manifest := l.stock(t, "debian:12", l.image, "# runtimeClassName: gvisor", class)
		p, err := l.open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		in, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-claim", Image: "host", Isolation: sandbox.IsolationKernel})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.must(t, "get", "sandboxclaims.extensions.agents.x-k8s.io", "--output", "name"); (got != "") != suits {
			t.Errorf("the claims are %q; the pool suits: %v", got, suits)
		}
		if got := hostedtest.Says(t, in, "uname -r"); !strings.HasSuffix(got, "-gvisor\n") {
			t.Errorf("the kernel is %s", got)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		_ = p.Close()
		l.must(t, "delete", "--filename", manifest)
	}
}

// Sandboxes reach what their policies permit and nothing else, and nothing reaches
// them.
func TestLiveEgress(t *testing.T) { start(t, "Pod").egress(t) }

func (l *live) egress(t *testing.T) {
	t.Helper()
	listen, reach := "nc -ll -p 8080 -e true & nc -ll -p 8081 -e true", "nc -w 2 %s %s </dev/null"
	if l.echo == nil {
		if os.Getenv("ATOLL_KUBERNETES_NETWORK_POLICY") != kubernetes.Enforced {
			need.Thing(t, "a cluster that enforces policies", "if this one does, set ATOLL_KUBERNETES_NETWORK_POLICY=enforced")
		}
		listen = "python3 -m http.server 8080 & python3 -m http.server 8081"
		reach = "python3 -c 'import socket; socket.create_connection((\"%s\", %s), 2)'"
	}
	l.must(t, "run", "server", "--image", l.image, "--image-pull-policy", "IfNotPresent", "--restart", "Never", "--command", "--", "/bin/sh", "-c", listen)
	defer l.must(t, "delete", "pod", "server", "--now")
	l.must(t, "wait", "--for=condition=Ready", "--timeout=1m", "pod/server")
	ip := func(pod string) string { return l.must(t, "get", "pod", pod, "--output", "jsonpath={.status.podIP}") }
	address, server := ip("server"), l.must(t, "get", "service", "kubernetes", "--namespace", "default", "--output", "jsonpath={.spec.clusterIP}")
	prefix, err := netip.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// The first attempts may be earlier than the plugin, which learns of a pod's
	// address when it has one.
	want := func(what string, reachable bool, try func() bool) {
		t.Helper()
		begin := time.Now()
		for n := 1; ; n++ {
			if try() == reachable {
				t.Logf("%s: %v, at attempt %d", what, reachable, n)
				return
			}
			if time.Since(begin) > 30*time.Second {
				t.Errorf("%s: %v, want %v", what, !reachable, reachable)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	only := []sandbox.EgressTarget{{Prefix: netip.PrefixFrom(prefix, prefix.BitLen()), Ports: []sandbox.PortRange{{Low: 8080, High: 8080}}}}
	for name, tt := range map[string]struct {
		rules            *sandbox.EgressRules
		first, next, api bool
	}{
		"open":    {&sandbox.EgressRules{Open: true}, true, true, true},
		"one":     {&sandbox.EgressRules{Allow: only}, true, false, false},
		"nothing": {&sandbox.EgressRules{}, false, false, false},
		"none":    {nil, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			id := sandbox.ID("sb-egress-" + name)
			in, err := p.Create(t.Context(), &sandbox.Spec{ID: id, Image: "host", Network: sandbox.Network{Plain: tt.rules}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := in.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			try := func(host, port string) func() bool {
				return func() bool {
					return strings.Contains(hostedtest.Says(t, in, "("+fmt.Sprintf(reach, host, port)+") >/dev/null 2>&1 && echo reached; :"), "reached")
				}
			}
			want("port 8080", tt.first, try(address, "8080"))
			want("port 8081", tt.next, try(address, "8081"))
			want("the API server", tt.api, try(server, "443"))
			hostedtest.Says(t, in, "("+strings.ReplaceAll(listen, "808", "909")+") >/dev/null 2>&1 &")
			pod := l.must(t, "get", "pods", "--selector", "atoll.run/id="+string(id), "--output", "jsonpath={.items[*].metadata.name}")
			want("itself", true, try("127.0.0.1", "9090"))
			want("from the server", false, func() bool {
				_, err := l.kubectl(t, "exec", "server", "--", "/bin/sh", "-c", fmt.Sprintf(reach, ip(pod), "9090"))
				return err == nil
			})
		})
	}
}

// The pod has the RuntimeClass of the options, whose handler decides what the
// provider says of its isolation. A class that the cluster does not have is refused.
func TestLiveRuntimeClass(t *testing.T) {
	l := start(t, "Pod")
	manifest := filepath.Join(t.TempDir(), "classes.yaml")
	class := func(handler string) string { return l.namespace + "-" + handler }
	var text strings.Builder
	for _, handler := range []string{"runc", "runsc", "kata"} {
		fmt.Fprintf(&text, "---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: %s\n", class(handler), handler)
	}
	if err := os.WriteFile(manifest, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	l.must(t, "apply", "--filename", manifest)
	defer l.must(t, "delete", "--filename", manifest)
	open := func(name string) driver.Provider {
		o := l.options(t.TempDir())
		o.RuntimeClass = name
		p, err := kubernetes.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	for handler, want := range map[string]sandbox.Isolation{"runc": sandbox.IsolationNone, "runsc": sandbox.IsolationKernel, "kata": sandbox.IsolationHardware} {
		if facts, err := open(class(handler)).Probe(t.Context()); err != nil || !facts.Available || facts.Isolation != want {
			t.Errorf("Probe with the handler %s: %s, %+v, %v; want %s", handler, facts.Isolation, facts.Findings, err, want)
		}
	}
	p := open(class("runc"))
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-class", Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.must(t, "get", "pods", "--selector", "atoll.run/id=sb-class", "--output", "jsonpath={.items[*].spec.runtimeClassName}"); got != class("runc") {
		t.Errorf("the pod has the RuntimeClass %q, want %q", got, class("runc"))
	}
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-class-kernel", Image: "host", Isolation: sandbox.IsolationKernel}); p.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Errorf("Create with more isolation than the class gives: %v, want unsupported", err)
	}
	missing := open(class("missing"))
	if _, err := missing.Create(t.Context(), &sandbox.Spec{ID: "sb-class-missing", Image: "host"}); missing.ErrorCode(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), class("missing")) {
		t.Errorf("Create with a missing class: %v, want not found", err)
	}
	if facts, err := missing.Probe(t.Context()); err != nil || facts.Available {
		t.Errorf("Probe with a missing class: %+v, %v", facts, err)
	}
	if left := l.left(t); left != "" {
		t.Errorf("left: %s", left)
	}
}

func (l *live) run(t *testing.T) {
	dir := t.TempDir()
	t.Run("conformance", func(t *testing.T) {
		h := drivertest.Harness{
			New:  func(context.Context) (driver.Provider, error) { return l.open(dir) },
			Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
			Echo: l.echo, Slow: true, Parallel: true,
		}
		if testing.Short() {
			h.Only = []string{"capabilities", "lifecycle", "errors", "exec", "output", "signals", "files"}
		}
		drivertest.Run(t, h)
	})
	if left := l.left(t); left != "" {
		t.Errorf("left: %s", left)
	}
	p, err := l.open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if facts, err := p.Probe(t.Context()); err != nil || !facts.Available {
		t.Errorf("Probe: %+v, %v", facts, err)
	}
	spec := func(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Image: "host"} }
	pod := func(id sandbox.ID) string {
		return l.must(t, "get", "pods", "--selector", "atoll.run/id="+string(id), "--output", "jsonpath={.items[*].metadata.name}")
	}
	gone := func(t *testing.T, id sandbox.ID) {
		t.Helper()
		if _, err := p.Attach(t.Context(), id); p.ErrorCode(err) != sandbox.CodeGone {
			t.Errorf("Attach: %v, want gone", err)
		}
	}
	// These wait for the cluster most of the time, so they do so together. Each has its
	// own sandbox, which the others do not touch.
	t.Run("sandboxes", func(t *testing.T) { l.cases(t, p, spec, pod, gone) })
	t.Run("quota", func(t *testing.T) {
		l.must(t, "create", "quota", "none", "--hard=pods=0")
		defer l.must(t, "delete", "quota", "none", "--ignore-not-found")
		for deadline := time.Now().Add(30 * time.Second); !strings.Contains(l.must(t, "get", "quota", "none", "--output", "jsonpath={.status.hard}"), "pods"); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the quota has no effect")
			}
		}
		if _, err := p.Create(t.Context(), spec("sb-quota")); p.ErrorCode(err) != sandbox.CodeExhausted {
			t.Errorf("Create: %v, want exhausted", err)
		}
		l.must(t, "create", "quota", "limits", "--hard=limits.memory=1Gi")
		defer l.must(t, "delete", "quota", "limits")
		l.must(t, "delete", "quota", "none")
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) { // until both are noticed
			in, err := p.Create(t.Context(), spec("sb-quota"))
			if p.ErrorCode(err) == sandbox.CodeInvalid && strings.Contains(err.Error(), "must specify limits.memory") {
				break
			}
			if err == nil {
				err = in.Destroy(t.Context())
			}
			if time.Now().After(deadline) {
				t.Fatalf("Create: %v, want that the quota needs a limit", err)
			}
		}
	})
	if left := l.left(t); left != "" {
		t.Errorf("left: %s", left)
	}
}

// cases runs what the conformance suite does not, each case with its own sandbox.
func (l *live) cases(t *testing.T, p driver.Provider, spec func(sandbox.ID) *sandbox.Spec, pod func(sandbox.ID) string, gone func(*testing.T, sandbox.ID)) {
	t.Helper()
	t.Run("no image", func(t *testing.T) {
		t.Parallel()
		s := spec("sb-image")
		s.Image = "localhost/none:1"
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeNotFound {
			t.Errorf("Create: %v, want not found", err)
		}
	})
	t.Run("no room", func(t *testing.T) {
		t.Parallel()
		s := spec("sb-large")
		s.Resources.Memory = 1 << 44
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeExhausted || !strings.Contains(err.Error(), "nsufficient memory") {
			t.Errorf("Create: %v, want exhausted", err)
		}
	})
	t.Run("removed by somebody", func(t *testing.T) {
		t.Parallel()
		in, err := p.Create(t.Context(), spec("sb-removed"))
		if err != nil {
			t.Fatal(err)
		}
		l.must(t, "delete", "pod", pod("sb-removed"))
		gone(t, "sb-removed")
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if l.kind == "Sandbox" {
		t.Run("suspended", func(t *testing.T) {
			t.Parallel()
			l.suspended(t, p, "sb-suspended")
			in, err := p.Create(t.Context(), spec("sb-suspended-removed"))
			if err != nil {
				t.Fatal(err)
			}
			l.must(t, "patch", "sandboxes.agents.x-k8s.io", pod("sb-suspended-removed"), "--type=merge", "--patch", `{"spec": {"operatingMode": "Suspended"}}`)
			l.must(t, "wait", "--for=delete", "--timeout=1m", "pods", "--selector", "atoll.run/id=sb-suspended-removed")
			if err := in.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			gone(t, "sb-suspended-removed")
		})
	}
	t.Run("ended inside", func(t *testing.T) {
		t.Parallel()
		in, err := p.Create(t.Context(), spec("sb-ended"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = l.kubectl(t, "exec", pod("sb-ended"), "--", "/bin/sh", "-c", "kill -TERM 1") // it may be killed, too
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			state, err := p.(driver.StateTeller).State(t.Context(), "sb-ended")
			if state == sandbox.Failed {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("State: %s, %v, want failed", state, err)
			}
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		gone(t, "sb-ended")
	})
	t.Run("evicted", func(t *testing.T) {
		t.Parallel()
		s := spec("sb-evicted")
		s.Resources.Disk = 256 << 20 // the guest needs a part of it
		in, err := p.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		hostedtest.Says(t, in, "head -c 400000000 /dev/zero >/large") // gVisor has /tmp in memory
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
			_, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"})
			if p.ErrorCode(err) == sandbox.CodeConflict && strings.Contains(err.Error(), "Evicted") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("Exec: %v, and the pod is %s", err, l.must(t, "get", "pods", "--output", "jsonpath={.items[*].status}"))
			}
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		gone(t, "sb-evicted")
	})
	t.Run("session", func(t *testing.T) { t.Parallel(); hostedtest.Session(t, kubernetes.Name, l.open) })
	t.Run("ctx.sandbox", func(t *testing.T) { t.Parallel(); hostedtest.Context(t, kubernetes.Name, l.open) })
	t.Run("another pod of the name", func(t *testing.T) {
		t.Parallel()
		in, err := p.Create(t.Context(), spec("sb-twin"))
		if err != nil {
			t.Fatal(err)
		}
		name := pod("sb-twin")
		if l.kind == "Sandbox" {
			l.must(t, "delete", "sandboxes.agents.x-k8s.io", name)
		}
		l.must(t, "delete", "pod", name, "--ignore-not-found")
		l.must(t, "run", name, "--image", l.image, "--image-pull-policy", "IfNotPresent", "--restart", "Never", "--command", "--", "sleep", "600")
		l.must(t, "wait", "--for=condition=Ready", "pod/"+name)
		gone(t, "sb-twin")
		if _, err := in.Exec(t.Context(), &sandbox.Command{Shell: "true"}); p.ErrorCode(err) != sandbox.CodeGone {
			t.Errorf("Exec: %v, want gone", err)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := p.Create(t.Context(), spec("sb-twin")); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
			t.Errorf("Create: %v, want already exists", err)
		}
		l.must(t, "delete", "pod", name, "--now")
	})
	t.Run("taken over", func(t *testing.T) {
		t.Parallel()
		if _, err := p.Create(t.Context(), spec("sb-taken")); err != nil {
			t.Fatal(err)
		}
		other, err := l.open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.(driver.Adopter).Adopt(t.Context(), spec("sb-taken")); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Attach(t.Context(), "sb-taken"); !errors.Is(err, driver.ErrElsewhere) {
			t.Errorf("Attach by the first: %v", err)
		}
		in, err := other.Attach(t.Context(), "sb-taken")
		if err != nil {
			t.Fatal(err)
		}
		if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
			t.Errorf("it says %q", got)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("wrong token", func(t *testing.T) {
		t.Parallel()
		o := l.options(t.TempDir())
		o.Kubeconfig = l.as(t, "wrong")
		other, err := kubernetes.New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := other.Attach(t.Context(), "sb-none"); other.ErrorCode(err) != sandbox.CodeUnauthorized {
			t.Errorf("Attach: %v, want unauthorized", err)
		}
		if facts, err := other.Probe(t.Context()); err != nil || facts.Available {
			t.Errorf("Probe: %+v, %v", facts, err)
		}
	})
}
