package update

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func open(t *testing.T, p *coretest.Provider) (*Updater, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, p)
	ready := &prepare.Preparer{Policies: r.Policies, Snapshots: r.Snapshots, Tenants: r.Tenants}
	return &Updater{Core: r.Core, Records: r.Records, Prepare: ready, Providers: r.Providers, Policies: r.Policies, Ports: r.Ports}, r
}

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// A change is made at the provider and in the record, or in neither.
func TestUpdate(t *testing.T) {
	hour, halfHour := time.Hour, 30*time.Minute
	all := map[string]driver.Limit{"cpus": {Holds: true}, "memory": {Holds: true}}
	sleeps := sandbox.Lifetime{Timeout: time.Hour}
	for _, tt := range []struct {
		name   string
		state  sandbox.State
		rest   store.Rest
		life   sandbox.Lifetime
		plain  bool // the provider can change nothing
		limits map[string]driver.Limit
		fails  map[string]error
		change sandbox.Change
		code   sandbox.Code
		cpus   float64       // afterwards
		ends   time.Duration // afterwards, from now; 0: never
		did    []string
	}{
		{name: "a limit", limits: all, change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}}, cpus: 4, did: []string{"resize sb-1 to 4 CPUs"}},
		{name: "a limit that the provider does not take", limits: all, fails: map[string]error{"resize sb-1 to 4 CPUs": errAway}, change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}}, code: sandbox.CodeUnavailable, cpus: 2},
		{name: "a limit, of a provider that changes none", plain: true, limits: all, change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}}, code: sandbox.CodeUnsupported, cpus: 2},
		{name: "a limit that is not enforced is recorded", change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}}, cpus: 4},
		{name: "a limit that is not enforced and required", change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}, RequireLimits: true}, code: sandbox.CodeUnsupported, cpus: 2},
		{name: "a limit that is fixed", limits: map[string]driver.Limit{"cpus": {Fixed: true}}, change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}}, code: sandbox.CodeUnsupported, cpus: 2},
		{name: "a limit, while it is stopped", state: sandbox.Stopped, rest: store.Rest{Kept: "sn-1"}, limits: all, change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}}, cpus: 4},
		{name: "a lifetime", life: sleeps, change: sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &halfHour}}, cpus: 2, ends: halfHour, did: []string{"end sb-1 after 30m0s"}},
		{
			name: "a lifetime that the provider does not take, after a limit that it took", life: sleeps, limits: all, fails: map[string]error{"end sb-1 after 30m0s": errAway},
			change: sandbox.Change{Resources: sandbox.Resources{CPUs: 4}, Lifetime: sandbox.LifetimeChange{Timeout: &halfHour}},
			code:   sandbox.CodeUnavailable, cpus: 2, ends: hour, did: []string{"resize sb-1 to 2 CPUs", "resize sb-1 to 4 CPUs"},
		},
		{name: "a longer lifetime, of a provider that cannot", plain: true, life: sleeps, change: sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: new(2 * hour)}}, code: sandbox.CodeUnsupported, cpus: 2, ends: hour},
		{name: "a shorter lifetime, of a provider that cannot", plain: true, life: sleeps, change: sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &halfHour}}, cpus: 2, ends: halfHour},
		{name: "labels of Atoll", change: sandbox.Change{Labels: map[string]*string{"atoll.owner": new("me")}}, code: sandbox.CodeInvalid, cpus: 2},
		{name: "the network, with something else", change: sandbox.Change{Network: &sandbox.Network{}, RequireLimits: true}, code: sandbox.CodeInvalid, cpus: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}, Plain: tt.plain, Fails: tt.fails, Can: driver.Facts{Limits: tt.limits}}
			s, r := open(t, p)
			var b store.Sandbox
			b.ID, b.State, b.Rest, b.Spec.Lifetime, b.Resources.CPUs = "sb-1", tt.state, tt.rest, tt.life, 2
			if tt.life.Timeout > 0 {
				b.Expires = coretest.Now.Add(tt.life.Timeout)
			}
			r.Add(t, b)
			_, err := s.Update(coretest.As(t, coretest.Acme, key.Write), "sb-1", tt.change)
			coretest.WantCode(t, err, tt.code)
			now := r.Record(t, "sb-1")
			if now.Resources.CPUs != tt.cpus || now.Rest.Step != "" {
				t.Errorf("the record has %v CPUs and the step %q, want %v and none", now.Resources.CPUs, now.Rest.Step, tt.cpus)
			}
			var ends time.Time
			if tt.ends > 0 {
				ends = coretest.Now.Add(tt.ends)
			}
			if !now.Expires.Equal(ends) {
				t.Errorf("it ends at %v, want %v", now.Expires, ends)
			}
			if did := p.Did(); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
			_, loose := now.Limits["cpus"]
			if want := tt.limits == nil && tt.code == "" && tt.change.Resources.CPUs != 0; loose != want {
				t.Errorf("the record says that the limit is not enforced: %v, want %v", loose, want)
			}
		})
	}
}

// What a change means for the record, by the state of the sandbox.
func TestApply(t *testing.T) {
	hour := time.Hour
	s := &Updater{}
	for _, tt := range []struct {
		name    string
		b       store.Sandbox
		change  sandbox.Change
		expires time.Time
		rest    store.Rest
		labels  map[string]string
	}{
		{"nothing about its lifetime", running(), sandbox.Change{}, coretest.Now.Add(time.Minute), store.Rest{}, map[string]string{"a": "1", "b": "2"}},
		{"a lifetime begins now", running(), sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &hour}}, coretest.Now.Add(hour), store.Rest{}, map[string]string{"a": "1", "b": "2"}},
		{
			"a lifetime of one that rests begins when it runs again", paused(store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1", Left: time.Minute}),
			sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &hour}},
			time.Time{},
			store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1", Left: hour},
			map[string]string{"a": "1", "b": "2"},
		},
		{
			"that it wakes, now that it rests", paused(store.Rest{Pause: sandbox.PauseMemory}),
			sandbox.Change{Lifetime: sandbox.LifetimeChange{Wakes: new(true)}},
			time.Time{},
			store.Rest{Pause: sandbox.PauseMemory, Wakes: true},
			map[string]string{"a": "1", "b": "2"},
		},
		{
			"labels are added and removed", running(),
			sandbox.Change{Labels: map[string]*string{"a": nil, "c": new("3")}},
			coretest.Now.Add(time.Minute),
			store.Rest{},
			map[string]string{"b": "2", "c": "3"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.b
			s.apply(&b, &tt.change, coretest.Now)
			if !b.Expires.Equal(tt.expires) || b.Rest != tt.rest || !maps.Equal(b.Labels, tt.labels) || !b.Active.Equal(coretest.Now) {
				t.Errorf("it ends at %v, rests %+v and has the labels %v, want %v, %+v and %v", b.Expires, b.Rest, b.Labels, tt.expires, tt.rest, tt.labels)
			}
		})
	}
}

func running() (b store.Sandbox) {
	b.State, b.Expires, b.Labels = sandbox.Running, coretest.Now.Add(time.Minute), map[string]string{"a": "1", "b": "2"}
	return b
}

func paused(rest store.Rest) store.Sandbox {
	b := running()
	b.State, b.Rest, b.Expires = sandbox.Paused, rest, time.Time{}
	return b
}

// Only what the provider enforces is passed to it.
func TestHeld(t *testing.T) {
	all := sandbox.Resources{CPUs: 1, Memory: 2, Disk: 3, PIDs: 4}
	for name, want := range map[string]sandbox.Resources{
		"cpus": {Memory: 2, Disk: 3, PIDs: 4}, "memory": {CPUs: 1, Disk: 3, PIDs: 4}, "disk": {CPUs: 1, Memory: 2, PIDs: 4}, "pids": {CPUs: 1, Memory: 2, Disk: 3}, "": all,
	} {
		loose := map[string]sandbox.Enforcement{}
		if name != "" {
			loose[name] = sandbox.Enforcement{}
		}
		if got := held(all, loose); got != want {
			t.Errorf("without %q, %+v is passed on, want %+v", name, got, want)
		}
	}
}
