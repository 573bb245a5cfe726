package hosted

import (
	"context"
	"errors"
	"testing"
)

// A snapshot whose record is removed while the records are listed is none.
func TestRemovedRecord(t *testing.T) {
	k := &Keeper{} // without a Saver, to which no request is made
	lost := func(context.Context, string, SavedRecord) (Saved, error) {
		t.Error("it was looked for")
		return Saved{}, nil
	}
	if _, err := k.recorded(t.Context(), "gone", SavedRecord{}, lost); !errors.Is(err, ErrNone) {
		t.Errorf("%v, want %v", err, ErrNone)
	}
}
