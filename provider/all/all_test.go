package all_test

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/all"
)

// Every provider opens without touching anything but its own directory, and
// answers to its name.
func TestBuiltin(t *testing.T) {
	store, err := image.Open(t.TempDir(), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, e := range all.Builtin() {
		t.Run(e.Name, func(t *testing.T) {
			if e.Summary == "" {
				t.Error("no summary")
			}
			p, err := e.Open(providerset.Host{Dir: t.TempDir(), Images: func() (*image.Store, error) { return store, nil }})
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
