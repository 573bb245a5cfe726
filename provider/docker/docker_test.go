//go:build docker

package docker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/sandbox"
)

// The daemon of the tests. TestMain sets these variables.
var (
	host string // its address
	bin  string // a static atoll, which serves as the guest
	api  *client.Client
)

// image is the test image, with busybox and the helper.
const image = "atoll-test"

// TestMain starts a Docker daemon with its own directory and socket.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) (code int) {
	dir, remove, err := scratch.Dir("atoll-docker-")
	if err == nil {
		defer func() { _ = remove() }()
		err = prepare(dir)
	}
	var daemon *servicetest.Docker
	if err == nil {
		daemon, err = servicetest.StartDocker(dir, "--bridge=none")
	}
	if err == nil {
		defer func() {
			if err := daemon.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stopping the daemon:", err)
				code = 1
			}
		}()
		host = daemon.Host
		if api, err = client.New(client.WithHost(host)); err == nil {
			err = daemon.Import(image, map[string]string{"bin/helper": filepath.Join(dir, "helper")}, "/bin/sh")
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// prepare builds the programs for the containers, unless make has.
func prepare(dir string) error {
	build := map[string]string{"helper": "./testdata/helper"}
	if bin = os.Getenv("ATOLL_BIN"); bin == "" {
		bin = filepath.Join(dir, "atoll")
		build["atoll"] = "../../cmd/atoll"
	}
	for name, pkg := range build {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// options returns the options of a provider that uses the daemon.
func options(dir string) docker.Options {
	return docker.Options{Dir: dir, Host: host, Image: image, Executable: bin}
}

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return docker.New(options(dir)) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Echo: []string{"/bin/helper"},
	})
}
