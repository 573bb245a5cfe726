package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// recorder is a provider that enforces every Spec it is given, and keeps it.
type recorder struct {
	driver.Provider
	mu    sync.Mutex
	specs []sandbox.Spec
}

func (*recorder) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.HostPort, Wildcards: true}
}

func (r *recorder) Probe(ctx context.Context) (driver.Facts, error) {
	facts, err := r.Provider.Probe(ctx)
	facts.Capabilities.Mounts = true
	return facts, err
}

func (r *recorder) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	r.mu.Lock()
	r.specs = append(r.specs, *spec)
	r.mu.Unlock()
	simple := *spec
	simple.Mounts, simple.Network = nil, sandbox.Network{}
	return r.Provider.Create(ctx, &simple)
}

// fullSpec has a value in every field but those in unset.
func fullSpec(source string, port uint16) sandbox.Spec {
	return sandbox.Spec{
		Name: "full", Provider: "recorder", Isolation: sandbox.IsolationKernel, Image: "host", Hostname: "somewhere", User: "root", Workdir: "/srv",
		Resources: sandbox.Resources{CPUs: 1.5, Memory: 256 << 20, Disk: 64 << 20, PIDs: 100},
		Env:       map[string]string{"A": "value"},

		RequireLimits: true, Main: &sandbox.MainCommand{Args: []string{"true"}, Restart: sandbox.RestartOnFailure, MaxRestarts: 3},
		Mounts:     []sandbox.Mount{{Source: source, Target: "/mnt/a", ReadOnly: true}},
		Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Mode: sandbox.WorkspaceExclusive, Create: true, Path: "/notes", ReadOnly: []string{"a"}, Writable: []string{"b"}}},
		Ports:      []sandbox.PublishedPort{{Address: "127.0.0.1", HostPort: port, Port: 80}},
		Network:    sandbox.Network{Egress: []string{"api.example.com"}},
		Secrets:    []sandbox.SecretRef{{Name: "token", Env: "TOKEN", Mode: sandbox.SecretEnv, Hosts: []string{"api.example.com"}, In: []string{"header"}}},
		Redact:     true,
		Lifetime: sandbox.Lifetime{
			Timeout: 90*time.Minute + time.Millisecond, TimeoutAction: sandbox.IdleDelete, Wakes: true, Idle: 7 * time.Minute, IdleAction: sandbox.IdleSleep,
		},
		Labels: map[string]string{"team": "red"},
	}
}

// freePort returns an unused port of the loopback, which the kernel does not give
// to a connection while nobody listens there.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return uint16(l.Addr().(*net.TCPAddr).Port)
	}
}

// unset are fields that a request cannot have together with others, or that
// are not for callers.
var unset = map[string]string{
	"ID":              "assigned by the server",
	"Snapshot":        "excludes Image",
	"Network.Profile": "excludes Network.Egress",
	"Network.Inline":  "excludes Network.Egress",
	"Network.Plain":   "set by the control plane",
}

// zeroFields returns the fields of v, and of structs in it, that are zero.
func zeroFields(v reflect.Value, path string) (zero []string) {
	for field, value := range v.Fields() {
		name := strings.TrimPrefix(path+"."+field.Name, ".")
		switch {
		case value.IsZero():
			zero = append(zero, name)
		case value.Kind() == reflect.Struct:
			zero = append(zero, zeroFields(value, name)...)
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
			for i := range value.Len() {
				zero = append(zero, zeroFields(value.Index(i), name)...)
			}
		}
	}
	return zero
}

// Every field of a Spec travels from the library through the API and the
// control plane into the store and to the provider.
func TestSpecReachesEveryLayer(t *testing.T) {
	sent := fullSpec(t.TempDir(), freePort(t))
	for _, name := range zeroFields(reflect.ValueOf(sent), "") {
		if unset[name] == "" {
			t.Errorf("Spec.%s has no value in this test: add one", name)
		}
	}
	m := daemontest.New(t)
	r := &recorder{Provider: fake.New(fake.Options{World: m.World, Limited: true, Isolation: sandbox.IsolationHardware})}
	d := m.Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{{Name: "recorder", Open: func(providerset.Host) (driver.Provider, error) { return r, nil }}}
	})
	c := daemontest.Client(t, d)
	if _, err := c.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "notes"}); err != nil {
		t.Fatal(err)
	}
	first := create(t, c, sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Writable: []string{"a"}}}}) // makes the directory a
	if err := first.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSecret(t.Context(), durable.NewSecret{Name: "token", Value: []byte("secret value"), Hosts: []string{"api.example.com"}, AllowEnv: true}); err != nil {
		t.Fatal(err)
	}
	s, err := c.Create(t.Context(), sent, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Info(); got.Lifetime != sent.Lifetime || got.Resources != sent.Resources || !reflect.DeepEqual(got.Labels, sent.Labels) {
		t.Errorf("the library got %+v", got)
	}

	kept, err := store.Read(t.Context(), m.Store(t), func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Operator().Sandbox(t.Context(), s.ID())
	})
	if err != nil {
		t.Fatal(err)
	}
	want := sent
	want.ID = s.ID()
	want.Env = map[string]string{"A": ""} // values are kept elsewhere, sealed
	main := *sent.Main
	none := ""
	main.Entrypoint, main.Process = &none, kept.Spec.Main.Process
	want.Main = &main
	same(t, "store", want, kept.Spec)
	want.Main = sent.Main

	if len(r.specs) != 2 {
		t.Fatalf("the provider was asked for %d sandboxes, want 2", len(r.specs))
	}
	got := r.specs[1]
	want.Env = map[string]string{"A": "value", "TOKEN": "secret value"} // secrets of mode env are variables
	want.Secrets = nil
	if len(got.Mounts) < 2 || got.Mounts[0] != sent.Mounts[0] || !slices.ContainsFunc(got.Mounts, func(m sandbox.Mount) bool { return m.Target == "/notes" }) {
		t.Errorf("the provider mounts %+v, want %+v and the workspace at /notes", got.Mounts, sent.Mounts)
	}
	want.Mounts, want.Workspaces = got.Mounts, nil // workspaces are mounts
	if got.Network.Plain == nil || len(got.Network.Plain.Allow) != 1 {
		t.Errorf("the provider got the rules %+v", got.Network.Plain)
	}
	want.Network.Plain = got.Network.Plain
	want.Labels = map[string]string{"team": "red", "atoll.name": "full", "atoll.image": "host", "atoll.tenant": "default"}
	same(t, "provider", want, got)
}

// same compares two Specs field by field.
func same(t *testing.T, layer string, want, got sandbox.Spec) {
	t.Helper()
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for field, value := range w.Fields() {
		if other := g.FieldByIndex(field.Index); !reflect.DeepEqual(value.Interface(), other.Interface()) {
			t.Errorf("%s: Spec.%s is %+v, want %+v", layer, field.Name, other, value)
		}
	}
}

// A sandbox whose TimeoutAction keeps its files is not ended by its provider.
func TestTimeoutAction(t *testing.T) {
	for action, want := range map[sandbox.IdleAction]sandbox.State{
		sandbox.IdleStop: sandbox.Stopped, sandbox.IdleSleep: sandbox.Paused, sandbox.IdleDelete: sandbox.Gone, "": sandbox.Gone,
	} {
		t.Run("action "+string(action), func(t *testing.T) {
			t.Parallel()
			m := daemontest.New(t)
			c := daemontest.Client(t, m.Start(t, nil))
			deadline := time.After(30 * time.Second)
			s := create(t, c, sandbox.Spec{Name: "one", Lifetime: sandbox.Lifetime{Timeout: time.Second, TimeoutAction: action, Wakes: true}})
			for {
				now, err := c.Get(t.Context(), string(s.ID()))
				if err != nil {
					t.Fatalf("looking at it: %v", err)
				}
				if now.Info().State == want {
					break
				}
				select {
				case <-t.Context().Done():
					t.Fatal("the test was cut off")
				case <-deadline:
					t.Fatalf("it is %s, want %s", now.Info().State, want)
				case <-time.After(50 * time.Millisecond):
				}
			}
			if action == sandbox.IdleSleep {
				if out := shell(t, s, "echo awake"); out != "awake\n" {
					t.Errorf("a sandbox that wakes when it is used answered %q", out)
				}
			}
		})
	}
}
