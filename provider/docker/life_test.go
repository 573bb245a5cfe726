//go:build docker

package docker_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/sandbox"
)

func open(t *testing.T, opts docker.Options) *docker.Provider {
	t.Helper()
	p, err := docker.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func create(t *testing.T, p *docker.Provider, spec sandbox.Spec) driver.Instance {
	t.Helper()
	if spec.Image == "" {
		spec.Image = "host"
	}
	in, err := p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return in
}

// shell runs a script and returns its output.
func shell(t *testing.T, in driver.Instance, script string) string {
	t.Helper()
	p, err := in.Exec(t.Context(), &sandbox.Command{Shell: script})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// containers lists the daemon's containers with a sandbox's ID.
func containers(t *testing.T, id string) []container.Summary {
	t.Helper()
	res, err := api.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", "run.atoll.id="+id)})
	if err != nil {
		t.Fatal(err)
	}
	return res.Items
}

// forwarder returns an address at which serve gets the requests to the daemon.
func forwarder(t *testing.T, serve func(w http.ResponseWriter, r *http.Request, daemon http.Handler)) string {
	t.Helper()
	daemon := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	daemon.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(host, "unix://"))
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(w, r, daemon) }))
	t.Cleanup(server.Close)
	return "tcp://" + strings.TrimPrefix(server.URL, "http://")
}

// The daemon creates a container and its answer is lost. The container must be
// found, and there must be no second one.
func TestLostAnswer(t *testing.T) {
	var lost atomic.Int32
	opts := options(t.TempDir())
	opts.Host = forwarder(t, func(w http.ResponseWriter, r *http.Request, daemon http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			daemon.ServeHTTP(httptest.NewRecorder(), r)
			lost.Add(1)
			panic(http.ErrAbortHandler)
		}
		daemon.ServeHTTP(w, r)
	})
	in := create(t, open(t, opts), sandbox.Spec{ID: "lost-1"})
	if got := shell(t, in, "echo here"); got != "here" {
		t.Errorf("the sandbox says %q", got)
	}
	if n := len(containers(t, "lost-1")); lost.Load() != 1 || n != 1 {
		t.Errorf("%d answers were lost and there are %d containers, want 1 and 1", lost.Load(), n)
	}
}

// A container has no network unless all egress is allowed, no variables of the
// spec in its configuration, and the requested limits.
func TestContainer(t *testing.T) {
	p := open(t, options(t.TempDir()))
	in := create(t, p, sandbox.Spec{
		ID: "plain-1", Env: map[string]string{"TOKEN": "hush"}, Labels: map[string]string{"team": "blue"},
		Resources: sandbox.Resources{Memory: 64 << 20, CPUs: 0.5, PIDs: 100},
	})
	res, err := api.ContainerInspect(t.Context(), containers(t, "plain-1")[0].ID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(res.Raw), "hush") {
		t.Error("the daemon knows the value of a variable")
	}
	h := res.Container.HostConfig
	if h.NetworkMode != "none" || h.Privileged || h.Memory != 64<<20 || h.MemorySwap != 64<<20 || h.CPUQuota*2 != h.CPUPeriod || *h.PidsLimit < 100 {
		t.Errorf("the container is made with %+v", h)
	}
	if got := shell(t, in, `echo $TOKEN; ls /sys/class/net`); got != "hush\nlo" {
		t.Errorf("inside: %q, want the variable, and lo only", got)
	}
	opts := options(t.TempDir())
	opts.Network = "host" // this daemon has no bridge
	connected := create(t, open(t, opts), sandbox.Spec{ID: "open-1", Network: sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}})
	if got := shell(t, connected, `ls /proc/sys/net/ipv4/conf`); !strings.Contains(got, "lo") {
		t.Errorf("an open sandbox: %q", got)
	}
	if c := containers(t, "open-1")[0]; c.HostConfig.NetworkMode != "host" {
		t.Errorf("the network of an open sandbox is %q", c.HostConfig.NetworkMode)
	}
}

// A container that is killed is not destroyed: it stays listed until Destroy.
func TestKilled(t *testing.T) {
	p := open(t, options(t.TempDir()))
	in := create(t, p, sandbox.Spec{ID: "killed-1"})
	c := containers(t, "killed-1")[0]
	if _, err := api.ContainerKill(t.Context(), c.ID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	exit, err := in.Wait(t.Context())
	if err != nil || exit.Reason != sandbox.ReasonCrashed {
		t.Errorf("Wait: %+v, %v; want crashed", exit, err)
	}
	for f, err := range p.List(t.Context()) {
		if err != nil || f.State != sandbox.Failed || f.Exit == nil || f.Exit.Code != 137 {
			t.Errorf("List shows %+v, %v", f, err)
		}
	}
	again, err := p.Attach(t.Context(), "killed-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Exec: %v, want gone", err)
	}
	if err := again.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := p.Attach(t.Context(), "killed-1"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach after Destroy: %v, want gone", err)
	}
}

// Commands use the image's settings unless the spec sets them.
func TestImageDefaults(t *testing.T) {
	made, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Image: image, Config: &container.Config{Cmd: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = api.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{}) }()
	_, err = api.ContainerCommit(t.Context(), made.ID, client.ContainerCommitOptions{
		Reference: "atoll-test-defaults", Changes: []string{"ENV FROM=image", "ENV BOTH=image", "USER nobody", "WORKDIR /tmp"},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, options(t.TempDir()))
	in := create(t, p, sandbox.Spec{ID: "defaults-1", Image: "atoll-test-defaults", Env: map[string]string{"BOTH": "spec"}})
	if got := shell(t, in, `echo $FROM $BOTH $(id -un) $PWD`); got != "image spec nobody /tmp" {
		t.Errorf("inside: %q", got)
	}
}

// Repeated connections leave no processes behind.
func TestReconnecting(t *testing.T) {
	opts := options(t.TempDir())
	in := create(t, open(t, opts), sandbox.Spec{ID: "again-1"})
	count := func(in driver.Instance) int { return strings.Count(shell(t, in, "ps -o args"), "guest-") }
	before := count(in)
	for range 5 {
		p := open(t, opts)
		again, err := p.Attach(t.Context(), "again-1")
		if err != nil {
			t.Fatal(err)
		}
		shell(t, again, "true")
		again.(*docker.Instance).Disconnect()
	}
	for deadline := time.Now().Add(20 * time.Second); count(in) > before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d processes of the guest, and %d before:\n%s", count(in), before, shell(t, in, "ps"))
		}
	}
}

// An image that the daemon cannot pull leaves nothing behind.
func TestMissingImage(t *testing.T) {
	p := open(t, options(t.TempDir()))
	_, err := p.Create(t.Context(), &sandbox.Spec{ID: "missing-1", Image: "127.0.0.1:1/nothing:here"})
	if err == nil || !strings.Contains(err.Error(), "cannot be pulled") {
		t.Errorf("Create: %v", err)
	}
	if left := containers(t, "missing-1"); len(left) != 0 {
		t.Errorf("a container is left: %+v", left)
	}
}

// A sandbox whose image lacks a shell is refused with a reason.
func TestUnusableImage(t *testing.T) {
	p := open(t, options(t.TempDir()))
	made, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Image: image, Config: &container.Config{Cmd: []string{"rm", "/bin/sh"}}})
	if err == nil {
		_, err = api.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = api.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
	}()
	done := api.ContainerWait(t.Context(), made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-done.Result:
	case err := <-done.Error:
		t.Fatal(err)
	}
	if _, err := api.ContainerCommit(t.Context(), made.ID, client.ContainerCommitOptions{Reference: "atoll-test-bare"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "bare-1", Image: "atoll-test-bare"}); err == nil {
		t.Error("a sandbox was made of an image without a shell")
	}
	if left := containers(t, "bare-1"); len(left) != 0 {
		t.Errorf("a container is left: %+v", left)
	}
}
