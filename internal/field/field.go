// Package field has what types with JSON tags share: durations in milliseconds,
// and changes of fields that may stay as they are.
package field

import (
	"math"
	"time"
)

// In JSON every duration is a whole number of milliseconds, in a field with a
// name that ends in Ms. A type with such fields scales them in its MarshalJSON
// and UnmarshalJSON, so that Go programs see only [time.Duration].

// ToMS replaces durations by their number of milliseconds, rounded up so that a
// short time does not become none.
func ToMS(ds ...*time.Duration) {
	for _, d := range ds {
		ms := *d / time.Millisecond
		if *d%time.Millisecond > 0 {
			ms++
		}
		*d = ms
	}
}

// FromMS is the inverse of ToMS. A number that does not fit becomes the longest
// duration.
func FromMS(ds ...*time.Duration) {
	const longest = math.MaxInt64 / time.Millisecond
	for _, d := range ds {
		*d = max(min(*d, longest), -longest) * time.Millisecond
	}
}

// Change sets v to what to points to. Nil: v stays as it is.
func Change[T any](v, to *T) {
	if to != nil {
		*v = *to
	}
}
