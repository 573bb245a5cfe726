package all_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/all"
)

// The catalog says the same about a provider as its driver: neither more nor
// less, also about the variables that it reads.
func TestCatalog(t *testing.T) {
	store, err := image.Open(t.TempDir(), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	known := map[string]catalog.Descriptor{}
	for _, d := range catalog.Known() {
		known[d.Name] = d
	}
	for _, e := range all.Builtin() {
		t.Run(e.Name, func(t *testing.T) {
			asked := map[string]bool{}
			p, err := e.Open(providerset.Host{
				Dir: t.TempDir(), Images: func() (*image.Store, error) { return store, nil },
				LookupEnv: func(name string) (string, bool) { asked[name] = true; return "", false },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			facts, err := p.Probe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			now := catalog.Provider{Name: e.Name, Summary: e.Summary}
			driver.Describe(p, facts, &now)
			want := known[e.Name]
			listed := map[string]bool{}
			for _, c := range want.Credentials {
				listed[c.Env] = true
			}
			if have, say := slices.Sorted(maps.Keys(asked)), slices.Sorted(maps.Keys(listed)); !slices.Equal(have, say) {
				t.Errorf("the driver reads the variables\n%s, and the catalog lists\n%s", strings.Join(have, " "), strings.Join(say, " "))
			}
			if len(now.Capabilities) == 0 || e.Name == "remote" {
				need.Thing(t, "a daemon", "its capabilities are not known before it answers")
			}
			if e.Name == "host" { // only root can run commands as other users
				now.Capabilities["users"] = want.RunAs
			}
			got := catalog.Describe([]catalog.Provider{now})[0].Descriptor
			for what, pair := range map[string][2]any{
				"pause": {got.Pause, want.Pause}, "snapshot": {got.Snapshot, want.Snapshot}, "fork": {got.Fork, want.Fork}, "ports": {got.Ports, want.Ports},
				"terminal": {got.Terminal, want.Terminal}, "run as": {got.RunAs, want.RunAs}, "files": {got.FileSystem, want.FileSystem},
				"persistable": {got.Persistable, want.Persistable}, "suspend": {got.Lifetime.Suspend, want.Lifetime.Suspend},
			} {
				if pair[0] != pair[1] {
					t.Errorf("%s: %v with the driver, and the catalog says %v", what, pair[0], pair[1])
				}
			}
		})
	}
}
