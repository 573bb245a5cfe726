package kernel

import (
	"gvisor.dev/gvisor/pkg/sentry/arch/fpu"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

const (
	leastRegisters = 512 + 64 // bytes that are always saved: the old ones, and which of the others there are
	afterRegisters = 4        // bytes at the end that are none
)

// registers are those of threads for numbers with a point and for vectors. They
// are written and read byte by byte through reflection, and most are zero: the
// kernel makes room for all that the processor has, and for its tiles, which no
// program can use. A kernel that reads less finds zeros in the rest.
type registers struct{ whole map[*fpu.State]fpu.State }

// shorten leaves out what is zero at the end while a kernel is saved, in which
// nothing runs.
func (r *registers) shorten(k *kernel.Kernel) {
	if k == nil {
		return
	}
	r.whole = map[*fpu.State]fpu.State{}
	for _, t := range k.TaskSet().Root.Tasks() {
		a := t.Arch()
		if a == nil {
			continue
		}
		s := a.FloatingPointData()
		if n := used(*s); n < cap(*s) {
			r.whole[s], *s = *s, (*s)[:n:n]
		}
	}
}

// used is how many bytes of registers are to be saved.
func used(s fpu.State) int {
	n := len(s) - afterRegisters
	for n > leastRegisters && s[n-1] == 0 {
		n--
	}
	return n + afterRegisters
}

// restore ends that.
func (r *registers) restore() {
	for s, whole := range r.whole {
		*s = whole
	}
	r.whole = nil
}
