// Package lifecycle decides what may be done to a sandbox in which state. Its
// decisions are pure: who carries them out locks the sandbox, asks, and acts.
//
//	creating ── running ⇄ paused (in memory or to disk)
//	               ⇅
//	            stopped          and from everywhere: failed, lost, gone
//
// Pausing and resuming are the states on the way. One that is found there
// without anybody being at it was left by a daemon that died; it is brought to
// one side or the other before anything else is done to it.
package lifecycle

import (
	"fmt"

	"github.com/atoll-run/atoll/sandbox"
)

// Op is something to be done to a sandbox.
type Op string

// The operations.
const (
	Use      Op = "use"      // run a command, reach files or ports
	Pause    Op = "pause"    // in memory
	Sleep    Op = "sleep"    // pause to disk
	Resume   Op = "resume"   // from a pause of either kind
	Stop     Op = "stop"     // end its processes, keep its files
	Start    Op = "start"    // from what a stop kept
	Update   Op = "update"   // its limits, labels or lifetime
	Snapshot Op = "snapshot" // write its state down; it stays what it is
	Fork     Op = "fork"     // copy it; it stays what it is
)

// Ops lists all operations.
func Ops() []Op { return []Op{Use, Pause, Sleep, Resume, Stop, Start, Update, Snapshot, Fork} }

// Box is what counts of a sandbox.
type Box struct {
	Name   string
	State  sandbox.State
	Reason string            // why it is in that state
	Pause  sandbox.PauseKind // of a paused one
	Kept   bool              // a snapshot holds its state
	Wakes  bool              // a paused one goes on when it is used
}

// Verdict says what is to be done.
type Verdict int

// The verdicts.
const (
	Refuse Verdict = iota // with an error
	Done                  // nothing: it is as wanted
	Act                   // what was asked
	Wake                  // resume it, then what was asked
)

// Decide says whether op can be done to b, and what it takes. The error is an
// *sandbox.Error that names the state and the next step.
func Decide(b Box, op Op) (Verdict, error) {
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

func (b Box) paused(op Op) (Verdict, error) {
	disk := b.Pause == sandbox.PauseDisk
	switch op {
	case Resume, Update:
		return Act, nil
	case Pause:
		return Done, nil // on disk it does even less
	case Sleep:
		if disk {
			return Done, nil
		}
		return Act, nil
	case Use:
		if b.Wakes {
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
	return Refuse, b.conflict("resume it first, with: atoll resume " + b.Name)
}

func (b Box) stopped(op Op) (Verdict, error) {
	switch {
	case op == Stop:
		return Done, nil
	case op == Update:
		return Act, nil
	case !b.Kept:
		return Refuse, b.conflict("nothing of it was kept; remove it with: atoll rm " + b.Name)
	case op == Start || op == Snapshot || op == Fork:
		return Act, nil
	}
	return Refuse, b.conflict("start it first, with: atoll start " + b.Name)
}

// nowhere says why nothing can be done to a sandbox in its state.
func (b Box) nowhere() error {
	switch b.State {
	case sandbox.Gone:
		e := &sandbox.Error{Code: sandbox.CodeGone, Subject: b.Name, Message: "the sandbox is gone"}
		if b.Reason != "" {
			e.Message += ": " + b.Reason
		}
		return e
	case sandbox.Lost:
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: b.Name, Message: "the sandbox cannot be reached",
			Hint: "try again; it is not known to be gone",
		}
	case sandbox.Creating:
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the sandbox is still being made", Hint: "try again"}
	case sandbox.Failed:
		return b.conflict("remove it with: atoll rm " + b.Name)
	}
	return b.conflict("try again")
}

func (b Box) conflict(hint string) error {
	e := &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: fmt.Sprintf("the sandbox is %s", b.State), Hint: hint}
	if b.Pause != "" {
		e.Message += map[sandbox.PauseKind]string{sandbox.PauseMemory: " in memory", sandbox.PauseDisk: " to disk"}[b.Pause]
	}
	if b.Reason != "" {
		e.Message += ": " + b.Reason
	}
	return e
}

// After is what a sandbox is once op has been carried out on it, if Decide
// allowed that. keeps says whether its files can be kept when it is stopped.
func After(b Box, op Op, keeps bool) Box {
	verdict, err := Decide(b, op)
	if err != nil || verdict == Done {
		return b
	}
	to := Box{Name: b.Name, State: sandbox.Running}
	switch op {
	case Pause:
		to.State, to.Pause = sandbox.Paused, sandbox.PauseMemory
	case Sleep:
		to.State, to.Pause, to.Kept = sandbox.Paused, sandbox.PauseDisk, true
	case Stop:
		if !keeps {
			return b // refused, for its files would be lost
		}
		to.State, to.Kept = sandbox.Stopped, true
	case Update, Snapshot, Fork:
		return b
	}
	return to
}
