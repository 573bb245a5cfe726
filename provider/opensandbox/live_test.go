//go:build docker

package opensandbox_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/opensandbox"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/opensandbox"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	liveKey = "live-0123456789"
	// bridge is the network of the containers.
	bridge, gateway = "atollosb0", "172.31.79.1/24"
	image           = "atoll-test"
)

// live is the real server of the Python package opensandbox-server. It makes
// containers with a Docker daemon that the test starts. Only execd is ours.
type live struct {
	docker *servicetest.Docker
	addr   string
}

// startLive starts a server whose sidecars filter in this mode.
func startLive(t *testing.T, mode string) *live {
	t.Helper()
	python, err := servicetest.Python(t.Context(), "testdata/server.txt")
	if errors.Is(err, servicetest.ErrUnavailable) {
		need.Thing(t, "a package index", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	run := func(env []string, name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	must("a bridge", run(nil, "ip", "link", "add", bridge, "type", "bridge"))
	t.Cleanup(func() { must("removing the bridge", run(nil, "ip", "link", "del", bridge)) })
	must("an address", run(nil, "ip", "addr", "add", gateway, "dev", bridge))
	must("the bridge", run(nil, "ip", "link", "set", bridge, "up"))
	l := &live{}
	l.docker, err = servicetest.StartDocker(dir, "--bridge="+bridge)
	must("dockerd", err)
	t.Cleanup(func() { must("stopping dockerd", l.docker.Stop()) })
	execd, echo := filepath.Join(dir, "execd"), filepath.Join(dir, "helper")
	for file, pkg := range map[string]string{execd: "./testdata/execd", echo: "../docker/testdata/helper"} {
		must("building "+pkg, run([]string{"CGO_ENABLED=0"}, "go", "build", "-buildvcs=false", "-o", file, pkg))
	}
	must("image", l.docker.Import(image, map[string]string{"bin/helper": echo}, "/bin/sh"))
	must("image", l.docker.Import("execd", map[string]string{"execd": execd, "bootstrap.sh": "testdata/execd/bootstrap.sh"}, "/bin/sh"))
	must("image", l.docker.Import("egress", map[string]string{"execd": execd}, "ip route del default; exec /execd egress"))

	port, err := net.Listen("tcp", "127.0.0.1:0")
	must("a port", err)
	l.addr = port.Addr().String()
	_, number, _ := net.SplitHostPort(l.addr)
	must("a port", port.Close())
	config := filepath.Join(dir, "config.toml")
	must("configuration", os.WriteFile(config, []byte(strings.Join([]string{
		"[server]", `host = "127.0.0.1"`, "port = " + number, `api_key = "` + liveKey + `"`, "max_sandbox_timeout_seconds = 7200",
		"[runtime]", `type = "docker"`, `execd_image = "execd:latest"`,
		"[egress]", `image = "egress:latest"`, `mode = "` + mode + `"`,
		"[docker]", `network_mode = "bridge"`, `publish_host = "127.0.0.1"`,
		"[store]", `type = "sqlite"`, `path = "` + filepath.Join(dir, "store.db") + `"`,
	}, "\n")), 0o600))
	log, err := os.Create(filepath.Join(dir, "server.log"))
	must("log", err)
	server := exec.Command(python, "-m", "opensandbox_server.cli", "--config", config)
	server.Env = append(os.Environ(), "DOCKER_HOST="+l.docker.Host, "HOME="+dir, "NO_PROXY=*")
	server.Stdout, server.Stderr = log, log
	must("the server", server.Start())
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the server said: %s", text[max(0, len(text)-20_000):])
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); ; {
		res, err := http.Get("http://" + l.addr + "/health")
		if err == nil {
			_ = res.Body.Close()
			return l
		}
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server has ended: %v\n%s", err, text)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
}

func (l *live) open(dir string) (driver.Provider, error) {
	return opensandbox.New(opensandbox.Options{Image: image + ":latest", Connection: hosted.Connection{
		Dir: dir, URL: l.addr, Key: credential.New("OPEN_SANDBOX_API_KEY", liveKey, "", ""), Executable: os.Getenv("ATOLL_BIN"),
		Transport: hostedtest.Transport(),
	}})
}

// left returns the containers that are left.
func (l *live) left(t *testing.T) string {
	t.Helper()
	out, err := l.docker.Run(nil, "ps", "--all", "--format", "{{.Names}}")
	if err != nil {
		t.Error(err)
	}
	return out
}

// main returns the container of the only sandbox, beside its sidecar.
func (l *live) main(t *testing.T) string {
	t.Helper()
	for name := range strings.FieldsSeq(l.left(t)) {
		if strings.HasPrefix(name, "sandbox-") && !strings.HasPrefix(name, "sandbox-egress") {
			return name
		}
	}
	t.Fatalf("there is no sandbox: %s", l.left(t))
	return ""
}

// TestLive uses the real server.
func TestLive(t *testing.T) {
	l := startLive(t, service.Strict)
	dir := t.TempDir()
	t.Run("conformance", func(t *testing.T) {
		h := drivertest.Harness{
			New:  func(context.Context) (driver.Provider, error) { return l.open(dir) },
			Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
			Echo: []string{"/bin/helper"}, Patience: 5 * time.Minute,
		}
		if testing.Short() {
			h.Only = []string{"capabilities", "lifecycle", "errors", "exec", "output", "signals", "files", "snapshot", "restore"}
		}
		drivertest.Run(t, h)
	})
	p, err := l.open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	t.Run("wrong key", func(t *testing.T) {
		other, err := opensandbox.New(opensandbox.Options{Connection: hosted.Connection{
			Dir: t.TempDir(), URL: l.addr, Key: credential.New("OPEN_SANDBOX_API_KEY", "wrong", "", ""),
		}})
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
	t.Run("paused", func(t *testing.T) {
		s := hostedtest.Spec("sb-paused")
		suite.Bounded(s) // it may reach one name
		s.Resources.Memory = 256 << 20
		in, err := p.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		hostedtest.Says(t, in, "echo kept >/root/note")
		for _, what := range []string{"pause", "kill"} {
			if out, err := l.docker.Run(nil, what, l.main(t)); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if what == "kill" {
				if state, err := p.(driver.StateTeller).State(t.Context(), s.ID); state != sandbox.Failed {
					t.Errorf("State of one that was killed: %s, %v", state, err)
				}
				continue
			}
			if state, err := p.(driver.StateTeller).State(t.Context(), s.ID); err != nil || state != sandbox.Paused {
				t.Errorf("State: %s, %v", state, err)
			}
			resumer, _ := driver.As[driver.Resumer](in)
			if err := resumer.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := hostedtest.Says(t, in, "cat /root/note"); got != "kept\n" {
				t.Errorf("it says %q", got)
			}
			if out, err := l.docker.Run(nil, "inspect", "--format", "{{.HostConfig.Memory}}", l.main(t)); err != nil || strings.TrimSpace(out) != "268435456" {
				t.Errorf("its memory: %s, %v", out, err)
			}
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := p.Attach(t.Context(), s.ID); p.ErrorCode(err) != sandbox.CodeGone {
			t.Errorf("Attach: %v, want gone", err)
		}
	})
	t.Run("taken over", func(t *testing.T) {
		s := hostedtest.Spec("sb-taken")
		s.Network = sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}} // without a sidecar
		if _, err := p.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		other, err := l.open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.(driver.Adopter).Adopt(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Attach(t.Context(), s.ID); !errors.Is(err, driver.ErrElsewhere) {
			t.Errorf("Attach by the first: %v", err)
		}
		in, err := other.Attach(t.Context(), s.ID)
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
	if left := l.left(t); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}

// A server that filters names only is refused, and nothing is left there.
func TestLiveNamesOnly(t *testing.T) {
	l := startLive(t, "dns")
	p, err := l.open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Create(t.Context(), hostedtest.Spec("sb-filtered")); p.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Errorf("Create: %v, want unsupported", err)
	}
	if left := l.left(t); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}
