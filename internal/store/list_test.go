package store_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func listAll(t *testing.T, s *store.Store, tenant string, f store.Filter, limit int) (ids []sandbox.ID) {
	t.Helper()
	ctx := context.Background()
	for cursor := ""; ; {
		ok(t, s.View(ctx, func(tx *store.Tx) error {
			page := store.Page{Cursor: cursor, Limit: limit}
			sandboxes, next, err := tx.Sandboxes().Summaries(ctx, tenant, f, page)
			if err != nil {
				return err
			}
			whole, last, err := tx.Sandboxes().List(ctx, tenant, f, page)
			if len(whole) != len(sandboxes) || last != next {
				t.Errorf("%d and %q in brief, %d and %q in full", len(sandboxes), next, len(whole), last)
			}
			for _, b := range sandboxes {
				ids = append(ids, b.ID)
			}
			cursor = next
			return err
		}))
		if cursor == "" {
			return ids
		}
	}
}

// Free text may contain control characters and quotes.
func TestListedTexts(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme")
		ctx := context.Background()
		for i, text := range []string{"", "\x1f", "a\x1fb\x1f", "\x1f\x1f\x1f\x1f\x1f\x1f\x1f\x1f", "gefrägt", "'"} {
			b := testSandbox(fmt.Sprint("b", i))
			b.Reason, b.Image, b.Provider, b.Node = text, text+"x", "", ""
			b.Labels = map[string]string{"a" + text: "b" + text}
			b.Resources = sandbox.Resources{CPUs: 0.1, Memory: 1 << 40, PIDs: 7}
			b.Expires = time.Unix(5, 6).UTC()
			if sandbox.ValidateLabels(b.Labels) != nil {
				b.Labels = nil
			}
			clk.advance(time.Second)
			want := mustCreate(t, s, "acme", b)
			ok(t, s.View(ctx, func(tx *store.Tx) error {
				got, _, err := tx.Sandboxes().Summaries(ctx, "acme", store.Filter{}, store.Page{Limit: 1})
				if err != nil {
					return err
				}
				if !reflect.DeepEqual(got[0], want.Summary) {
					t.Errorf("listed as\n%+v, is\n%+v", got[0], want.Summary)
				}
				return nil
			}))
		}
	})
}

func TestFilters(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme")
		for i, labels := range []map[string]string{{"team": "red"}, {"team": "red", "tier": "one"}, {"team": "blue", "tier": "one"}, nil} {
			b := testSandbox(fmt.Sprintf("b%d", i))
			b.Labels = labels
			b.Provider = []string{"gvisor", "fake"}[i%2]
			b.Node = []string{"n1", "n2"}[i/2]
			mustCreate(t, s, "acme", b)
			clk.advance(time.Second)
		}
		for id, st := range map[sandbox.ID]sandbox.State{"id-b0": sandbox.Running, "id-b1": sandbox.Stopped, "id-b2": sandbox.Gone} {
			_, err := update(s, "acme", id, store.Expect{}, setState(st))
			ok(t, err)
		}
		for _, tt := range []struct {
			f    store.Filter
			want string
		}{
			{store.Filter{}, "id-b3 id-b1 id-b0"},
			{store.Filter{States: []sandbox.State{sandbox.Gone}}, "id-b2"},
			{store.Filter{States: []sandbox.State{sandbox.Running, sandbox.Stopped}}, "id-b1 id-b0"},
			{store.Filter{Labels: map[string]string{"team": "red"}}, "id-b1 id-b0"},
			{store.Filter{Labels: map[string]string{"team": "red", "tier": "one"}}, "id-b1"},
			{store.Filter{Labels: map[string]string{"team": ""}}, ""},
			{store.Filter{Labels: map[string]string{"team' OR 1=1 --": "red"}}, ""},
			{store.Filter{Provider: "fake"}, "id-b3 id-b1"},
			{store.Filter{Node: "n1", Provider: "gvisor"}, "id-b0"},
		} {
			for _, limit := range []int{1, 2, 100} {
				got := listAll(t, s, "acme", tt.f, limit)
				if s := strings.Trim(fmt.Sprint(got), "[]"); s != tt.want {
					t.Errorf("%+v in pages of %d: %q, want %q", tt.f, limit, s, tt.want)
				}
			}
		}
		_, err := update(s, "acme", "id-b1", store.Expect{}, func(b *store.Sandbox) { b.Labels = map[string]string{"team": "green"} })
		ok(t, err)
		if got := listAll(t, s, "acme", store.Filter{Labels: map[string]string{"team": "red"}}, 10); !slices.Equal(got, []sandbox.ID{"id-b0"}) {
			t.Errorf("after a change of labels: %v", got)
		}
	})
}

// TestListingSaysWhatGetSays: except for fields that are documented as missing.
func TestListingSaysWhatGetSays(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		ctx := context.Background()
		s := open(store.Options{})
		tenants(t, s, "acme")
		in := testSandbox("web")
		in.Labels = map[string]string{`quo"ted`: `back\slash`, "<b>": "ü"}
		in.Resources = sandbox.Resources{CPUs: 1.5, Memory: 2, Disk: 3, PIDs: 4}
		in.Expires = time.Unix(5, 6)
		in.Idle = store.Idle{After: time.Minute, Action: "stop"}
		mustCreate(t, s, "acme", in)
		want, err := update(s, "acme", in.ID, store.Expect{}, func(b *store.Sandbox) {
			b.State, b.Reason, b.Epoch = sandbox.Failed, "broken", 9
			b.Exit = &sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonMemory}
		})
		ok(t, err)
		full, err := get(s, "acme", in.ID)
		ok(t, err)
		if full.Exit == nil || *full.Exit != *want.Exit || full.Epoch != 9 || full.Idle != in.Idle || full.Active.IsZero() {
			t.Errorf("read back %+v", full)
		}
		var brief []store.Summary
		var whole []store.Sandbox
		ok(t, s.View(ctx, func(tx *store.Tx) (err error) {
			if brief, _, err = tx.Sandboxes().Summaries(ctx, "acme", store.Filter{}, store.Page{}); err != nil {
				return err
			}
			whole, _, err = tx.Sandboxes().List(ctx, "acme", store.Filter{}, store.Page{})
			return err
		}))
		summary := full.Summary
		if len(brief) != 1 || !reflect.DeepEqual(brief[0], summary) {
			t.Errorf("listed\n%+v, want\n%+v", brief, summary)
		}
		if len(whole) != 1 || !reflect.DeepEqual(whole[0], full) {
			t.Errorf("listed\n%+v, want\n%+v", whole, full)
		}
	})
}

// TestPagesUnderInserts: a sandbox that exists from the first page to the last
// is listed once, even if others are created and removed, many at the same
// time.
func TestPagesUnderInserts(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		clk := newClock()
		s := open(store.Options{Now: clk.now})
		tenants(t, s, "acme")
		const stay = 40
		for i := range stay {
			mustCreate(t, s, "acme", testSandbox(fmt.Sprintf("stay%d", i)))
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				b := testSandbox(fmt.Sprintf("come%d", i))
				if _, _, err := create(s, "acme", b, store.Create{}); err != nil {
					t.Error(err)
					return
				}
				if _, err := update(s, "acme", b.ID, store.Expect{}, setState(sandbox.Gone)); err != nil {
					t.Error(err)
				}
				clk.advance(time.Nanosecond)
			}
		})
		for range 5 {
			count := map[sandbox.ID]int{}
			for _, id := range listAll(t, s, "acme", store.Filter{}, 3) {
				count[id]++
			}
			for i := range stay {
				if id := sandbox.ID(fmt.Sprintf("id-stay%d", i)); count[id] != 1 {
					t.Errorf("%s was listed %d times", id, count[id])
				}
			}
			for id, n := range count {
				if n > 1 {
					t.Errorf("%s was listed %d times", id, n)
				}
			}
		}
		close(stop)
		wg.Wait()
	})
}

func TestBadPages(t *testing.T) {
	s := storetest.SQLite(t, store.Options{})
	tenants(t, s, "acme")
	for _, p := range []store.Page{
		{Limit: -1}, {Limit: store.MaxPage + 1}, {Cursor: "x"}, {Cursor: "1.2.a"}, {Cursor: strings.Repeat("A", 10_000)}, {Cursor: "MS4xLidvJw"},
	} {
		err := s.View(context.Background(), func(tx *store.Tx) error {
			_, _, err := tx.Sandboxes().List(context.Background(), "acme", store.Filter{}, p)
			return err
		})
		wantCode(t, err, sandbox.CodeInvalid)
	}
}
