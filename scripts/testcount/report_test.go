package main

import (
	"bytes"
	"os"
	"path/filepath"
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
			ok, err := run(t.Context(), module(t, tt.body), &out, &stderr)
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
	ok, err := run(t.Context(), []string{"sh", "-c", script}, &out, &stderr)
	if ok || err == nil {
		t.Errorf("ok %v, err %v: a failed command must not pass", ok, err)
	}
	if ok, err := run(t.Context(), []string{"/nonexistent/go"}, &out, &stderr); ok || err == nil {
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
