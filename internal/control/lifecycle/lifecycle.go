// Package lifecycle defines which operations are possible in which state of a
// sandbox. It only decides: the caller locks the sandbox, calls Decide, and
// acts.
//
//	creating ── running ⇄ paused (in memory or to disk)
//	               ⇅
//	            stopped          and from everywhere: failed, lost, gone
//
// Pausing and resuming are transitional states. A sandbox that is in one
// without an operation in progress was left by a daemon that died. It must be
// brought to a stable state before any other operation.
package lifecycle

import (
	"fmt"

	"github.com/atoll-run/atoll/sandbox"
)

// Op is an operation on a sandbox.
type Op string

// The operations.
const (
	Use      Op = "use"      // run a command, access files or ports
	Pause    Op = "pause"    // in memory
	Sleep    Op = "sleep"    // pause to disk
	Resume   Op = "resume"   // from a pause of either kind
	Stop     Op = "stop"     // end its processes, keep its files
	Start    Op = "start"    // start again with the files of a stopped one
	Update   Op = "update"   // change limits, labels or lifetime
	Snapshot Op = "snapshot" // save the state, without changing it
	Fork     Op = "fork"     // copy it, without changing it
)

// Ops lists all operations.
func Ops() []Op { return []Op{Use, Pause, Sleep, Resume, Stop, Start, Update, Snapshot, Fork} }

// Sandbox is the part of a sandbox's state that decisions depend on.
type Sandbox struct {
	Name   string
	State  sandbox.State
	Reason string            // why it is in that state
	Pause  sandbox.PauseKind // how a paused one is paused
	Kept   bool              // a snapshot has its state
	Wakes  bool              // a paused one resumes when it is used
}

// Verdict is a decision.
type Verdict int

// The verdicts.
const (
	Refuse Verdict = iota // return the error
	Done                  // do nothing: the state is as requested
	Act                   // run the operation
	Wake                  // resume the sandbox, then run the operation
)

// Decide returns whether op is possible on b, and how. The error is a
// *sandbox.Error that names the state and the next step.
func Decide(b Sandbox, op Op) (Verdict, error) {
	switch b.State {
	case sandbox.Running:
		return running(op), nil
	case sandbox.Paused:
		return b.paused(op)
	case sandbox.Stopped:
		return b.stopped(op)
	}
	return Refuse, b.nowhere()
}

func running(op Op) Verdict {
	switch op {
	case Resume, Start:
		return Done
	}
	return Act
}

func (s Sandbox) paused(op Op) (Verdict, error) {
	disk := s.Pause == sandbox.PauseDisk
	switch op {
	case Resume, Update:
		return Act, nil
	case Pause:
		return Done, nil // a sandbox on disk is paused, too
	case Sleep:
		if disk {
			return Done, nil
		}
		return Act, nil
	case Use:
		if s.Wakes {
			return Wake, nil
		}
	case Stop:
		if !disk {
			return Act, nil
		}
	case Snapshot, Fork:
		if disk {
			return Act, nil
		}
	}
	return Refuse, s.conflict("resume it first, with: atoll resume " + s.Name)
}

func (s Sandbox) stopped(op Op) (Verdict, error) {
	switch {
	case op == Stop:
		return Done, nil
	case op == Update:
		return Act, nil
	case !s.Kept:
		return Refuse, s.conflict("its state was not kept; remove it with: atoll rm " + s.Name)
	case op == Start || op == Snapshot || op == Fork:
		return Act, nil
	}
	return Refuse, s.conflict("start it first, with: atoll start " + s.Name)
}

// nowhere returns why no operation is possible in the state of a sandbox.
func (s Sandbox) nowhere() error {
	switch s.State {
	case sandbox.Gone:
		e := &sandbox.Error{Code: sandbox.CodeGone, Subject: s.Name, Message: "the sandbox is gone"}
		if s.Reason != "" {
			e.Message += ": " + s.Reason
		}
		return e
	case sandbox.Lost:
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: s.Name, Message: "the sandbox cannot be reached",
			Hint: "try again; it is not known to be gone",
		}
	case sandbox.Creating:
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the sandbox is still being created", Hint: "try again"}
	case sandbox.Failed:
		return s.conflict("remove it with: atoll rm " + s.Name)
	}
	return s.conflict("try again")
}

func (s Sandbox) conflict(hint string) error {
	e := &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: fmt.Sprintf("the sandbox is %s", s.State), Hint: hint}
	if s.Pause != "" {
		e.Message += map[sandbox.PauseKind]string{sandbox.PauseMemory: " in memory", sandbox.PauseDisk: " to disk"}[s.Pause]
	}
	if s.Reason != "" {
		e.Message += ": " + s.Reason
	}
	return e
}

// After returns the state of a sandbox after op, if Decide allowed it. keeps
// says whether its files can be kept when it is stopped.
func After(b Sandbox, op Op, keeps bool) Sandbox {
	verdict, err := Decide(b, op)
	if err != nil || verdict == Done {
		return b
	}
	to := Sandbox{Name: b.Name, State: sandbox.Running}
	switch op {
	case Pause:
		to.State, to.Pause = sandbox.Paused, sandbox.PauseMemory
	case Sleep:
		to.State, to.Pause, to.Kept = sandbox.Paused, sandbox.PauseDisk, true
	case Stop:
		if !keeps {
			return b // refused, because it would lose its files
		}
		to.State, to.Kept = sandbox.Stopped, true
	case Update, Snapshot, Fork:
		return b
	}
	return to
}
