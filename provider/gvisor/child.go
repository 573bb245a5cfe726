package gvisor

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
)

// reaper starts the processes of sandboxes and waits for them. One operating
// system thread that lives as long as this process starts all of them, because
// the kernel ties PR_SET_PDEATHSIG to the thread that started the child.
type reaper struct {
	mu    sync.Mutex
	calls chan func()
}

// run runs f on the starting thread.
func (r *reaper) run(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		calls := make(chan func())
		r.calls = calls
		go func() {
			runtime.LockOSThread()
			// After this the thread continues to live when the goroutine ends.
			defer runtime.UnlockOSThread()
			for f := range calls {
				f()
			}
		}()
	}
	done := make(chan struct{})
	r.calls <- func() { f(); close(done) }
	<-done
}

// close ends the goroutine. The thread and the started processes live on.
func (r *reaper) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls != nil {
		close(r.calls)
		r.calls = nil
	}
}

// child is a process started by a reaper.
type child struct {
	pid   int
	start uint64 // start time in clock ticks since boot, to detect reused process numbers
	proc  *os.Process
	done  chan struct{} // closed when it has ended
	state *os.ProcessState
}

// place is the control group and OOM score of a child.
type place struct {
	cgroup *cgroup.Group
	score  int // see setOOMScore; zero: its parent's
}

// start starts the executable with argv in the namespaces of attr. files become
// descriptors from 3, all others are closed, and env is its whole environment.
// Its standard input reaches its end once the process is in its control group;
// processes that it starts earlier are not.
func (r *reaper) start(exe string, argv, env []string, files []*os.File, attr *syscall.SysProcAttr, at place) (*child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	gate, open, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	defer open.Close()
	release, err := at.cgroup.EnterOnClone(attr)
	if err != nil {
		return nil, err
	}
	defer release()
	pa := &os.ProcAttr{
		Dir:   "/",
		Env:   append([]string{}, env...), // never this process's own
		Files: append([]*os.File{gate, null, null}, files...),
		Sys:   attr,
	}
	var proc *os.Process
	r.run(func() {
		proc, err = os.StartProcess(exe, argv, pa)
	})
	if err != nil {
		return nil, err
	}
	c := &child{pid: proc.Pid, proc: proc, done: make(chan struct{})}
	// A process that has already ended has no start time and needs none.
	c.start, _ = startTime(c.pid)
	if at.score != 0 {
		setOOMScore(c.pid, at.score)
	}
	err = at.cgroup.Add(c.pid)
	go func() {
		c.state, _ = proc.Wait()
		close(c.done)
	}()
	if err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

func (c *child) ref() processRef { return processRef{PID: c.pid, Start: c.start, Boot: bootID()} }

// kill kills the process and waits until it has ended.
func (c *child) kill() {
	_ = c.proc.Kill()
	<-c.done
}

// waitFor waits up to d for the end of the process and describes it.
func (c *child) waitFor(d time.Duration) string {
	select {
	case <-c.done:
		return fmt.Sprint(c.state)
	case <-time.After(d):
		return "still running"
	}
}
