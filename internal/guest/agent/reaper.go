package agent

import (
	"maps"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/internal/guest/spawn"
)

// reaper starts processes and waits for all of them: for the commands, whose
// end somebody wants to know, and for whatever orphan process 1 inherits. It
// blocks in wait4 in one goroutine instead of handling SIGCHLD, because a
// signal costs more in a sandbox than the rest of the wait.
type reaper struct {
	mu       sync.Mutex
	called   sync.Cond
	births   int          // processes started so far
	calls    int          // how often somebody wanted that the ends of processes are waited for
	begun    int          // starts so far, which are numbered by this
	starting map[int]bool // those under way
	unreaped int          // processes that those who started them collect
	waiting  map[int]func(ending)
	early    map[int]earlyEnding // by number of the process
	none     bool                // the kernel said that there is no child
}

// earlyEnding is of a process that ended while some were being started: perhaps
// one of them, of those that had begun by then.
type earlyEnding struct {
	ending
	begun int
}

// ending is how a process ended.
type ending struct {
	status syscall.WaitStatus
	// alone says that no other child was left: nothing the process started is
	// alive, for this process inherits every orphan.
	alone bool
}

func newReaper() *reaper {
	r := &reaper{starting: map[int]bool{}, waiting: map[int]func(ending){}, early: map[int]earlyEnding{}}
	r.called.L = &r.mu
	return r
}

// start starts a process. ended is called once, when it has ended: usually from
// a goroutine of its own. If attr asks for a descriptor of the process and gets
// one, the caller must call either collect or call: until then nobody waits
// for this process. It may have ended already.
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
	}
	r.forget()
	return pid, err
}

// forget drops the ends that none of the processes being started can be at: there
// may be no time at which none is. The lock is held.
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

// wait has run wait for the ends of processes. The lock is held.
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

// collect takes the end of a process that has ended, which nobody else waits for. The
// function that was given to start has been called when it returns, or will be soon.
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
	// Another goroutine reaped it. Processes that it left behind are for run.
	r.mu.Lock()
	r.wait()
	r.mu.Unlock()
}

// childless reports whether no process is left that came from here.
func (r *reaper) childless() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.none && len(r.starting) == 0
}

// run reaps until the guest ends.
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

// rest waits until it is called, unless it was since calls was read.
func (r *reaper) rest(births, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.none = r.births == births
	for r.calls == calls {
		r.called.Wait()
	}
}

// reaped takes all that have ended, finds out whether any child is left, and
// tells those who wait: on this goroutine about own, since that is whose end
// the caller has waited for.
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
		r.wait() // for what was left behind
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
