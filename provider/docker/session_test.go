//go:build docker

package docker_test

import (
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

func opened(dir string) (driver.Provider, error) { return docker.New(options(dir)) }

func TestSession(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin) // kernels run from it
	hostedtest.Session(t, docker.Name, opened)
}

func TestSaved(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	hostedtest.Saved(t, docker.Name, opened)
}

func TestContext(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	hostedtest.Context(t, docker.Name, opened)
}

func TestSessionMovesWhileAClientWrites(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	hostedtest.Writer(t, docker.Name, opened)
}
