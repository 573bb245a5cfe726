package agent

import (
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
	spawned  sync.Cond
	births   int // processes started so far
	starting int // forks under way
	waiting  map[int]func(ending)
	early    map[int]ending // ended while a fork was under way: perhaps its child
	none     bool           // the kernel said that there is no child
}

// ending is how a process ended.
type ending struct {
	status syscall.WaitStatus
	// alone says that no other child was left: nothing the process started is
	// alive, for this process inherits every orphan.
	alone bool
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]func(ending){}, early: map[int]ending{}}
	r.spawned.L = &r.mu
	return r
}

// start starts a process. ended is called once, from another goroutine, when
// it has ended, and must not block.
func (r *reaper) start(path string, argv []string, attr *spawn.Attr, ended func(pid int, e ending)) (int, error) {
	r.mu.Lock()
	r.starting++
	r.mu.Unlock()
	pid, err := spawn.ForkExec(path, argv, attr)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
	if err == nil {
		r.births++
		r.none = false
		if e, ok := r.early[pid]; ok {
			go ended(pid, e)
		} else {
			r.waiting[pid] = func(e ending) { ended(pid, e) }
		}
		r.spawned.Signal()
	}
	if r.starting == 0 {
		clear(r.early)
	}
	return pid, err
}

// childless reports whether no process is left that came from here.
func (r *reaper) childless() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.none && r.starting == 0
}

// run reaps for ever.
func (r *reaper) run() {
	for {
		r.mu.Lock()
		births := r.births
		r.mu.Unlock()
		var ws syscall.WaitStatus
		pid, err := spawn.Wait(&ws)
		switch err {
		case nil:
			r.reaped(pid, ws)
		case syscall.ECHILD:
			r.rest(births)
		}
	}
}

// rest waits for the next birth, unless there was one since births was read.
func (r *reaper) rest(births int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.none = r.births == births
	for r.births == births {
		r.spawned.Wait()
	}
}

// reaped takes all that have ended, finds out whether any child is left, and
// tells those who wait.
func (r *reaper) reaped(pid int, ws syscall.WaitStatus) {
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
	defer r.mu.Unlock()
	r.none = err == syscall.ECHILD && r.births == births && r.starting == 0
	for pid, ws := range ends {
		e := ending{status: ws, alone: r.none}
		if f := r.waiting[pid]; f != nil {
			delete(r.waiting, pid)
			f(e)
		} else if r.starting > 0 {
			r.early[pid] = e
		}
	}
}
