package agent

import (
	"maps"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

// reaper starts processes and waits for all children: the commands, and any
// orphans that process 1 inherits. One goroutine blocks in wait4. Handling
// SIGCHLD would be slower: in a sandbox a signal costs more than the rest of
// the wait.
type reaper struct {
	mu       sync.Mutex
	called   sync.Cond
	births   int          // processes started so far
	calls    int          // calls of wait
	begun    int          // starts so far; also the number of the last start
	starting map[int]bool // starts in progress
	unreaped int          // processes that their starters reap with collect
	waiting  map[int]func(ending)
	early    map[int]earlyEnding // by process number
	none     bool                // wait4 returned ECHILD
}

// earlyEnding is the end of a process that was reaped while starts were in
// progress. It may belong to a start numbered up to begun.
type earlyEnding struct {
	ending
	begun int
}

// ending is how a process ended.
type ending struct {
	status syscall.WaitStatus
	// alone is set if no other child was left. Then nothing that the process
	// started is alive, because this process inherits every orphan.
	alone bool
}

func newReaper() *reaper {
	r := &reaper{starting: map[int]bool{}, waiting: map[int]func(ending){}, early: map[int]earlyEnding{}}
	r.called.L = &r.mu
	return r
}

// start starts a process. ended is called once when it has ended, usually on
// another goroutine. If attr asks for a descriptor of the process and gets one,
// the caller must call collect or call: until then the process is not reaped.
// It may have ended already.
func (r *reaper) start(path string, argv []string, attr *spawn.Attr, ended func(e ending)) (int, error) {
	r.mu.Lock()
	r.begun++
	number := r.begun
	r.starting[number] = true
	r.mu.Unlock()
	pid, err := spawn.ForkExec(path, argv, attr)

	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.starting, number)
	if err == nil {
		r.births++
		r.none = false
		if e, ok := r.early[pid]; ok && e.begun >= number {
			delete(r.early, pid)
			go ended(e.ending)
		} else {
			r.waiting[pid] = ended
		}
		if attr.Pidfd != nil && *attr.Pidfd >= 0 {
			r.unreaped++
		} else {
			r.wait()
		}
	} else {
		r.wait() // who reaped a process meanwhile could not know whether a child is left
	}
	r.forget()
	return pid, err
}

// forget drops the early endings that cannot belong to a start in progress.
// There may never be a moment without one. r.mu is held.
func (r *reaper) forget() {
	if len(r.early) == 0 {
		return
	}
	oldest := r.begun + 1
	for number := range r.starting {
		oldest = min(oldest, number)
	}
	maps.DeleteFunc(r.early, func(_ int, e earlyEnding) bool { return e.begun < oldest })
}

// wait makes run wait for the ends of processes. r.mu is held.
func (r *reaper) wait() {
	r.calls++
	r.called.Signal()
}

// call hands a process that was to be collected over to run.
func (r *reaper) call() {
	r.mu.Lock()
	r.unreaped--
	r.wait()
	r.mu.Unlock()
}

// collect reaps a process that has ended and that run does not wait for. The
// ended function given to start has been called when collect returns, or will
// be soon.
func (r *reaper) collect(pid int) {
	r.mu.Lock()
	r.unreaped--
	r.mu.Unlock()
	var ws syscall.WaitStatus
	got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
	if err == nil && got == pid {
		r.reaped(pid, ws, pid)
		return
	}
	// Another goroutine reaped it. Its orphans are left to run.
	r.mu.Lock()
	r.wait()
	r.mu.Unlock()
}

// childless reports whether no child process is left.
func (r *reaper) childless() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.none && len(r.starting) == 0
}

// run reaps children. It never returns.
func (r *reaper) run() {
	for {
		r.mu.Lock()
		births, calls := r.births, r.calls
		r.mu.Unlock()
		var ws syscall.WaitStatus
		pid, err := spawn.Wait(&ws)
		switch err {
		case nil:
			r.reaped(pid, ws, 0)
		case syscall.ECHILD:
			r.rest(births, calls)
		}
	}
}

// rest blocks until wait is called, unless it was called since calls was read.
// No child was left when births was read. A process that has started since may
// have been collected already, so only who reaped it knows whether one is left.
func (r *reaper) rest(births, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.births == births {
		r.none = true
	}
	for r.calls == calls {
		r.called.Wait()
	}
}

// reaped takes all ends that are available, finds out whether children are
// left, and calls the ended functions. The one of own runs on this goroutine,
// because the caller waits for it.
func (r *reaper) reaped(pid int, ws syscall.WaitStatus, own int) {
	ends := map[int]syscall.WaitStatus{}
	var err error
	r.mu.Lock()
	births := r.births
	r.mu.Unlock()
	for pid > 0 {
		ends[pid] = ws
		pid, err = syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			pid, err = syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		}
	}
	r.mu.Lock()
	r.none = err == syscall.ECHILD && r.births == births && len(r.starting) == 0
	if err == nil && own != 0 && r.unreaped == 0 {
		r.wait() // for its orphans
	}
	tell := func() {}
	for pid, ws := range ends {
		e := ending{status: ws, alone: r.none}
		if f := r.waiting[pid]; f != nil {
			delete(r.waiting, pid)
			if pid == own {
				tell = func() { f(e) }
			} else {
				go f(e)
			}
		} else if len(r.starting) > 0 {
			r.early[pid] = earlyEnding{e, r.begun}
		}
	}
	r.mu.Unlock()
	tell()
}
