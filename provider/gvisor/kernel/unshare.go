package kernel

import (
	"encoding/binary"
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

// unshare copies all that m shares to memory of its own, which is f.
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

// fits reports whether the sandbox may have that much more memory of its own.
// Shared memory does not count against its limit, so it may have allocated more
// than fits. Without this check the host would kill a program or the sandbox.
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
	for range 20 { // memory that programs return reaches the host a moment later
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

// hookClone notes which kernel runs in this process, and copies what a program
// shares before it gets a child with a copy of its memory.
func hookClone() {
	replace("fork", beforeClone(func(*kernel.Task, arch.SyscallArguments) uint64 { return 0 }))
	replace("clone", beforeClone(func(_ *kernel.Task, args arch.SyscallArguments) uint64 { return args[0].Uint64() }))
	replace("clone3", beforeClone(func(t *kernel.Task, args arch.SyscallArguments) uint64 {
		first := make([]byte, 8)
		_, _ = t.CopyInBytes(args[0].Pointer(), first)
		return binary.LittleEndian.Uint64(first)
	}))
}

func beforeClone(flags func(*kernel.Task, arch.SyscallArguments) uint64) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(usual kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if running.Load() == nil {
				running.Store(t.Kernel())
			}
			if s := sharing.Load(); s != nil && flags(t, args)&linux.CLONE_VM == 0 {
				if err := s.unshare(t, t.MemoryManager(), t.Kernel().MemoryFile()); err != nil {
					return 0, nil, err
				}
			}
			return usual(t, sysno, args)
		}
	}
}
