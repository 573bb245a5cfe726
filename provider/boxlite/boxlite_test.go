package boxlite_test

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/boxlite"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	boxesPath = "/v1/" + service.Prefix + "/boxes"
	boxPath   = boxesPath + "/*"
	invalid   = `{"error":{"code":"invalid_argument","type":"InvalidArgumentError","message":"no"}}`
	busy      = `{"error":{"code":"invalid_state","type":"InvalidStateError","message":"box is stopping"}}`
	refusal   = `{"error":{"code":"x","message":"TEXT"}}`
)

// volumes is a directory for the volumes of all fakes.
var volumes = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "volumes-")
	if err != nil {
		panic(err)
	}
	return dir
})

var suite = hostedtest.Suite[*boxlite.Provider, *service.Server]{
	Name: boxlite.Name, Saves: true, Rests: true, Keyless: true, Unrecorded: true, Restarts: true,
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing, volumes())
		s.AddKey("blk_live_other", "other")
		return s
	},
	Open: func(dir string, env func(string) string) (*boxlite.Provider, error) {
		opts := boxlite.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return boxlite.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"BOXLITE_API_KEY": service.Key, "BOXLITE_REST_URL": url}
	},
	Secret: service.Key, Other: map[string]string{"BOXLITE_API_KEY": "blk_live_other"},
	Bounded:   func(s *sandbox.Spec) { s.Resources.Memory, s.Lifetime.Timeout = 256<<20, time.Hour },
	Sandboxes: boxesPath, Sandbox: boxPath, Inside: boxPath + "/exec", Absent: boxPath, Looks: 1,
	NotFound: `{"error":{"code":"not_found","type":"NotFoundError","message":"box not found"}}`, Invalid: invalid, Changing: busy, Nothing: `{"boxes":[]}`,
	Renamed: [2]string{`"box_id":"`, `"box_id":"0`}, Refusal: refusal,
	Statuses: map[string]sandbox.State{
		"running": sandbox.Running, "configured": sandbox.Paused, "stopping": sandbox.Paused, "stopped": sandbox.Paused, "paused": sandbox.Paused,
		"failed": sandbox.Failed,
	},
	Refused: map[string]func(*sandbox.Spec){
		"processors": func(s *sandbox.Spec) { s.Resources.CPUs = 0.5 },
		"memory":     func(s *sandbox.Spec) { s.Resources.Memory = 64 << 20 },
	},
}

type world = hostedtest.Served[*boxlite.Provider, *service.Server]

// connect opens a provider with other options.
func connect(w *world, dir string, change func(*boxlite.Options)) (*boxlite.Provider, error) {
	env := suite.Env(w.URL)
	opts := boxlite.FromEnvironment(dir, func(name string) string { return env[name] })
	hostedtest.Connect(&opts.Connection)
	change(&opts)
	return boxlite.New(opts)
}

// open opens a provider with other options, which is closed with the test.
func open(t *testing.T, w *world, change func(*boxlite.Options)) *boxlite.Provider {
	t.Helper()
	p, err := connect(w, t.TempDir(), change)
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

func TestConformance(t *testing.T) { suite.Conformance(t, "reattach", "leaks") }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }
