package e2b_test

import (
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// opener opens providers that use a service of their own.
func opener(t *testing.T) func(dir string) (driver.Provider, error) {
	s := serve(t)
	return func(dir string) (driver.Provider, error) { return e2b.New(s.options(dir)) }
}

func TestSession(t *testing.T) { hostedtest.Session(t, e2b.Name, opener(t)) }

func TestSaved(t *testing.T) { hostedtest.Saved(t, e2b.Name, opener(t)) }

func TestContext(t *testing.T) { hostedtest.Context(t, e2b.Name, opener(t)) }

func TestWorkspace(t *testing.T) { hostedtest.Workspace(t, e2b.Name, opener(t)) }
