package all_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/sandbox"
)

func open(all.Options) (driver.Provider, error) { return nil, nil }

func TestRegistryPanics(t *testing.T) {
	tests := map[string][]all.Entry{
		"registered twice":     {{Name: "a", Open: open}, {Name: "a", Open: open}},
		"cannot be registered": {{Name: "Bad Name", Open: open}},
		"\"b\"":                {{Name: "b"}},
	}
	for want, entries := range tests {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, want) {
					t.Errorf("panicked with %q", text)
				}
			}()
			all.NewRegistry(entries...)
		})
	}
}

func TestLookup(t *testing.T) {
	r := all.NewRegistry(all.Entry{Name: "one", Open: open}, all.Entry{Name: "two", Open: open})
	if e, err := r.Lookup("two"); err != nil || e.Name != "two" {
		t.Errorf("%+v, %v", e, err)
	}
	_, err := r.Lookup("three")
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != sandbox.CodeInvalid || e.Subject != "three" || !strings.Contains(e.Hint, "one, two") {
		t.Errorf("got %#v", err)
	}
	r.Entries()[0].Name = "changed"
	if r.Entries()[0].Name != "one" {
		t.Error("the registry shares its entries")
	}
}

// Every provider opens without touching anything but its own directory, and
// answers to its name.
func TestBuiltin(t *testing.T) {
	store, err := image.Open(t.TempDir(), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, e := range all.Builtin().Entries() {
		t.Run(e.Name, func(t *testing.T) {
			if e.Summary == "" {
				t.Error("no summary")
			}
			p, err := e.Open(all.Options{StateDir: t.TempDir(), Images: func() (*image.Store, error) { return store, nil }})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			facts, err := p.Probe(context.Background())
			if err != nil || facts.Provider != e.Name {
				t.Errorf("%+v, %v", facts, err)
			}
		})
	}
}
