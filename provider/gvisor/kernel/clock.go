package kernel

import (
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// calibration is how long the processor's counter is compared with the
// machine's clock before programs inside may tell the time by it. A comparison
// is wrong by some 100 ns, so that a clock begins with an error of a few
// hundred-thousandths, which the kernel corrects a second later as always.
const calibration = 5 * time.Millisecond

// hastenClock lets programs tell the time without a system call some
// milliseconds after the first of them has asked for it, in a sandbox that was
// made or restored, and not a second after, when the kernel looks at its own clock again.
// Until then each look at the clock is a switch to the kernel and back: some four
// hundred while a sandbox starts.
func hastenClock(tell kernel.SyscallFn) kernel.SyscallFn {
	var hastened atomic.Pointer[time.Timer]
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := tell(t, sysno, args) // by which the clock is looked at for the first time
		running.Store(t.Kernel())
		// There is a new timer after a save or a restore.
		if next := nextUpdate(t.Kernel().Timekeeper()); next != nil && hastened.Load() != next && hastened.Swap(next) != next {
			next.Reset(calibration)
		}
		return n, control, err
	}
}

// nextUpdate is what a kernel's clock waits for before it compares the
// processor's counter with the machine's clock once more, or nil.
func nextUpdate(k *kernel.Timekeeper) *time.Timer {
	return *(**time.Timer)(unsafe.Add(unsafe.Pointer(k), timerOffset))
}

var timerOffset = func() uintptr {
	f, ok := reflect.TypeFor[kernel.Timekeeper]().FieldByName("timer")
	if !ok || f.Type != reflect.TypeFor[*time.Timer]() {
		panic("gVisor's clock is not what it was")
	}
	return f.Offset
}()
