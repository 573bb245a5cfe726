// Package drivertest is the conformance suite of package driver: it tests the
// promises documented there. It has two entry points with the same cases: [Run]
// for the tests of a provider, and [Check] for operators who want to know
// whether a provider works on their machine or with their account.
//
// The suite applies one rule to every capability: what a provider declares,
// what its instances implement and what works must be the same. A case that
// needs an undeclared capability does not skip; it checks that the capability
// is absent.
//
// The commands that the cases run inside a sandbox are a POSIX sh and a few
// coreutils: cat chmod dd echo env false head id ln ls mkdir mkfifo mv printf
// pwd rm sleep stty true wc. An image needs nothing else.
//
// A provider's test is short:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			New:  func(context.Context) (driver.Provider, error) { return fake.New(opts), nil },
//			Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
//		})
//	}
package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// IDPrefix is the prefix of the IDs of all sandboxes and snapshots of the
// suite.
const IDPrefix = "dt-"

// Harness configures the suite for a provider. New and Spec must be set.
type Harness struct {
	// New connects to the provider. The suite calls it several times and uses the
	// results concurrently, each as another process on the same machine or account
	// would. The suite closes the results.
	New func(ctx context.Context) (driver.Provider, error)

	// Spec returns the smallest useful spec for this provider: an image with
	// the commands named above, and small limits. The suite sets ID and Name,
	// and adds env, labels and the like.
	Spec func() sandbox.Spec

	// Dir returns an absolute directory inside the sandbox that exists, is
	// writable, and has the same path for commands and files. Nil means /tmp.
	Dir func(driver.Instance) string

	// SnapshotFiles returns the directory with the files of a snapshot, for cases
	// that damage them. Nil: there are no such files, or they are not accessible.
	SnapshotFiles func(driver.SnapshotRef) string

	// Echo is a program inside the sandbox that listens on any TCP port of
	// 127.0.0.1, prints the port's number and a newline, and echoes the data of
	// any number of connections. It closes a connection when the other side does.
	// Nil: a short program for python3; without it in the image, the cases that
	// need it are skipped.
	Echo []string

	// Host is the name by which sandboxes reach the ports of this machine's
	// 127.0.0.1 if a rule allows it. Empty: they cannot, and the suite tests only
	// refusals.
	Host string

	// Connect is a program inside the sandbox that gets a host and a port as
	// arguments and connects. It prints the received data, "refused" if the
	// connection was rejected, or "late" if there was no answer for many seconds.
	// Nil: a short program for python3; without it in the image, the cases that
	// need it are skipped.
	Connect []string

	// Close releases what the providers share in this process, such as a gateway.
	// The suite calls it after it has closed the last provider and before it
	// checks for leaks. Nil: they share nothing.
	Close func() error

	// Slow is for providers whose sandboxes take seconds to start and whose data
	// crosses a network: sizes and counts are smaller, and timeouts longer.
	Slow bool

	// Patience is how long a case may take. Zero: a minute, or five if Slow.
	Patience time.Duration

	// Only restricts the suite to cases whose name starts with one of these
	// prefixes. Empty: all.
	Only []string

	// Parallel runs the cases of a group concurrently, except those that check for
	// leaks: in [Run] as many as go test's -parallel allows, in [Check] up to 8.
	Parallel bool

	// Observe, if not nil, is called after every case, never concurrently.
	Observe func(Result)

	beside bool // another suite runs in this process: leave its loggers and environment alone
}

// Status is the outcome of one case.
type Status string

// The outcomes of a case.
const (
	Pass Status = "pass"
	Fail Status = "fail"
	// NotApplicable means that the case needs a capability that the provider does
	// not declare, and that the capability is absent.
	NotApplicable Status = "not_applicable"
	// Skipped means that the image lacks a program that the case runs.
	Skipped Status = "skipped"
)

// Result is the outcome of one case.
type Result struct {
	Name       string        `json:"name"`
	Status     Status        `json:"status"`
	Capability string        `json:"capability,omitempty"` // the capability that the case needs
	Messages   []string      `json:"messages,omitempty"`   // reasons of the failure or the skip, and notes
	Duration   time.Duration `json:"duration"`             // nanoseconds
}

// Report is the outcome of the suite.
type Report struct {
	Provider string   `json:"provider"`
	Version  string   `json:"version,omitempty"`
	Results  []Result `json:"results"`
}

// Failed returns the results of the failed cases.
func (r Report) Failed() []Result {
	var failed []Result
	for _, res := range r.Results {
		if res.Status == Fail {
			failed = append(failed, res)
		}
	}
	return failed
}

// Err returns nil if no case failed, else an error with their number.
func (r Report) Err() error {
	failed := r.Failed()
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d conformance cases failed, first %s", len(failed), len(r.Results), failed[0].Name)
}

// WriteText writes the report as text: a line for every case, the reasons of
// every failure, and a summary.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	count := map[Status]int{}
	for _, res := range r.Results {
		count[res.Status]++
		fmt.Fprintf(&b, "%-15s %s", strings.ReplaceAll(string(res.Status), "_", " "), res.Name)
		if res.Status == NotApplicable {
			fmt.Fprintf(&b, " (no %s)", res.Capability)
		}
		b.WriteByte('\n')
		if res.Status == Fail || res.Status == Skipped {
			for _, m := range res.Messages {
				fmt.Fprintf(&b, "    %s\n", strings.ReplaceAll(m, "\n", "\n    "))
			}
		}
	}
	fmt.Fprintf(&b, "%s: %d passed, %d failed, %d not applicable", r.Provider, count[Pass], count[Fail], count[NotApplicable])
	if n := count[Skipped]; n > 0 {
		fmt.Fprintf(&b, ", %d skipped", n)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the report as one indented JSON object.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Run runs the suite as subtests of t, one group of cases after another. It
// must not run in parallel with other tests of the same binary, because it
// checks this process for leaked goroutines and descriptors and captures the
// default loggers.
func Run(t *testing.T, h Harness) {
	s, err := newSuite(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, g := range s.grouped() {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(strings.TrimPrefix(c.name, g.name+"/"), func(t *testing.T) {
					if h.Parallel && g.name != leaksGroup {
						t.Parallel()
					}
					s.run(t.Context(), c).report(t)
				})
			}
		})
	}
}

// report reports a result to a test.
func (r Result) report(t *testing.T) {
	for _, m := range r.Messages {
		t.Log(m)
	}
	switch r.Status {
	case Fail:
		t.Fail()
	case Skipped:
		t.SkipNow()
	case NotApplicable:
		t.Logf("%s is not declared, and is absent", r.Capability)
	}
}

// Check runs the suite without a test and returns the report. When ctx ends,
// the running cases fail and the rest does not run. Like [Run], it must not run
// in parallel with other work in this process.
func Check(ctx context.Context, h Harness) Report {
	s, err := newSuite(ctx, h)
	if err != nil {
		return Report{Results: []Result{{Name: "suite", Status: Fail, Messages: []string{err.Error()}}}}
	}
	defer s.close()
	report := Report{Provider: s.facts.Provider, Version: s.facts.Version}
	for _, g := range s.grouped() {
		report.Results = append(report.Results, s.check(ctx, g)...)
	}
	return report
}

// check runs a group, unless ctx has ended.
func (s *suite) check(ctx context.Context, g *caseGroup) []Result {
	width := 1
	if s.h.Parallel && g.name != leaksGroup {
		width = 8
	}
	var cases sync.WaitGroup
	running := make(chan struct{}, width)
	results := make([]Result, len(g.cases))
	for i, c := range g.cases {
		running <- struct{}{}
		cases.Go(func() {
			if ctx.Err() == nil {
				results[i] = s.run(ctx, c)
			}
			<-running
		})
	}
	cases.Wait()
	return slices.DeleteFunc(results, func(r Result) bool { return r.Name == "" })
}
