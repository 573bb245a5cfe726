package store_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
)

// Methods for one kind of object belong to the type of that kind, and a type
// must not lead back to the methods of the others.
func TestTxOnlyReturnsTypesOfOneKind(t *testing.T) {
	own := []string{"Now", "OnCommit", "Spin"} // Spin is for tests
	tx := reflect.TypeFor[*store.Tx]()
	for m := range tx.Methods() {
		if slices.Contains(own, m.Name) {
			continue
		}
		if m.Type.NumIn() != 1 || m.Type.NumOut() != 1 {
			t.Errorf("Tx.%s is %v: want a method that takes nothing and returns one type, such as Sandboxes", m.Name, m.Type)
			continue
		}
		if _, leads := m.Type.Out(0).MethodByName("OnCommit"); leads {
			t.Errorf("Tx.%s returns %v, which has the methods of Tx: want it not to embed one", m.Name, m.Type.Out(0))
		}
	}
}
