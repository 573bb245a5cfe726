package proctree

import (
	"bufio"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	const line = "7 (a) b (c)) S 1 7 7 0 -1 4194560 9 0 0 0 11 22 33 44 20 0 5 0 77 1000 6 18446744073709551615 1\n"
	p, ok := parse(line)
	if want := (process{parent: 1, threads: 5, ticks: 110, pages: 6}); !ok || p != want {
		t.Errorf("%+v, %v; want %+v", p, ok, want)
	}
	for _, bad := range []string{"", "7 (x", "7 (x) S 1 2 3"} {
		if p, ok := parse(bad); ok {
			t.Errorf("%q is %+v", bad, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("7 (a) b (c)) S 1 7 7 0 -1 4194560 9 0 0 0 11 22 33 44 20 0 5 0 77 1000 6 1 1\n")
	f.Fuzz(func(_ *testing.T, s string) { parse(s) })
}

// TestMeasure checks that a child and its child count, and ended processes do
// not.
func TestMeasure(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap 'kill $!' TERM; sleep 1000 & echo ready; wait")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	sum, err := Measure(cmd.Process.Pid)
	if err != nil || sum.Threads != 2 || sum.Memory <= 0 {
		t.Errorf("%+v, %v; want two threads with memory", sum, err)
	}
	var own Sum
	for own.CPU == 0 && err == nil { // work shows only after a clock tick
		own, err = Measure(os.Getpid(), os.Getpid())
	}
	if err != nil || own.Threads < sum.Threads+1 || own.Memory <= sum.Memory {
		t.Errorf("this process: %+v, %v", own, err)
	}
	cmd.Process.Signal(syscall.SIGTERM) // ends its child, too
	cmd.Wait()
	if sum, err := Measure(cmd.Process.Pid); err != nil || sum != (Sum{}) {
		t.Errorf("a process that has ended: %+v, %v", sum, err)
	}
}
