package eventlog_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%v)", err, errors.Unwrap(err))
	}
}

func tenants(t testing.TB, s *store.Store, names ...string) {
	t.Helper()
	ok(t, s.Update(t.Context(), func(tx *store.Tx) error {
		for _, name := range names {
			if _, err := tx.Tenants().Ensure(t.Context(), name); err != nil {
				return err
			}
		}
		return nil
	}))
}

func newLog(t testing.TB, s *store.Store, opts eventlog.Options) *eventlog.Log {
	t.Helper()
	l := eventlog.New(s, opts)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("closing the log: %v", err)
		}
	})
	return l
}

func event(tenant, subject string) eventlog.Event {
	return eventlog.Event{Tenant: tenant, Event: sandbox.Event{Type: eventlog.FilesWritten, Op: "files.write", Sandbox: "id-web", Subject: subject}}
}

func sound(t *testing.T, l *eventlog.Log, tenant string, records int64) {
	t.Helper()
	r, err := l.Verify(t.Context(), tenant)
	ok(t, err)
	if r.Fault != nil || r.Records != records {
		t.Fatalf("%d records are sound, want %d: %+v", r.Records, records, r.Fault)
	}
}

// TestConcurrentAppend appends from one daemon or two at the same time: numbers
// have no gap, and the tenants' chains are independent.
func TestConcurrentAppend(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		logs := []*eventlog.Log{newLog(t, open(store.Options{}), eventlog.Options{})}
		second := open(store.Options{})
		logs = append(logs, newLog(t, second, eventlog.Options{}))
		tenants(t, second, "acme", "rival")
		const n = 100
		var wg sync.WaitGroup
		seqs := make([]int64, n)
		for i := range n {
			wg.Go(func() {
				e, err := logs[i%2].Append(t.Context(), event([]string{"acme", "rival"}[i/2%2], fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
				}
				seqs[i] = e.Seq
			})
		}
		for i := range 20 {
			wg.Go(func() {
				err := second.Update(t.Context(), func(tx *store.Tx) error {
					_, err := logs[1].AppendTx(t.Context(), tx, event("acme", fmt.Sprint("tx", i)))
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		slices.Sort(seqs)
		sound(t, logs[0], "acme", n/2+20)
		sound(t, logs[1], "rival", n/2)
	})
}

func TestAppendFails(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		l := newLog(t, s, eventlog.Options{})
		tenants(t, s, "acme")
		var wg sync.WaitGroup
		for i := range 20 {
			tenant, want := "acme", sandbox.Code("")
			if i%4 == 0 {
				tenant, want = "nobody", sandbox.CodeNotFound
			}
			wg.Go(func() {
				// An event that cannot be written does not affect the others.
				if _, err := l.Append(t.Context(), event(tenant, "x")); sandbox.CodeOf(err) != want {
					t.Errorf("%s: %v", tenant, err)
				}
			})
		}
		wg.Wait()
		sound(t, l, "acme", 15)

		boom := errors.New("boom")
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			if _, err := l.AppendTx(t.Context(), tx, event("acme", "undone")); err != nil {
				return err
			}
			return boom
		})
		if err == nil {
			t.Error("the transaction did not fail")
		}
		sound(t, l, "acme", 15)
		ok(t, l.Close())
		_, err = l.Append(t.Context(), event("acme", "late"))
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestRead(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		now := time.Unix(1_800_000_000, 0).UTC()
		s := open(store.Options{Now: func() time.Time { return now }})
		l := newLog(t, s, eventlog.Options{})
		tenants(t, s, "acme", "rival")
		start := now
		for i := range 6 {
			e := event("acme", fmt.Sprintf("/f%d \x00 <&> \xff %s", i, strings.Repeat("x", 3000)))
			if i%2 == 1 {
				e.Type, e.Op, e.Code, e.Sandbox = eventlog.Failed, "process.exec", sandbox.CodeTimeout, "id-db"
			}
			wrote, err := l.Append(t.Context(), e)
			ok(t, err)
			got, err := l.Read(t.Context(), "acme", eventlog.Filter{}, int64(i), 1)
			ok(t, err)
			if len(got) != 1 || fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", wrote) {
				t.Errorf("read back %+v, wrote %+v", got, wrote)
			}
			now = now.Add(time.Minute)
		}
		for _, tt := range []struct {
			f     eventlog.Filter
			after int64
			limit int
			want  string
		}{
			{eventlog.Filter{}, 0, 0, "1 2 3 4 5 6"},
			{eventlog.Filter{}, 4, 0, "5 6"},
			{eventlog.Filter{}, 0, 2, "1 2"},
			{eventlog.Filter{}, 6, 0, ""},
			{eventlog.Filter{Since: start.Add(2 * time.Minute), Until: start.Add(4 * time.Minute)}, 0, 0, "3 4"},
			{eventlog.Filter{Ops: []string{"process.exec"}}, 2, 0, "4 6"},
			{eventlog.Filter{Types: []eventlog.Type{eventlog.FilesWritten, eventlog.Created}}, 0, 0, "1 3 5"},
			{eventlog.Filter{Codes: []sandbox.Code{""}}, 0, 1, "1"},
			{eventlog.Filter{Codes: []sandbox.Code{sandbox.CodeTimeout}, Sandbox: "id-db"}, 0, 0, "2 4 6"},
			{eventlog.Filter{Codes: []sandbox.Code{sandbox.CodeTimeout}, Sandbox: "id-web"}, 0, 0, ""},
		} {
			events, err := l.Read(t.Context(), "acme", tt.f, tt.after, tt.limit)
			ok(t, err)
			var got []string
			for _, e := range events {
				got = append(got, fmt.Sprint(e.Seq))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%+v after %d: %v, want %s", tt.f, tt.after, got, tt.want)
			}
		}
		if events, err := l.Read(t.Context(), "rival", eventlog.Filter{}, 0, 0); err != nil || len(events) > 0 {
			t.Errorf("another tenant reads %v, %v", events, err)
		}
	})
}

// TestFollow: a follower gets every event once and in order, old and new, from
// this daemon and another.
func TestFollow(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		l := newLog(t, s, eventlog.Options{Poll: 5 * time.Millisecond})
		writer := l
		if s.Shared() {
			writer = newLog(t, open(store.Options{}), eventlog.Options{})
		}
		tenants(t, s, "acme", "rival")
		const n = 1200 // more than a page
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range n / 4 {
					e := event("acme", fmt.Sprint(i))
					if i == 0 {
						e.Type = eventlog.FilesRead
					}
					if _, err := writer.Append(ctx, e); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		want := int64(1)
		for e, err := range l.Follow(ctx, "acme", eventlog.Filter{}, 0) {
			ok(t, err)
			if e.Seq != want {
				t.Fatalf("got %d, want %d", e.Seq, want)
			}
			if want++; want > n {
				break
			}
		}
		wg.Wait()
		reads := 0
		for _, err := range l.Follow(ctx, "acme", eventlog.Filter{Types: []eventlog.Type{eventlog.FilesRead}}, 0) {
			ok(t, err)
			if reads++; reads == n/4 {
				cancel() // the iteration ends by itself
			}
		}
		if reads != n/4 {
			t.Errorf("%d reads followed, want %d", reads, n/4)
		}
	})
}

// TestExport verifies an export using only what the documentation says.
func TestExport(t *testing.T) {
	s := storetest.SQLite(t, store.Options{})
	l := newLog(t, s, eventlog.Options{})
	tenants(t, s, "acme")
	for i := range 600 {
		_, err := l.Append(t.Context(), event("acme", fmt.Sprintf("<%d>\u2028\"event\":", i)))
		ok(t, err)
	}
	var out bytes.Buffer
	ok(t, l.Export(t.Context(), "acme", eventlog.Filter{}, &out))
	prev := sha("atoll genesis v1\n" + "acme")
	lines := bufio.NewScanner(&out)
	n := 0
	for lines.Scan() {
		n++
		line := lines.Text()
		if !json.Valid([]byte(line)) {
			t.Fatalf("not JSON: %s", line)
		}
		_, body, _ := strings.Cut(line, `"event":`)
		prev = sha("atoll event v1\n" + string(prev) + strings.TrimSuffix(body, "}"))
		if want := `{"hash":"` + hex.EncodeToString(prev) + `"`; !strings.HasPrefix(line, want) {
			t.Fatalf("line %d: %s does not begin with %s", n, line, want)
		}
	}
	if n != 600 {
		t.Errorf("%d lines", n)
	}
}
