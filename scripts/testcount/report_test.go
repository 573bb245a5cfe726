package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module writes a Go module of one test file and returns the command that
// tests it. The real go command is used, so that a change of its output is
// noticed here.
func module(t *testing.T, body string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.test/m\n\ngo 1.26\n",
		"m.go":      "// Package m is tested.\npackage m\n",
		"m_test.go": "package m\n\nimport \"testing\"\n\n" + body,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"go", "-C", dir, "test", "-json", "./..."}
}

func TestRun(t *testing.T) {
	tests := []struct {
		name string
		body string
		ok   bool
		last string
		has  []string // what the report must show
		not  []string
	}{
		{
			name: "all pass, and a table counts its rows",
			body: `func TestA(t *testing.T) {}
func TestB(t *testing.T) { for _, n := range []string{"x", "y", "v/w"} { t.Run(n, func(t *testing.T) { t.Log("quiet") }) } }`,
			ok: true, last: "4 passed, 0 failed, 0 skipped",
			has: []string{"example.test/m", "4 tests"}, not: []string{"quiet"},
		},
		{
			name: "a failing row is named once, with its output",
			body: `func TestB(t *testing.T) { t.Run("x", func(t *testing.T) { t.Error("because") }); t.Run("y", func(t *testing.T) {}) }`,
			last: "1 passed, 1 failed, 0 skipped",
			has:  []string{"Failed:\n  example.test/m TestB/x\n", "because"},
		},
		{
			name: "a parent that fails by itself counts",
			body: `func TestB(t *testing.T) { t.Run("x", func(t *testing.T) {}); t.Error("afterwards") }`,
			last: "1 passed, 1 failed, 0 skipped",
			has:  []string{"Failed:\n  example.test/m TestB\n", "afterwards"},
		},
		{
			name: "a skip is listed with its reason",
			body: `func TestA(t *testing.T) {}
func TestS(t *testing.T) { t.Skip("no such device") }`,
			ok: true, last: "1 passed, 0 failed, 1 skipped",
			has: []string{"Skipped:\n  example.test/m TestS: ", "no such device"},
		},
		{
			name: "nothing but skips is no success",
			body: `func TestS(t *testing.T) { t.Skip("no") }`,
			last: "0 passed, 0 failed, 1 skipped", has: []string{"No test ran."},
		},
		{
			name: "no test is no success",
			body: `var _ testing.TB`,
			last: "0 passed, 0 failed, 0 skipped", has: []string{"No test ran."},
		},
		{
			name: "a panic names the test that ran",
			body: `func TestP(t *testing.T) { go func() { panic("boom") }(); select {} }`,
			last: "0 passed, 1 failed, 0 skipped", has: []string{"TestP", "boom"},
		},
		{
			name: "an early exit is a failure",
			body: `func TestP(t *testing.T) { exit() }
func exit() { panic("out") }`,
			last: "0 passed, 1 failed, 0 skipped", has: []string{"out"},
		},
		{
			name: "a package that does not compile",
			body: `func TestA(t *testing.T) { undefined() }`,
			last: "0 passed, 1 failed, 0 skipped",
			has:  []string{"undefined: undefined", "Failed:\n  example.test/m\n"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out, stderr bytes.Buffer
			ok, err := run(t.Context(), module(t, tt.body), 0, &out, &stderr)
			if err != nil {
				t.Fatalf("run: %v\n%s", err, &stderr)
			}
			if ok != tt.ok {
				t.Errorf("ok is %v", ok)
			}
			text := out.String()
			if lines := strings.Split(strings.TrimSpace(text), "\n"); lines[len(lines)-1] != tt.last {
				t.Errorf("last line is %q, want %q", lines[len(lines)-1], tt.last)
			}
			for _, s := range tt.has {
				if !strings.Contains(text, s) {
					t.Errorf("%q is missing", s)
				}
			}
			for _, s := range tt.not {
				if strings.Contains(text, s) {
					t.Errorf("%q is shown", s)
				}
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}

// TestSecondAttempt: what a second attempt may excuse, and what it may not. once
// is true in the first process that asks.
func TestSecondAttempt(t *testing.T) {
	const once = `func once(name string) bool { return os.Mkdir(name, 0o700) == nil }
`
	tests := []struct {
		name string
		body string
		ok   bool
		last string
		has  []string
	}{
		{
			name: "passes the second time, and is named",
			body: `func TestA(t *testing.T) {}
func TestB(t *testing.T) { t.Run("x", func(t *testing.T) { if once("b") { t.Error("because") } }); t.Run("y", func(t *testing.T) {}) }`,
			ok: true, last: "3 passed, 0 failed, 0 skipped, 1 passed only the second time",
			has: []string{"because", "Passed only the second time:\n  example.test/m TestB/x\n"},
		},
		{
			name: "fails again",
			body: `func TestA(t *testing.T) { t.Error("because") }
func TestB(t *testing.T) { if once("b") { t.Error("only now") } }`,
			last: "1 passed, 1 failed, 0 skipped, 1 passed only the second time",
			has:  []string{"Failed:\n  example.test/m TestA\n"},
		},
		{
			name: "is skipped the second time",
			body: `func TestA(t *testing.T) { if !once("a") { t.Skip("not now") }; t.Error("because") }`,
			last: "0 passed, 1 failed, 0 skipped", has: []string{"Failed:\n  example.test/m TestA\n"},
		},
		{
			name: "too many failed",
			body: `func TestA(t *testing.T) { for _, n := range []string{"a", "b", "c"} { t.Run(n, func(t *testing.T) { if once(n) { t.Error("because") } }) } }`,
			last: "0 passed, 3 failed, 0 skipped",
		},
		{
			name: "a panic is final",
			body: `func TestA(t *testing.T) { if once("a") { go panic("boom"); select {} } }`,
			last: "0 passed, 1 failed, 0 skipped", has: []string{"boom"},
		},
		{
			name: "a race is final",
			body: `func TestA(t *testing.T) { if once("a") { t.Error("WARNING: DATA RACE") } }`,
			last: "0 passed, 1 failed, 0 skipped",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out, stderr bytes.Buffer
			argv := module(t, "import \"os\"\n\n"+once+tt.body)
			ok, err := run(t.Context(), slices.Insert(argv, 4, "-count=1"), 2, &out, &stderr)
			if err != nil {
				t.Fatalf("run: %v\n%s", err, &stderr)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; ok != tt.ok || last != tt.last {
				t.Errorf("ok is %v, last line is %q, want %q", ok, last, tt.last)
			}
			for _, s := range tt.has {
				if !strings.Contains(out.String(), s) {
					t.Errorf("%q is missing", s)
				}
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

// TestTruncatedStream: the go command was killed before it could say how a
// package ended.
func TestTruncatedStream(t *testing.T) {
	const stream = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"run","Package":"p","Test":"TestB"}
not an event
{"Action":"output","Package":"p","Test":"TestB","Output":"working\n"}`
	var out bytes.Buffer
	rep := newReport(&out)
	if err := rep.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	if rep.finish() {
		t.Error("a truncated stream is a success")
	}
	for _, want := range []string{"TestB (did not finish)", "not an event", "working", "1 passed, 1 failed, 0 skipped\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}

// TestCommandFails: a command that fails although its tests passed.
func TestCommandFails(t *testing.T) {
	const script = `echo '{"Action":"pass","Package":"p","Test":"TestA"}'; echo '{"Action":"pass","Package":"p"}'; exit 3`
	var out, stderr bytes.Buffer
	ok, err := run(t.Context(), []string{"sh", "-c", script}, 3, &out, &stderr)
	if ok || err == nil {
		t.Errorf("ok %v, err %v: a failed command must not pass", ok, err)
	}
	if ok, err := run(t.Context(), []string{"/nonexistent/go"}, 3, &out, &stderr); ok || err == nil {
		t.Errorf("ok %v, err %v: a command that cannot start must not pass", ok, err)
	}
}

// TestOutputIsBounded: a test that floods its log does not fill the memory.
func TestOutputIsBounded(t *testing.T) {
	var o output
	for range 100 {
		o.add(strings.Repeat("x", maxOutput/10))
	}
	o.add("the end\n")
	if len(o.text) > 2*maxOutput || o.dropped == 0 || !bytes.HasSuffix(o.text, []byte("the end\n")) {
		t.Errorf("%d bytes kept, %d dropped", len(o.text), o.dropped)
	}
}
