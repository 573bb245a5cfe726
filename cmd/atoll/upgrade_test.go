package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// A daemon of another build takes over from a killed one, with kernels and
// guests of the old build, and then the other way round.
func TestUpgrade(t *testing.T) {
	fullOnly(t)
	next := filepath.Join(built.dir, "atoll-next")
	goBuild(t, next, ".", "", "-tags=next")
	s := newSoaker(t)
	old := s.sandbox(t, "old")
	p, err := old.Exec(t.Context(), sandbox.Command{Shell: "while read x; do echo got $x; done; exit 4", Stdin: true, Hold: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for round, bin := range []string{next, s.bin} {
		s.kill()
		s.bin = bin
		s.start(t)
		if got := run(t, old, "echo $((6*7))"); got != "42" {
			t.Errorf("it computes %q", got)
		}
		if _, err := old.Files().Write(t.Context(), "/file", strings.NewReader(bin), atoll.WriteOptions{}); err != nil {
			t.Error(err)
		}
		if got := run(t, old, "cat /file"); got != bin {
			t.Errorf("the file holds %q", got)
		}
		if _, err := io.WriteString(p.Stdin(), bin+"\n"); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("got "+bin+"\n"))
		if _, err := io.ReadFull(p.Stdout(), line); err != nil || string(line) != "got "+bin+"\n" {
			t.Errorf("the stream of a command says %q, %v", line, err)
		}
		for _, change := range []func() error{
			func() error { _, err := old.Pause(t.Context(), sandbox.PauseMemory); return err },
			func() error { _, err := old.Resume(t.Context()); return err },
		} {
			if err := change(); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		run(t, s.sandbox(t, ""), "true")
	}
	_ = p.Stdin().Close()
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 4 {
		t.Errorf("%+v, %v", exit, err)
	}
	s.kill()
	s.bin = next
	s.start(t)
	if info, err := old.Stop(t.Context(), 0); err != nil || info.State != sandbox.Stopped {
		t.Fatalf("%q, %v", info.State, err)
	}
	if _, err := old.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := run(t, old, "cat /file"); got == "" {
		t.Error("what the old kernel wrote is lost")
	}
}
