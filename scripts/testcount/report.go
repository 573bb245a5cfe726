package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// maxOutput bounds what is kept of one test's output, in bytes.
const maxOutput = 256 << 10

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// testRun is one test or subtest.
type testRun struct {
	name   string
	result string // pass, fail or skip; empty while it runs
	parent bool   // has subtests
	output output
}

// packageRun is one test binary.
type packageRun struct {
	path   string
	tests  map[string]*testRun
	output output // what no test claims: panics, races, build errors
}

// report follows the events of many packages, whose lines may interleave.
type report struct {
	out      io.Writer
	packages map[string]*packageRun
	builds   map[string]*output // by import path
	passed   int
	failed   []failure
	flaky    []failure
	skipped  []string
}

// failure is a test that failed, or a package.
type failure struct {
	pkg, test string // test is empty if no test of the package is to blame
	final     bool   // another attempt would prove nothing
	note      string
}

func (f failure) String() string {
	return strings.TrimSpace(f.pkg+" "+f.test) + f.note
}

// top is the name of the test function.
func (f failure) top() string {
	name, _, _ := strings.Cut(f.test, "/")
	return name
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: map[string]*packageRun{}, builds: map[string]*output{}}
}

// read consumes events to the end of r. A line that is no event is shown as it
// is: the go command prints some of its own complaints that way.
func (r *report) read(in io.Reader) error {
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadBytes('\n')
		if line = bytes.TrimRight(line, "\n"); len(line) > 0 {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(r.out, "%s\n", line)
		return
	}
	switch {
	case e.Action == "build-output":
		r.build(e.ImportPath).add(e.Output)
	case e.Package == "":
	case e.Test == "":
		r.packageEvent(&e)
	default:
		r.testEvent(&e)
	}
}

func (r *report) build(path string) *output {
	if r.builds[path] == nil {
		r.builds[path] = &output{}
	}
	return r.builds[path]
}

func (r *report) pkg(path string) *packageRun {
	if r.packages[path] == nil {
		r.packages[path] = &packageRun{path: path, tests: map[string]*testRun{}}
	}
	return r.packages[path]
}

func (r *report) testEvent(e *event) {
	p := r.pkg(e.Package)
	t := p.tests[e.Test]
	if t == nil {
		t = &testRun{name: e.Test}
		p.tests[e.Test] = t
		// "A/b/c" makes parents of "A" and "A/b". A slash may also be part of
		// a subtest's own name, and then there is mostly no "A/b" to mark.
		for i := strings.LastIndexByte(e.Test, '/'); i > 0; i = strings.LastIndexByte(e.Test[:i], '/') {
			if up := p.tests[e.Test[:i]]; up != nil {
				up.parent = true
			}
		}
	}
	switch e.Action {
	case "output":
		t.output.add(e.Output)
	case "pass", "fail", "skip":
		t.result = e.Action
	}
}

func (r *report) packageEvent(e *event) {
	p := r.pkg(e.Package)
	switch e.Action {
	case "output":
		p.output.add(e.Output)
	case "pass", "fail", "skip":
		r.endPackage(p, e)
		delete(r.packages, e.Package)
	}
}

// endPackage counts a package's tests and shows it: one line if all is well,
// otherwise with the output of what failed.
func (r *report) endPackage(p *packageRun, e *event) {
	before := len(r.failed)
	shown := r.count(p)
	if e.Action == "fail" && len(r.failed) == before {
		// No test failed, so the package did: build, panic, TestMain, timeout.
		r.failed = append(r.failed, failure{pkg: p.path, final: true})
	}
	word := map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "--  "}[e.Action]
	note := fmt.Sprintf("%d tests", leaves(p))
	if e.Action == "skip" || len(p.tests) == 0 && e.Action == "pass" {
		note = "no tests"
	}
	fmt.Fprintf(r.out, "%s %8.2fs  %-9s %s\n", word, e.Elapsed, note, p.path)
	if e.Action != "fail" {
		return
	}
	for _, t := range shown {
		fmt.Fprintf(r.out, "\n%s %s\n", p.path, t.name)
		t.output.indent(r.out)
	}
	if b := r.builds[e.FailedBuild]; b != nil {
		b.indent(r.out)
	}
	p.output.indent(r.out)
	fmt.Fprintln(r.out)
}

// count adds up p's tests in order of their names and returns those whose
// output explains a failure.
func (r *report) count(p *packageRun) (explain []*testRun) {
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		t := p.tests[name]
		switch {
		case t.result == "":
			// The process ended in the middle of it, and with it its parents.
			explain = append(explain, t)
			if !t.parent {
				r.failed = append(r.failed, failure{p.path, name, true, " (did not finish)"})
			}
		case t.result == "fail":
			explain = append(explain, t)
			if !t.parent || !failedBelow(p, name) {
				r.failed = append(r.failed, failure{pkg: p.path, test: name, final: p.raced()})
			}
		case t.result == "skip":
			r.skipped = append(r.skipped, p.path+" "+name+t.output.reason())
		case !t.parent:
			r.passed++
		}
	}
	return explain
}

// raced reports whether the race detector found something in the package. That
// is a finding however often the test passes.
func (p *packageRun) raced() bool {
	if p.output.raced() {
		return true
	}
	for _, t := range p.tests {
		if t.output.raced() {
			return true
		}
	}
	return false
}

// failedBelow reports whether a subtest of name explains its failure.
func failedBelow(p *packageRun, name string) bool {
	for n, t := range p.tests {
		if strings.HasPrefix(n, name+"/") && (t.result == "fail" || t.result == "") {
			return true
		}
	}
	return false
}

func leaves(p *packageRun) (n int) {
	for _, t := range p.tests {
		if !t.parent {
			n++
		}
	}
	return n
}

// close ends the packages of which no end was heard.
func (r *report) close() {
	for _, path := range slices.Sorted(maps.Keys(r.packages)) {
		r.endPackage(r.packages[path], &event{Action: "fail", Package: path})
		delete(r.packages, path)
	}
}

// finish ends the report with its lists and the line of counts, and tells
// whether the run is a success.
func (r *report) finish() bool {
	r.close()
	list(r.out, "Failed:", r.failed)
	list(r.out, "Passed only the second time:", r.flaky)
	list(r.out, "Skipped:", r.skipped)
	total := r.passed + len(r.failed)
	if total == 0 {
		fmt.Fprintln(r.out, "\nNo test ran.")
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped", r.passed, len(r.failed), len(r.skipped))
	if len(r.flaky) > 0 {
		fmt.Fprintf(r.out, ", %d passed only the second time", len(r.flaky))
	}
	fmt.Fprintln(r.out)
	return total > 0 && len(r.failed) == 0
}

func list[T any](out io.Writer, title string, names []T) {
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", title)
	for _, n := range names {
		fmt.Fprintf(out, "  %v\n", n)
	}
}

// output keeps the end of what was written to it: the reason of a failure is
// seldom at the beginning.
type output struct {
	text    []byte
	dropped int
}

func (o *output) add(s string) {
	o.text = append(o.text, s...)
	if len(o.text) > 2*maxOutput {
		cut := len(o.text) - maxOutput
		o.dropped += cut
		o.text = append(o.text[:0], o.text[cut:]...)
	}
}

func (o *output) indent(w io.Writer) {
	if o.dropped > 0 {
		fmt.Fprintf(w, "    (%d bytes left out)\n", o.dropped)
	}
	for line := range strings.Lines(string(o.text)) {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprintf(w, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
}

func (o *output) raced() bool { return bytes.Contains(o.text, []byte("WARNING: DATA RACE")) }

// reason finds why a test was skipped: its last line before the verdict.
func (o *output) reason() string {
	why := ""
	for line := range strings.Lines(string(o.text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			why = ": " + line
		}
	}
	return why
}
