package providerset_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// bound is a provider whose sandboxes belong to an account.
type bound struct {
	*fake.Provider
	binding string
	probes  *int
}

func (b bound) Binding(context.Context) (string, error) {
	if b.binding == "" {
		return "", errors.New("no account")
	}
	return b.binding, nil
}

func (b bound) Probe(ctx context.Context) (driver.Facts, error) {
	*b.probes++
	facts, err := b.Provider.Probe(ctx)
	facts.Available = *b.probes > 1
	return facts, err
}

func open(providerset.Host) (driver.Provider, error) { return fake.New(fake.Options{}), nil }

func host(name string) providerset.Host {
	return providerset.Host{Dir: "/" + name, Options: json.RawMessage(`{"size":3}`)}
}

func TestNewRefuses(t *testing.T) {
	for want, entries := range map[string][]providerset.Entry{
		"registered twice":     {{Name: "a", Open: open}, {Name: "a", Open: open}},
		"cannot be registered": {{Name: "Bad Name", Open: open}},
		"a way to open it":     {{Name: "b"}},
		"no providers":         {},
	} {
		_, err := providerset.New(host, entries...)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestLookup(t *testing.T) {
	r, err := providerset.New(host, providerset.Entry{Name: "one", Open: open}, providerset.Entry{Name: "two", Open: open})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := r.Lookup("two"); err != nil || e.Name != "two" {
		t.Errorf("%+v, %v", e, err)
	}
	_, err = r.Lookup("three")
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Code != sandbox.CodeInvalid || e.Subject != "three" || !strings.Contains(e.Hint, "one, two") {
		t.Errorf("got %#v", err)
	}
	r.Entries()[0].Name = "changed"
	if r.Entries()[0].Name != "one" {
		t.Error("the registry shares its entries")
	}
}

// A provider is opened once, with its own directory and options, however many
// ask for it; a failure is not remembered.
func TestOpen(t *testing.T) {
	opened, fails := 0, true
	r, err := providerset.New(host, providerset.Entry{Name: "mine", Open: func(h providerset.Host) (driver.Provider, error) {
		if fails {
			return nil, errors.New("no engine")
		}
		var o struct{ Size int }
		if err := h.Decode(&o); err != nil || o.Size != 3 || h.Dir != "/mine" {
			t.Errorf("%+v %+v %v", o, h, err)
		}
		opened++
		return fake.New(fake.Options{}), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(t.Context(), "mine"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	fails = false
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			if p, err := r.Open(context.Background(), "mine"); err != nil || p.Name != "mine" || p.Binding != "memory" {
				t.Errorf("%+v %v", p, err)
			}
		})
	}
	work.Wait()
	if opened != 1 {
		t.Errorf("opened %d times, want 1", opened)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}

func TestUnknownOptionsAreRefused(t *testing.T) {
	var o struct{ Other int }
	if err := host("a").Decode(&o); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("got %v", err)
	}
	if err := (providerset.Host{}).Decode(&o); err != nil {
		t.Errorf("no options: %v", err)
	}
}

// The binding is the provider's. What Probe finds is remembered once the
// provider is available, and not before.
func TestBindingAndFacts(t *testing.T) {
	probes, binding := 0, ""
	r, err := providerset.New(host, providerset.Entry{Name: "hosted", Open: func(providerset.Host) (driver.Provider, error) {
		return bound{fake.New(fake.Options{}), binding, &probes}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := r.Open(t.Context(), "hosted"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("without a binding: %v", err)
	}
	binding = "https://api.example.com#1"
	p, err := r.Open(t.Context(), "hosted")
	if err != nil || p.Binding != binding {
		t.Fatalf("%+v %v", p, err)
	}
	for i, want := range []bool{false, true, true} {
		if facts, err := p.Facts(t.Context()); err != nil || facts.Available != want {
			t.Errorf("facts %d: %+v %v", i, facts, err)
		}
	}
	if probes != 2 {
		t.Errorf("probed %d times, want 2", probes)
	}
}
