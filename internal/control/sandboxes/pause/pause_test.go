package pause

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/remove"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// recordings counts how often recordings were stored.
type recordings struct{ flushed int }

func (r *recordings) Flush(context.Context, sandbox.ID) { r.flushed++ }

func open(t *testing.T, p *coretest.Provider) (*Pauser, *sandboxtest.Rig) {
	t.Helper()
	r := sandboxtest.Open(t, p)
	remover := &remove.Remover{Core: r.Core, Records: r.Records, Workspaces: r.Workspaces}
	return &Pauser{
		Core: r.Core, Records: r.Records, Prepare: &prepare.Preparer{Policies: r.Policies, Snapshots: r.Snapshots, Tenants: r.Tenants},
		Remover: remover, Ends: r.Ends, Mains: &supervise.Mains{Core: r.Core, Records: r.Records, Remover: remover}, Exec: r.Ends.Exec, Providers: r.Providers,
		Workspaces: r.Workspaces, Snapshots: r.Snapshots, Secrets: secrets.New(r.Core, secrets.Config{}), Ports: r.Ports, Recordings: &recordings{},
	}, r
}

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// withoutIDs replaces the ids of new snapshots, which are random.
func withoutIDs(did []string) []string {
	for i, what := range did {
		words := strings.Fields(what)
		for j, w := range words {
			if strings.HasPrefix(w, "sn-") && w != "sn-1" {
				words[j] = "sn-new"
			}
		}
		did[i] = strings.Join(words, " ")
	}
	return did
}

// What a sandbox is afterwards, and what its provider was told. A failure leaves the
// sandbox as it was, and no snapshot.
func TestPauseAndResume(t *testing.T) {
	inMemory, onDisk, stopped := store.Rest{Pause: sandbox.PauseMemory}, store.Rest{Pause: sandbox.PauseDisk, Kept: "sn-1"}, store.Rest{Kept: "sn-1"}
	pause := func(s *Pauser, ctx context.Context) (store.Sandbox, error) { return s.Pause(ctx, "sb-1", false) }
	sleep := func(s *Pauser, ctx context.Context) (store.Sandbox, error) { return s.Pause(ctx, "sb-1", true) }
	resume := func(s *Pauser, ctx context.Context) (store.Sandbox, error) { return s.Resume(ctx, "sb-1") }
	stop := func(s *Pauser, ctx context.Context) (store.Sandbox, error) { return s.Stop(ctx, "sb-1", 0) }
	start := func(s *Pauser, ctx context.Context) (store.Sandbox, error) { return s.Start(ctx, "sb-1") }
	for _, tt := range []struct {
		name   string
		state  sandbox.State
		rest   store.Rest
		ends   time.Duration // from now, by the provider; 0: never
		plain  bool          // the provider can only end it
		files  bool          // its snapshots have no memory
		fails  map[string]error
		do     func(*Pauser, context.Context) (store.Sandbox, error)
		code   sandbox.Code
		after  sandbox.State
		pause  sandbox.PauseKind
		kept   bool
		left   time.Duration
		did    []string
		reason string
	}{
		{name: "pause", do: pause, after: sandbox.Paused, pause: sandbox.PauseMemory, did: []string{"pause sb-1"}},
		{name: "pause, twice", state: sandbox.Paused, rest: inMemory, do: pause, after: sandbox.Paused, pause: sandbox.PauseMemory},
		{name: "pause, where its lifetime stands still", ends: time.Hour, do: pause, after: sandbox.Paused, pause: sandbox.PauseMemory, left: time.Hour, did: []string{"end sb-1 never", "pause sb-1"}},
		{name: "pause, where its lifetime goes on", ends: time.Hour, fails: map[string]error{"end sb-1 never": errAway}, do: pause, after: sandbox.Paused, pause: sandbox.PauseMemory, did: []string{"pause sb-1"}},
		{
			name: "pause, which fails", ends: time.Hour, fails: map[string]error{"pause sb-1": errAway}, do: pause, code: sandbox.CodeUnavailable, after: sandbox.Running,
			did: []string{"end sb-1 after 1h0m0s", "end sb-1 never"},
		},
		{name: "pause, of a provider that cannot", plain: true, do: pause, code: sandbox.CodeUnsupported, after: sandbox.Running},
		{name: "to disk", do: sleep, after: sandbox.Paused, pause: sandbox.PauseDisk, kept: true, did: []string{"destroy sb-1", "save sb-1 memory=true stop=true"}},
		{name: "to disk, of what is paused in memory", state: sandbox.Paused, rest: inMemory, do: sleep, after: sandbox.Paused, pause: sandbox.PauseDisk, kept: true, did: []string{"destroy sb-1", "resume sb-1", "save sb-1 memory=true stop=true"}},
		{name: "to disk, of a provider that keeps no memory", files: true, do: sleep, after: sandbox.Paused, pause: sandbox.PauseDisk, kept: true, did: []string{"destroy sb-1", "save sb-1 memory=false stop=true"}, reason: reasonFilesOnly},
		{name: "to disk, which fails", fails: map[string]error{"save sb-1 memory=true stop=true": errAway}, do: sleep, code: sandbox.CodeUnavailable, after: sandbox.Running},
		{
			name: "to disk, which fails, of what is paused in memory", state: sandbox.Paused, rest: inMemory, fails: map[string]error{"save sb-1 memory=true stop=true": errAway}, do: sleep,
			code: sandbox.CodeUnavailable, after: sandbox.Paused, pause: sandbox.PauseMemory, did: []string{"pause sb-1", "resume sb-1"},
		},
		{name: "stop", do: stop, after: sandbox.Stopped, kept: true, did: []string{"destroy sb-1", "save sb-1 memory=false stop=true"}},
		{name: "stop, of a provider that keeps no files", plain: true, do: stop, code: sandbox.CodeUnsupported, after: sandbox.Running},
		{name: "resume from memory", state: sandbox.Paused, rest: inMemory, do: resume, after: sandbox.Running, did: []string{"resume sb-1"}},
		{name: "resume from disk", state: sandbox.Paused, rest: onDisk, do: resume, after: sandbox.Running, did: []string{"restore sb-1 from sn-1"}},
		{name: "resume from disk, which fails", state: sandbox.Paused, rest: onDisk, fails: map[string]error{"restore sb-1 from sn-1": errAway}, do: resume, code: sandbox.CodeUnavailable, after: sandbox.Paused, pause: sandbox.PauseDisk, kept: true},
		{name: "resume, of what runs", do: resume, after: sandbox.Running},
		{name: "start", state: sandbox.Stopped, rest: stopped, do: start, after: sandbox.Running, did: []string{"restore sb-1 from sn-1"}},
		{name: "resume, of what is stopped", state: sandbox.Stopped, rest: stopped, do: resume, code: sandbox.CodeConflict, after: sandbox.Stopped, kept: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}, Plain: tt.plain, Fails: tt.fails}
			p.Can.Capabilities.Memory = !tt.files
			s, r := open(t, p)
			var b store.Sandbox
			b.ID, b.State, b.Rest, b.Spec.Image = "sb-1", tt.state, tt.rest, "host"
			if tt.ends > 0 {
				b.Spec.Lifetime.Timeout, b.Expires = tt.ends, coretest.Now.Add(tt.ends)
			}
			r.Add(t, b)
			if tt.rest.Kept != "" {
				r.Save(t, coretest.Acme, store.Snapshot{Snapshot: durable.Snapshot{ID: "sn-1", Memory: true, Parent: "sb-1"}, Owner: "sb-1"}, true)
			}
			_, err := tt.do(s, coretest.As(t, coretest.Acme, key.Write, key.Read))
			coretest.WantCode(t, err, tt.code)
			now := r.Record(t, "sb-1")
			if now.State != tt.after || now.Rest.Pause != tt.pause || (now.Rest.Kept != "") != tt.kept || now.Rest.Step != "" || now.Rest.Left != tt.left || now.Reason != tt.reason {
				t.Errorf("it is %s (%q) and rests %+v, want %s (%q), paused %q, on disk %v, with %v left", now.State, now.Reason, now.Rest, tt.after, tt.reason, tt.pause, tt.kept, tt.left)
			}
			if did := withoutIDs(p.Did()); !slices.Equal(did, tt.did) {
				t.Errorf("the provider was told %q, want %q", did, tt.did)
			}
			all, err := store.Read(t.Context(), r.Core.Store, func(tx *store.Tx) ([]store.Snapshot, error) {
				return tx.Operator().Snapshots(t.Context(), coretest.Node, "", 10)
			})
			coretest.OK(t, err)
			if want := map[bool]int{true: 1}[tt.kept]; len(all) != want {
				t.Errorf("there are %d snapshots afterwards, want %d", len(all), want)
			} else if tt.kept && (all[0].ID != now.Rest.Kept || !all[0].Ready) {
				t.Errorf("its saved state is %s, complete: %v, want %s, complete", all[0].ID, all[0].Ready, now.Rest.Kept)
			}
		})
	}
}

// A sandbox that goes to sleep by itself and whose files cannot be kept is paused in
// memory instead. A provider that fails is not asked for that.
func TestPutToSleep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails error
		code  sandbox.Code
		after sandbox.State
		pause sandbox.PauseKind
	}{
		{"its state can be saved", nil, "", sandbox.Paused, sandbox.PauseDisk},
		{"the provider cannot save it now", &sandbox.Error{Code: sandbox.CodeUnsupported}, "", sandbox.Paused, sandbox.PauseMemory},
		{"the provider fails", errAway, sandbox.CodeUnavailable, sandbox.Running, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}, Fails: map[string]error{"save sb-1 memory=true stop=true": tt.fails}}
			p.Can.Capabilities.Memory = true
			s, r := open(t, p)
			var b store.Sandbox
			b.ID = "sb-1"
			r.Add(t, b)
			op, err := r.Records.Lock(coretest.As(t, coretest.Acme, key.Write), "sb-1", opPause, lifecycle.Sleep)
			coretest.OK(t, err)
			defer op.Release()
			coretest.WantCode(t, s.PutToSleep(t.Context(), op, true), tt.code)
			if now := r.Record(t, "sb-1"); now.State != tt.after || now.Rest.Pause != tt.pause || now.Rest.Wakes != (tt.after == sandbox.Paused) {
				t.Errorf("it is %s and rests %+v, want %s, paused %q, and that it wakes if it sleeps", now.State, now.Rest, tt.after, tt.pause)
			}
		})
	}
}

// Recordings are stored before a sandbox rests.
func TestPauseStoresRecordings(t *testing.T) {
	s, r := open(t, &coretest.Provider{Found: []driver.Found{{ID: "sb-1", State: sandbox.Running}}})
	var b store.Sandbox
	b.ID = "sb-1"
	r.Add(t, b)
	_, err := s.Pause(coretest.As(t, coretest.Acme, key.Write), "sb-1", true)
	coretest.OK(t, err)
	if n := s.Recordings.(*recordings).flushed; n != 1 {
		t.Errorf("recordings were stored %d times, want once", n)
	}
}
