package e2b_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// opener opens providers, each with a service of its own.
func opener(t *testing.T) func(dir string) (driver.Provider, error) {
	s := serve(t)
	return func(dir string) (driver.Provider, error) { return e2b.New(s.options(dir)) }
}

func TestSession(t *testing.T) { hostedtest.Session(t, e2b.Name, opener(t)) }

func TestSaved(t *testing.T) { hostedtest.Saved(t, e2b.Name, opener(t)) }

func TestContext(t *testing.T) { hostedtest.Context(t, e2b.Name, opener(t)) }

func TestWorkspace(t *testing.T) { hostedtest.Workspace(t, e2b.Name, opener(t)) }

func TestHandover(t *testing.T) {
	s := serve(t)
	h := hostedtest.Handover{
		Name: e2b.Name, Unmarked: true, Open: func(dir string) (driver.Provider, error) { return e2b.New(s.options(dir)) },
		Other: func(dir string) (driver.Provider, error) {
			opts := s.options(dir)
			opts.Key = credential.New("E2B_API_KEY", "e2b_"+strings.Repeat("0", 40), "", "")
			return e2b.New(opts)
		},
		Count: func() int {
			out, err := s.command("ls", "--json").Output()
			if err != nil {
				t.Error(err)
			}
			return bytes.Count(out, []byte(`"id":`))
		},
	}
	h.Run(t)
}
