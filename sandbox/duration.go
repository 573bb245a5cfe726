package sandbox

import (
	"math"
	"time"
)

// In JSON every duration is a whole number of milliseconds, in a field with a
// name that ends in Ms. A type with such fields scales them in its MarshalJSON
// and UnmarshalJSON, so that Go programs see only [time.Duration].

// toMS replaces durations by their number of milliseconds, rounded up so that a
// short time does not become none.
func toMS(ds ...*time.Duration) {
	for _, d := range ds {
		ms := *d / time.Millisecond
		if *d%time.Millisecond > 0 {
			ms++
		}
		*d = ms
	}
}

// fromMS is the inverse of toMS. A number that does not fit becomes the longest
// duration.
func fromMS(ds ...*time.Duration) {
	const longest = math.MaxInt64 / time.Millisecond
	for _, d := range ds {
		*d = max(min(*d, longest), -longest) * time.Millisecond
	}
}
