package store

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// Whoever misspelt a name is told how to find the right one.
func TestMissingNamesTheList(t *testing.T) {
	for what, want := range map[string]string{
		"sandbox": "see what exists with: atoll ls", "session": "see what exists with: atoll session ls",
		"workspace": "see what exists with: atoll workspace ls", "recording": "see what exists with: atoll record ls", "lease": "",
	} {
		e, ok := errors.AsType[*sandbox.Error](missing(sql.ErrNoRows, what, "x"))
		if !ok || e.Code != sandbox.CodeNotFound || e.Message != "no such "+what || e.Hint != want {
			t.Errorf("%s: %+v", what, e)
		}
	}
}
