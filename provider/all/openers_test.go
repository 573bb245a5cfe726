package all

import (
	"maps"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/internal/catalog"
)

// The catalog lists the providers that can be opened, and no others.
func TestOpeners(t *testing.T) {
	var listed []string
	for _, p := range catalog.Builtin() {
		listed = append(listed, p.Name)
	}
	slices.Sort(listed)
	if have := slices.Sorted(maps.Keys(openers)); !slices.Equal(have, listed) {
		t.Errorf("there are drivers for %v, and catalog.Builtin lists %v", have, listed)
	}
}
