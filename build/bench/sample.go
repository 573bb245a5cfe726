package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// sample contains repeated measurements of one property.
type sample []float64

func (s sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// timing is the duration of one run.
type timing struct {
	first time.Duration // to its first output; 0 if it writes nothing
	whole time.Duration // to its end, including the cleanup
}

// contestant is one of several ways to do the same thing.
type contestant struct {
	name string
	run  func(context.Context) (timing, error)
}

// outcome contains a contestant's times in milliseconds.
type outcome struct{ first, whole sample }

// race runs the contestants in turn, round after round, so that other load on
// the machine affects all alike. Each round starts with the next contestant, so
// that none always follows the same one. The first round does not count.
func race(ctx context.Context, rounds int, cs []contestant) (map[string]*outcome, error) {
	out := map[string]*outcome{}
	for _, c := range cs {
		out[c.name] = &outcome{}
	}
	for round := range rounds + 1 {
		for i := range cs {
			c := cs[(round+i)%len(cs)]
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			t, err := c.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if round == 0 {
				continue
			}
			o := out[c.name]
			o.first = append(o.first, milliseconds(t.first))
			o.whole = append(o.whole, milliseconds(t.whole))
		}
	}
	return out, nil
}

// inARow makes each contestant run n times per round and reports the time in
// the middle, because consecutive runs are faster than the first.
func inARow(n int, cs []contestant) []contestant {
	out := make([]contestant, len(cs))
	for i, c := range cs {
		out[i] = contestant{c.name, func(ctx context.Context) (timing, error) {
			all := make([]timing, n)
			for j := range all {
				var err error
				if all[j], err = c.run(ctx); err != nil {
					return timing{}, err
				}
			}
			slices.SortFunc(all, func(a, b timing) int { return cmp.Compare(a.whole, b.whole) })
			return all[n/2], nil
		}}
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// throughput converts milliseconds per this number of bytes to megabytes per
// second.
func throughput(ms sample, bytes int64) sample {
	out := make(sample, len(ms))
	for i, t := range ms {
		out[i] = float64(bytes) / 1e6 / (t / 1e3)
	}
	return out
}
