package identity_test

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/identity"
)

func TestOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "identity")
	names := make([]string, 16)
	var all sync.WaitGroup
	for i := range names {
		all.Go(func() {
			var err error
			if names[i], err = identity.Of(file); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, name := range names {
		if name == "" || name != names[0] {
			t.Errorf("one caller gets %q, another %q; want the same name for all", names[0], name)
		}
	}
	if other, err := identity.Of(filepath.Join(t.TempDir(), "identity")); err != nil || other == names[0] {
		t.Errorf("another directory has the name %q, %v; want one of its own", other, err)
	}
}
