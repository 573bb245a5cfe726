package kernel

import (
	"math"
	"reflect"
	"runtime/debug"
	"slices"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/abi/linux"
	gvcontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// kernelShare is how much of a sandbox's memory is kept for its kernel, in
// bytes, when the rest is checked against the limit.
const kernelShare = 32 << 20

// in returns the parts of m that are still the file's.
func (s *sharedFile) in(m *mm.MemoryManager) (found []hostarch.AddrRange) {
	lock := field(reflect.ValueOf(m).Elem(), "activeMu").Addr().Interface().(rwLocker)
	lock.RLock()
	defer lock.RUnlock()
	for _, p := range s.layout.pmas.list(m) {
		if *(*memmap.File)(unsafe.Add(p.value, s.layout.pmaFile)) == memmap.File(s) {
			found = append(found, p.ar)
		}
	}
	return found
}

// unshare copies all memory that m shares to memory of its own in f.
func (s *sharedFile) unshare(ctx gvcontext.Context, m *mm.MemoryManager, f *pgalloc.MemoryFile) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.users[m] {
		return nil
	}
	for {
		parts := s.in(m)
		if len(parts) == 0 {
			delete(s.users, m)
			return nil
		}
		if !fits(f, parts) {
			return linuxerr.ENOMEM
		}
		for _, ar := range parts {
			// Pinning private memory copies it, even if it is only read.
			pinned, err := m.Pin(ctx, ar, hostarch.Read, true)
			mm.Unpin(pinned)
			if err != nil && len(pinned) == 0 && slices.Contains(s.in(m), ar) {
				return err
			}
		}
	}
}

// fits reports whether the sandbox may allocate that much more memory. Shared
// memory does not count towards its limit, so the sum may exceed the limit.
// Without this check the host would kill a program or the sandbox.
func fits(f *pgalloc.MemoryFile, parts []hostarch.AddrRange) bool {
	// GOMEMLIMIT of a kernel is half of the sandbox's limit.
	limit := uint64(debug.SetMemoryLimit(-1))
	if limit >= math.MaxInt64 {
		return true
	}
	limit *= 2
	var more uint64 = kernelShare
	for _, ar := range parts {
		more += uint64(ar.Length())
	}
	for range 20 { // returned memory reaches the host with a delay
		if used, err := f.TotalUsage(); err != nil || used+more <= limit {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// unshareAll does so for every program of a kernel. No program may run.
func unshareAll(k *kernel.Kernel) error {
	s := sharing.Load()
	if s == nil {
		return nil
	}
	for _, t := range k.TaskSet().Root.Tasks() {
		if m := t.MemoryManager(); m != nil {
			if err := s.unshare(k.SupervisorContext(), m, k.MemoryFile()); err != nil {
				return err
			}
		}
	}
	return nil
}

// hookClone copies shared memory of a program before the program gets a child
// with a copy of its memory.
func hookClone() {
	replace("fork", beforeClone(func(arch.SyscallArguments) uint64 { return 0 }))
	replace("clone", beforeClone(func(args arch.SyscallArguments) uint64 { return args[0].Uint64() }))
	replace("clone3", func(kernel.SyscallFn) kernel.SyscallFn { return clone3 })
}

// beforeClone wraps calls whose flags are in registers, which other threads of
// the caller cannot change.
func beforeClone(flags func(arch.SyscallArguments) uint64) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(usual kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if err := prepareClone(t, flags(args)); err != nil {
				return 0, nil, err
			}
			return usual(t, sysno, args)
		}
	}
}

// prepareClone copies the shared memory of the caller if its child gets a copy
// of its memory.
func prepareClone(t *kernel.Task, flags uint64) error {
	s := sharing.Load()
	if s == nil || flags&linux.CLONE_VM != 0 {
		return nil
	}
	return s.unshare(t, t.MemoryManager(), t.Kernel().MemoryFile())
}

// clone3 replaces gVisor's. It does not call gVisor's, which would read the
// arguments a second time: another thread could have changed the flags since.
func clone3(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	at, size := args[0].Pointer(), args[1].SizeT()
	if size < linux.CLONE_ARGS_SIZE_VER0 || size > linux.CLONE_ARGS_SIZE_VER2 {
		return 0, nil, linuxerr.EINVAL
	}
	var copied linux.CloneArgs
	if at != 0 {
		if _, err := copied.CopyInN(t, at, int(size)); err != nil {
			return 0, nil, err
		}
	}
	if copied.Flags&linux.CLONE_DETACHED != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	if copied.Flags&(linux.CLONE_THREAD|linux.CLONE_PARENT) != 0 && copied.ExitSignal != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	if err := prepareClone(t, copied.Flags); err != nil {
		return 0, nil, err
	}
	tid, ctrl, err := t.Clone(&copied)
	if err != nil {
		return 0, nil, err
	}
	return uintptr(tid), ctrl, nil
}
