package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	tests := []struct {
		in   sample
		want float64
	}{
		{sample{3}, 3},
		{sample{9, 1, 5}, 5},
		{sample{4, 1, 3, 2}, 2.5},
	}
	for _, tt := range tests {
		if got := tt.in.median(); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.in, got, tt.want)
		}
	}
	if got := (sample{}).median(); !math.IsNaN(got) {
		t.Errorf("of nothing: got %v", got)
	}
	in := sample{3, 1, 2}
	if in.median(); in[0] != 3 {
		t.Error("the sample was changed")
	}
}

func TestRace(t *testing.T) {
	var order strings.Builder
	as := func(name string, first time.Duration) contestant {
		return contestant{name, func(context.Context) (timing, error) {
			order.WriteString(name)
			return timing{first, 2 * first}, nil
		}}
	}
	m, err := race(t.Context(), 3, []contestant{as("a", time.Millisecond), as("b", time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if got := order.String(); got != "abbaabba" {
		t.Errorf("ran as %s", got)
	}
	if a := m["a"]; len(a.first) != 3 || a.first[0] != 1 || a.whole[2] != 2 {
		t.Errorf("a: %+v", a)
	}
	broken := contestant{"c", func(context.Context) (timing, error) { return timing{}, os.ErrInvalid }}
	if _, err := race(t.Context(), 1, []contestant{broken}); !errors.Is(err, os.ErrInvalid) || !strings.HasPrefix(err.Error(), "c: ") {
		t.Errorf("got %v", err)
	}
}

func TestInARow(t *testing.T) {
	calls := 0
	took := []time.Duration{9, 1, 5}
	c := contestant{"a", func(context.Context) (timing, error) {
		calls++
		return timing{whole: took[(calls-1)%len(took)]}, nil
	}}
	got, err := inARow(3, []contestant{c})[0].run(t.Context())
	if err != nil || got.whole != 5 || calls != 3 {
		t.Errorf("%v after %d calls, %v", got.whole, calls, err)
	}
}

func TestProgram(t *testing.T) {
	ctx := t.Context()
	p := program{args: []string{"sh", "-c"}, env: []string{"WORD=secret-free"}}
	if out, err := p.with("echo $WORD").output(ctx); err != nil || out != "secret-free" {
		t.Errorf("%q, %v", out, err)
	}
	took, err := p.with("echo a; sleep 0.05").time(ctx)
	if err != nil || took.first <= 0 || took.whole < took.first+40*time.Millisecond {
		t.Errorf("%+v, %v", took, err)
	}
	if took, err = p.with(":").time(ctx); err != nil || took.first != 0 || took.whole <= 0 {
		t.Errorf("without output: %+v, %v", took, err)
	}
	_, err = p.with("echo why >&2; exit 3").time(ctx)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v", err)
	}
}

func TestRow(t *testing.T) {
	ms := func(v ...float64) figure { return inMilliseconds(v) }
	tests := []struct {
		name string
		row  row
		want string
	}{
		{
			"met",
			row{"x", ms(4, 5, 6), "docker", ms(30), []target{atMostOneIn(5), atMost(5, "ms")}},
			"x | 5.0 ms (4.0–6.0) | docker: 30.0 ms | 1/6.0 | ≤ 1/5 of it and ≤ 5 ms | yes",
		},
		{
			"one missed",
			row{"x", ms(5.5), "docker", ms(30), []target{atMostOneIn(5), atMost(5, "ms")}},
			"x | 5.5 ms | docker: 30.0 ms | 1/5.5 | ≤ 1/5 of it and ≤ 5 ms | no",
		},
		{
			"no peer",
			row{"x", ms(5), "", figure{}, []target{atMostOneIn(5)}},
			"x | 5.0 ms | – | – | ≤ 1/5 of it | not compared",
		},
		{"slower", row{"x", ms(9), "bwrap", ms(3), nil}, "x | 9.0 ms | bwrap: 3.0 ms | 3.0× | – | –"},
		{
			"throughput",
			row{"x", megabytesPerSecond(throughput(sample{500}, 1e9)), "", figure{}, []target{atLeast(400, "MB/s")}},
			"x | 2000 MB/s | – | – | ≥ 400 MB/s | yes",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := strings.Join(tt.row.cells(), " | "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if got := table([]row{tt.row}); !strings.HasSuffix(got, "|\n| "+tt.want+" |\n") {
				t.Errorf("table: %s", got)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	b := &bench{}
	some := inMilliseconds(sample{1})
	b.compare("about a peer that is not there", some, "docker", figure{})
	b.compare("with a target", some, "docker", figure{}, atMost(2, "ms"))
	if len(b.rows) != 1 || b.rows[0].peer != "" || b.rows[0].verdict() != "yes" {
		t.Errorf("%+v", b.rows)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	doc, results := filepath.Join(dir, "doc.md"), filepath.Join(dir, "results")
	rows := []row{{what: "exec", atoll: inMilliseconds(sample{1, 3, 2}), peer: "docker", theirs: inMilliseconds(sample{20})}}
	if err := write(doc, results, time.Unix(0, 0), "* a machine\n", rows); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Benchmarks", "* a machine", "| exec | 2.0 ms (1.0–3.0) | docker: 20.0 ms | 1/10.0 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
	raw, err := os.ReadFile(filepath.Join(results, "1970-01-01T0000.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got []struct {
		What  string
		Atoll []float64
	}
	if err := json.Unmarshal(raw, &got); err != nil || len(got) != 1 || got[0].What != "exec" || len(got[0].Atoll) != 3 {
		t.Errorf("the samples are %s (%v), want three of exec", raw, err)
	}
}

// TestEcho checks that a screen counts only when it has shown the whole word, in
// however many pieces, and that an ended screen is an error.
func TestEcho(t *testing.T) {
	in, typed := io.Pipe()
	screens := make([]*io.PipeWriter, 2)
	readers := make([]io.Reader, len(screens))
	for i := range screens {
		readers[i], screens[i] = io.Pipe()
	}
	type result struct {
		t   timing
		err error
	}
	done := make(chan result, 1)
	press := echo(typed, readers...)
	start := func() string {
		go func() {
			took, err := press(t.Context())
			done <- result{took, err}
		}()
		word := make([]byte, len("<1>"))
		if _, err := io.ReadFull(in, word); err != nil {
			t.Fatal(err)
		}
		return string(word)
	}
	write := func(i int, text string) {
		if _, err := io.WriteString(screens[i], text); err != nil {
			t.Fatal(err)
		}
	}
	word := start()
	write(0, "prompt "+word)
	write(1, word[:1])
	select {
	case r := <-done:
		t.Fatalf("it ended before the second screen had shown the word: %+v", r)
	default:
	}
	write(1, word[1:])
	if r := <-done; r.err != nil || r.t.whole <= 0 {
		t.Errorf("the first word: %+v", r)
	}
	next := start()
	if next == word {
		t.Errorf("the word %s came twice", word)
	}
	write(0, next)
	if err := screens[1].Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; !errors.Is(r.err, io.EOF) {
		t.Errorf("a screen that ended: %v, want %v", r.err, io.EOF)
	}
}

func TestParentIn(t *testing.T) {
	tests := map[string]int{
		"12 (sh) S 7 12 12 0":        7,
		"12 (a) b (c)) S 9 12 12 0":  9,
		"12 (x)":                     0,
		"no parentheses":             0,
		"12 (tricky) S 4) R 8 1 1 0": 8,
	}
	for in, want := range tests {
		if got := parentIn(in); got != want {
			t.Errorf("%q: got %d, want %d", in, got, want)
		}
	}
}

func TestDescends(t *testing.T) {
	parent := map[int]int{1: 0, 5: 1, 6: 5, 7: 6, 8: 1, 20: 21, 21: 20}
	roots := map[int]bool{5: true}
	for pid, want := range map[int]bool{5: true, 7: true, 8: false, 1: false, 99: false, 20: false} {
		if got := descends(pid, parent, roots); got != want {
			t.Errorf("%d: got %v", pid, got)
		}
	}
}

func TestMemoryOf(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	all, err := memoryOf(func(pid int, _ string) bool { return pid == os.Getpid() })
	if err != nil {
		t.Fatal(err)
	}
	child, err := memoryOf(func(pid int, _ string) bool { return pid == cmd.Process.Pid })
	if err != nil {
		t.Fatal(err)
	}
	if child <= 0 || all <= child {
		t.Errorf("the child has %d bytes, and with its parent it is %d", child, all)
	}
	if none, err := memoryOf(func(_ int, cmdline string) bool { return strings.HasPrefix(cmdline, "\x01") }); err != nil || none != 0 {
		t.Errorf("of nothing: %d, %v", none, err)
	}
}

func TestField(t *testing.T) {
	text := "MemFree:  10 kB\nMemAvailable:     12 kB\n"
	if got := field(text, "MemAvailable:"); got != 12<<10 {
		t.Errorf("got %d", got)
	}
	if got := field(text, "Swap:"); got != 0 {
		t.Errorf("got %d", got)
	}
	if available() <= 0 {
		t.Error("this machine has no memory")
	}
}

func TestMachineNamesNothing(t *testing.T) {
	text := machine()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, host) || strings.Contains(text, "/home") {
		t.Errorf("tells where it is: %s", text)
	}
	if !strings.Contains(text, "Linux "+kernelRelease()) {
		t.Errorf("got %s", text)
	}
}
