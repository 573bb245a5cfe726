package eventlog_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestTypesAreAll: a type that is missing in the list could not be filtered for.
func TestTypesAreAll(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../sandbox/eventtype/eventtypes.go", nil, parser.SkipObjectResolution)
	ok(t, err)
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		declared++
		value := strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`)
		if !slices.Contains(eventlog.Types(), eventlog.Type(value)) {
			t.Errorf("%s is not in the list", value)
		}
		return true
	})
	if declared < 40 || declared != len(eventlog.Types()) {
		t.Errorf("%d types are declared, %d in the list", declared, len(eventlog.Types()))
	}
}

func TestFilterValidate(t *testing.T) {
	now := time.Now()
	for _, f := range []eventlog.Filter{{Types: []eventlog.Type{"sandbox.create"}}, {Types: []eventlog.Type{eventlog.Done, ""}}, {Since: now, Until: now.Add(-1)}} {
		if err := f.Validate(); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, f := range []eventlog.Filter{{}, {Types: eventlog.Types()}, {Since: now}, {Until: now}, {Since: now, Until: now}, {Since: now.Add(-1), Until: now}} {
		ok(t, f.Validate())
	}
}

// TestFollowUntil checks that Follow ends at Until, whether that time is past
// or still to come, and yields every event before it.
func TestFollowUntil(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		for name, wait := range map[string]time.Duration{"past": time.Nanosecond, "to come": 20 * time.Millisecond} {
			t.Run(name, func(t *testing.T) {
				s := open(store.Options{})
				tenant := strings.ReplaceAll(name, " ", "-")
				tenants(t, s, tenant)
				l := newLog(t, s, eventlog.Options{Poll: time.Hour})
				var last eventlog.Event
				for i := range 3 {
					var err error
					last, err = l.Append(t.Context(), event(tenant, fmt.Sprint(i)))
					ok(t, err)
				}
				// By the clock of the store, which may differ from ours.
				until := last.Time.Add(wait)
				seen := 0
				for _, err := range l.Follow(t.Context(), tenant, eventlog.Filter{Until: until}, 0) {
					ok(t, err)
					seen++
				}
				if seen != 3 {
					t.Errorf("%d events, want 3", seen)
				}
			})
		}
	})
}

// TestCursorsBeyondTheEnd checks that a cursor beyond the end of the log is
// refused: a follower would miss the events up to it.
func TestCursorsBeyondTheEnd(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		l := newLog(t, s, eventlog.Options{})
		for after := range int64(3) { // the log is as long as that each time
			if events, err := l.Read(t.Context(), "acme", eventlog.Filter{}, after, 10); err != nil || len(events) != 0 {
				t.Errorf("after the last of %d: %v %v", after, events, err)
			}
			_, err := l.Read(t.Context(), "acme", eventlog.Filter{}, after+1, 10)
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("after %d of %d: %v", after+1, after, err)
			}
			n := 0
			for _, err := range l.Follow(t.Context(), "acme", eventlog.Filter{}, after+1) {
				if n++; n > 1 || sandbox.CodeOf(err) != sandbox.CodeInvalid {
					t.Fatalf("following after %d of %d: %v", after+1, after, err)
				}
			}
			_, err = l.Append(t.Context(), event("acme", "x"))
			ok(t, err)
		}
	})
}
