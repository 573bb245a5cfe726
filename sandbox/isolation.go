package sandbox

import "slices"

// Isolation is the wall between the code in a sandbox and the machine that runs
// it. Empty: no demand, or not known.
type Isolation string

// The kinds of isolation, weakest first.
const (
	IsolationNone     Isolation = "none"     // the machine's own kernel, as for containers and plain processes
	IsolationKernel   Isolation = "kernel"   // a kernel of its own, in software
	IsolationHardware Isolation = "hardware" // a virtual machine with the processor's virtualization
)

// Isolations lists the kinds, weakest first.
func Isolations() []Isolation {
	return []Isolation{IsolationNone, IsolationKernel, IsolationHardware}
}

// Valid reports whether i is empty or one of the kinds.
func (i Isolation) Valid() bool { return i == "" || slices.Contains(Isolations(), i) }

// Meets reports whether i is at least as strong as what is demanded. What is not
// known counts as none.
func (i Isolation) Meets(demand Isolation) bool { return i.rank() >= demand.rank() }

// Stronger returns the stronger one of two; i if they are equal.
func (i Isolation) Stronger(other Isolation) Isolation {
	if i == "" || other.rank() > i.rank() {
		return other
	}
	return i
}

func (i Isolation) rank() int { return max(0, slices.Index(Isolations(), i)) }

// Known is i, or a word for what is not known.
func (i Isolation) Known() string {
	if i == "" {
		return "unknown isolation"
	}
	return string(i)
}
