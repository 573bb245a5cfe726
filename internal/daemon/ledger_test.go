package daemon_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// The last two archives of a session are kept; older ones are removed. A failed
// save leaves nothing. RB-46.
func TestTwoArchivesAreKept(t *testing.T) {
	m := daemontest.New(t)
	var broken atomic.Bool
	m.Fault = func(op string) error {
		if op == "snapshot" && broken.Load() {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no space"}
		}
		return nil
	}
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	var refs []string
	for range 4 {
		saved, err := s.Save(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, saved.Archive.Ref)
	}
	broken.Store(true)
	_, err := s.Save(t.Context())
	wantCode(t, err, sandbox.CodeUnavailable)
	names := func() (all []string) {
		t.Helper()
		for snap, err := range c.Snapshots(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, snap.Name)
		}
		slices.Sort(all)
		return all
	}
	want := slices.Sorted(slices.Values(refs[2:]))
	got := names()
	for deadline := time.Now().Add(45 * time.Second); !slices.Equal(got, want) && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		got = names() // a sweep removes the others
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v are kept, want %v", got, want)
	}
	ledger, err := store.Read(t.Context(), m.Store(t), func(tx *store.Tx) ([]store.KeptArchive, error) {
		return tx.Sessions().Archives(t.Context(), "default", "")
	})
	if err != nil || len(ledger) != 2 {
		t.Errorf("the ledger: %+v, %v", ledger, err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := names(); len(left) != 0 {
		t.Errorf("the session left %v", left)
	}
}

// The history of a session lists the sandboxes that served it, their holders,
// and why each ended.
func TestHistoryOfEpochs(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, shortGrace)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Turn: true})
	first := s.Receipt().Sandbox
	endOutside(t, m, first)
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := s.Receipt().Sandbox
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := untilLease(t, c, "agent", "warm").Lease.History
	if len(got) != 3 {
		t.Fatalf("the history is %+v, want three epochs", got)
	}
	for i, want := range []struct {
		sandbox sandbox.ID
		why     string
	}{{s.Receipt().Sandbox, ""}, {second, "it was unused"}, {first, "it was gone"}} {
		e := got[i]
		if e.Epoch != int64(3-i) || e.Sandbox != want.sandbox || e.Why != want.why || e.Ended.IsZero() != (i == 0) || e.Began.IsZero() || e.Provider != "fake" || len(e.Holders) != 1 {
			t.Errorf("epoch %d: %+v, want sandbox %s, %q and one holder", 3-i, e, want.sandbox, want.why)
		}
	}
}
