package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// mayRepeat reports whether what failed may have a second attempt.
func (r *report) mayRepeat(most int) bool {
	return len(r.failed) > 0 && len(r.failed) <= most &&
		!slices.ContainsFunc(r.failed, func(f failure) bool { return f.final })
}

// repeat runs what failed once more, each package by itself so that nothing
// competes with it, and keeps apart what passes then.
func (r *report) repeat(ctx context.Context, argv []string, stderr io.Writer) error {
	tests := map[string]map[string]bool{} // package → test functions
	for _, f := range r.failed {
		if tests[f.pkg] == nil {
			tests[f.pkg] = map[string]bool{}
		}
		tests[f.pkg][f.top()] = true
	}
	list(r.out, "Once more:", r.failed)
	fmt.Fprintln(r.out)
	var still []failure
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		names := slices.Sorted(maps.Keys(tests[pkg]))
		second := newReport(r.out)
		if _, err := second.follow(ctx, only(argv, pkg, names), stderr); err != nil {
			return err
		}
		for _, f := range r.failed {
			switch {
			case f.pkg != pkg:
			case second.passed > 0 && !second.blames(f.top()):
				r.flaky = append(r.flaky, f)
				r.passed++
			default:
				still = append(still, f)
			}
		}
	}
	r.failed = still
	return nil
}

// blames reports whether a test function, or something that is not a test,
// failed.
func (r *report) blames(top string) bool {
	return slices.ContainsFunc(r.failed, func(f failure) bool { return f.final || f.top() == top })
}

// only returns the command that runs some test functions of one package. A -run
// of the command's own gives way.
func only(argv []string, pkg string, names []string) []string {
	var out []string
	test := false // have we seen the word "test"?
	for _, arg := range argv {
		if test && !strings.HasPrefix(arg, "-") || strings.HasPrefix(arg, "-run=") {
			continue
		}
		test = test || arg == "test"
		out = append(out, arg)
	}
	return append(out, "-run=^("+strings.Join(names, "|")+")$", pkg)
}
