package kernel

import (
	"context"
	"encoding/binary"
	"math"
	"reflect"
	"runtime/debug"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	gvcontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/state"
)

// A sandbox that is made of a snapshot has all of its memory, and its programs
// change little of it. gVisor reads all of it into memory of the sandbox's own.
// What is large is left where it is here: programs see the pages of the file
// itself, which are those of the machine's page cache and shared by all sandboxes
// of the same snapshot, and get a page of their own when they write to one.
//
// To gVisor that is what it does for a private mapping of a file, but that there
// is no such mapping: what a program gives back and touches again is zero, as
// before. Two things would be lost that way, and are taken back into memory of
// the sandbox's own before: what a child gets by fork without sharing its
// parent's memory, and what is saved once more.

const (
	// leastShared is how much memory a snapshot must have to be shared at all, in
	// bytes. To read less than that takes no longer than to find out.
	leastShared = 16 << 20

	// leastPiece is how much of it in a row is shared, in bytes. Each piece is mapped by
	// itself when it is touched, which costs about as much as to read some twenty pages.
	leastPiece = 256 << 10

	// mostPieces is how many there may be in an address space: the machine bounds
	// how many mappings a process has.
	mostPieces = 4 << 10

	// kernelShare is how much of a sandbox's memory is not its programs', in bytes.
	kernelShare = 32 << 20

	// StillShared is part of what gVisor says when it cannot save a kernel because
	// some of its memory is shared, by the name of that type.
	StillShared = "*kernel.shared"

	noExec = 0x8 // as statfs says it: nothing of this file system may be executed
)

// pieces of a sandbox's memory and where they are in the file of a snapshot's
// pages: those that are in memory at all, one after the other.
type piece struct {
	memmap.FileRange
	at uint64
}

// committed lists the pieces of f, and says how large they are together. The
// order is that in which gVisor writes them.
func committed(f *pgalloc.MemoryFile) (pieces []piece, size uint64) {
	acct := field(reflect.ValueOf(f).Elem(), "memAcct")
	list := acct.Addr().MethodByName("ExportSlice").Call(nil)[0]
	for i := range list.Len() {
		s := list.Index(i)
		if !s.FieldByName("Value").FieldByName("knownCommitted").Bool() {
			continue
		}
		fr := memmap.FileRange{Start: s.FieldByName("Start").Uint(), End: s.FieldByName("End").Uint()}
		if last := len(pieces) - 1; last >= 0 && pieces[last].End == fr.Start {
			pieces[last].End = fr.End
		} else {
			pieces = append(pieces, piece{fr, size})
		}
		size += fr.Length()
	}
	return pieces, size
}

// arrival is that this kernel becomes the one of a snapshot.
type arrival struct {
	begun  atomic.Bool
	memory *pgalloc.MemoryFile // of programs, if it is to be shared
	pieces []piece
	least  uint64 // bytes in a row that are shared
}

// awaitKernel keeps the pages of f from being read before the kernel knows which
// of them it needs. The first memory is that of programs; what others there are
// belong to file systems.
func (a *arrival) awaitKernel(f *pgalloc.MemoryFile) {
	if f == nil || a.begun.Swap(true) {
		return
	}
	pieces, size := committed(f)
	if size < leastShared {
		return
	}
	a.memory, a.pieces, a.least = f, pieces, max(leastPiece, size/mostPieces)
	<-arrived
}

// arrived is closed when a kernel has been loaded into this process, all of it
// but its memory, which happens once at most.
var arrived = make(chan struct{})

var arrive = sync.OnceFunc(func() { close(arrived) })

// share lets programs see the file where their memory is to be read from.
// Nothing runs yet, and the goroutine that loads the kernel waits.
func (a *arrival) share(f *pgalloc.MemoryFile) {
	k := running.Load()
	if f == nil || f != a.memory || k == nil || k.MemoryFile() != f {
		return
	}
	s, err := openShared(f)
	if err != nil {
		return // all of it is read
	}
	for _, t := range k.TaskSet().Root.Tasks() {
		if m := t.MemoryManager(); m != nil && !s.users[m] && s.give(m, f, a.pieces, a.least) {
			s.users[m] = true
		}
	}
	if len(s.users) == 0 {
		_ = unix.Munmap(s.bytes)
		unix.Close(s.fd)
		return
	}
	sharing.Store(s)
}

// sharing is what this kernel shares, if it does.
var sharing atomic.Pointer[shared]

// shared is the file of a snapshot's pages. It implements memmap.File. As long as
// the kernel lives it stays open, so that it needs no counts of references.
type shared struct {
	memmap.DefaultMemoryType
	memmap.NoBufferedIOFallback

	fd    int
	bytes []byte // all of it, to be read only

	mu    sync.Mutex
	users map[*mm.MemoryManager]bool // that had pieces of it at the beginning, and were not made to take them back
}

// openShared opens the file that the memory of f is to be read from.
func openShared(f *pgalloc.MemoryFile) (*shared, error) {
	fd, err := unix.Dup(pagesFile(f))
	if err != nil {
		return nil, err
	}
	s := &shared{fd: fd, users: map[*mm.MemoryManager]bool{}}
	var fs unix.Statfs_t
	var stat unix.Stat_t
	if err = unix.Fstatfs(fd, &fs); err == nil && fs.Flags&noExec != 0 {
		err = unix.EPERM // programs may make memory executable
	}
	if err == nil {
		err = unix.Fstat(fd, &stat)
	}
	if err == nil {
		s.bytes, err = unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// pagesFile is the descriptor that gVisor reads the pages of f from.
func pagesFile(f *pgalloc.MemoryFile) int {
	load := field(reflect.ValueOf(f).Elem(), "asyncPageLoad").Addr().MethodByName("Load").Call(nil)[0]
	return int(load.Elem().FieldByName("pf").Elem().FieldByName("ar").Elem().Elem().FieldByName("fd").Int())
}

// give makes what is large of the memory of m the file's, and reports whether
// there was any. What is executed, locked, or covers part of a file is left alone,
// and what address spaces share already: taken back, each would have its own.
func (s *shared) give(m *mm.MemoryManager, f *pgalloc.MemoryFile, pieces []piece, least uint64) bool {
	vmas := exported(vmaSegments, exportVMAs(unsafe.Add(unsafe.Pointer(m), vmaSegments.set)))
	set := field(reflect.ValueOf(m).Elem(), "pmas").Addr()
	old := set.MethodByName("ExportSlice").Call(nil)[0]
	all := reflect.MakeSlice(old.Type(), 0, old.Len())
	var freed []memmap.FileRange
	for i := range old.Len() {
		p := pmaOf(old.Index(i))
		begin, ar := *p.off, p.ar()
		done := ar.Start
		// until appends what p is from where the last part ended to end: as it was, or
		// a part of the file that begins at some place.
		until := func(end hostarch.Addr, file bool, at uint64) {
			if done < end {
				all = reflect.Append(all, old.Index(i))
				part := pmaOf(all.Index(all.Len() - 1))
				*part.start, *part.end = done, end
				*part.off = begin + uint64(done-ar.Start)
				if file {
					freed = append(freed, part.become(s, at))
				}
				done = end
			}
		}
		for len(vmas) > 0 && vmas[0].ar.End <= ar.Start {
			vmas = vmas[1:]
		}
		for _, v := range vmas {
			in := v.ar.Intersect(ar)
			if in.Length() == 0 || !*p.private || *p.file != memmap.File(f) {
				break
			}
			if !plain(v) {
				continue
			}
			whole := memmap.FileRange{Start: begin + uint64(in.Start-ar.Start), End: begin + uint64(in.End-ar.Start)}
			for _, c := range overlapping(pieces, whole) {
				fr := c.Intersect(whole)
				if fr.Length() < least || *p.copied && !f.HasUniqueRef(fr) {
					continue
				}
				start := ar.Start + hostarch.Addr(fr.Start-begin)
				until(start, false, 0)
				until(start+hostarch.Addr(fr.Length()), true, c.at+fr.Start-c.Start)
			}
		}
		until(ar.End, false, 0)
	}
	if len(freed) == 0 {
		return false
	}
	set.MethodByName("RemoveAll").Call(nil)
	if err := set.MethodByName("ImportSlice").Call([]reflect.Value{all})[0]; !err.IsNil() {
		panic(err.Interface()) // these are parts of what was there
	}
	for _, fr := range freed {
		f.DecRef(fr)
	}
	return true
}

// overlapping are those of the pieces, which are in order, that have some of fr.
func overlapping(pieces []piece, fr memmap.FileRange) []piece {
	first := sort.Search(len(pieces), func(i int) bool { return pieces[i].End > fr.Start })
	last := sort.Search(len(pieces), func(i int) bool { return pieces[i].Start >= fr.End })
	return pieces[first:last]
}

// plain reports whether a mapping is of memory and nothing else, which is
// neither executed nor locked.
func plain(vma segment) bool {
	return *(*memmap.Mappable)(unsafe.Add(vma.value, vmaMappable)) == nil &&
		!(*hostarch.AccessType)(unsafe.Add(vma.value, vmaPerms)).Execute &&
		*(*memmap.MLockMode)(unsafe.Add(vma.value, vmaLock)) == memmap.MLockNone
}

// pma is what gVisor knows of one part of an address space: where its memory is.
type pma struct {
	start, end            *hostarch.Addr
	file                  *memmap.File
	off                   *uint64
	effective, most       *hostarch.AccessType
	copied, private, huge *bool
}

func pmaOf(one reflect.Value) pma {
	at := one.Addr().UnsafePointer()
	v := unsafe.Add(at, pmaSegments.value)
	return pma{
		start: (*hostarch.Addr)(unsafe.Add(at, pmaSegments.start)), end: (*hostarch.Addr)(unsafe.Add(at, pmaSegments.end)),
		file: (*memmap.File)(unsafe.Add(v, pmaFile)), off: (*uint64)(unsafe.Add(v, pmaOff)),
		effective: (*hostarch.AccessType)(unsafe.Add(v, pmaEffective)), most: (*hostarch.AccessType)(unsafe.Add(v, pmaMost)),
		copied: (*bool)(unsafe.Add(v, pmaCopied)), private: (*bool)(unsafe.Add(v, pmaPrivate)), huge: (*bool)(unsafe.Add(v, pmaHuge)),
	}
}

func (p pma) ar() hostarch.AddrRange { return hostarch.AddrRange{Start: *p.start, End: *p.end} }

// become makes p the part of s that begins at some place, to be copied when it
// is written to, and returns what it was before.
func (p pma) become(s *shared, at uint64) memmap.FileRange {
	was := memmap.FileRange{Start: *p.off, End: *p.off + uint64(*p.end-*p.start)}
	*p.file, *p.off = s, at
	p.effective.Write, p.most.Write = false, false
	*p.copied, *p.private, *p.huge = true, false, false
	return was
}

var (
	vmaPerms     = offset[hostarch.AccessType](vmaSegments.flat, "effectivePerms")
	vmaLock      = offset[memmap.MLockMode](vmaSegments.flat, "mlockMode")
	pmaEffective = offset[hostarch.AccessType](pmaSegments.flat, "effectivePerms")
	pmaMost      = offset[hostarch.AccessType](pmaSegments.flat, "maxPerms")
	pmaCopied    = offset[bool](pmaSegments.flat, "needCOW")
	pmaHuge      = offset[bool](pmaSegments.flat, "huge")
)

// field is a field of a struct of gVisor, as if it had an exported name.
func field(of reflect.Value, name string) reflect.Value {
	f := of.FieldByName(name)
	return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
}

// IncRef implements memmap.File.
func (s *shared) IncRef(memmap.FileRange, uint32) {}

// DecRef implements memmap.File.
func (s *shared) DecRef(memmap.FileRange) {}

// MapInternal implements memmap.File.
func (s *shared) MapInternal(fr memmap.FileRange, at hostarch.AccessType) (safemem.BlockSeq, error) {
	if at.Write || at.Execute {
		return safemem.BlockSeq{}, linuxerr.EACCES
	}
	return safemem.BlockSeqOf(safemem.BlockFromUnsafePointer(unsafe.Pointer(&s.bytes[fr.Start]), int(fr.Length()))), nil
}

// DataFD implements memmap.File.
func (s *shared) DataFD(memmap.FileRange) (int, error) { return s.fd, nil }

// FD implements memmap.File.
func (s *shared) FD() int { return s.fd }

// in are the parts of m that are the file's.
func (s *shared) in(m *mm.MemoryManager) (found []hostarch.AddrRange) {
	lock := field(reflect.ValueOf(m).Elem(), "activeMu").Addr().Interface().(interface {
		RLock()
		RUnlock()
	})
	lock.RLock()
	defer lock.RUnlock()
	for _, p := range exported(pmaSegments, exportPMAs(unsafe.Add(unsafe.Pointer(m), pmaSegments.set))) {
		if *(*memmap.File)(unsafe.Add(p.value, pmaFile)) == memmap.File(s) {
			found = append(found, p.ar)
		}
	}
	return found
}

// takeBack makes all that m has of the file memory of its own, which is f.
func (s *shared) takeBack(ctx gvcontext.Context, m *mm.MemoryManager, f *pgalloc.MemoryFile) error {
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
			// To pin memory is to have it copied, be it written to or not.
			pinned, err := m.Pin(ctx, ar, hostarch.Read, true)
			mm.Unpin(pinned)
			if err != nil && len(pinned) == 0 && slices.Contains(s.in(m), ar) {
				return err
			}
		}
	}
}

// fits reports whether the sandbox may have so much more memory of its own. What
// it shares does not count, so that it may have got more than it would fit in.
// Without this the host would end a program, or the sandbox.
func fits(f *pgalloc.MemoryFile, parts []hostarch.AddrRange) bool {
	// See the engine's environment for a kernel: it is told half of the limit.
	limit := uint64(debug.SetMemoryLimit(-1))
	if limit >= math.MaxInt64 {
		return true
	}
	limit *= 2
	var more uint64 = kernelShare
	for _, ar := range parts {
		more += uint64(ar.Length())
	}
	for range 20 { // what programs have given back goes to the host a moment later
		if used, err := f.TotalUsage(); err != nil || used+more <= limit {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// takeBack prepares the kernel of this process to be saved, since only memory of
// its own can be. Programs stand still. If it fails, the save does.
func takeBack() {
	k := running.Load()
	if k == nil {
		return
	}
	k.AddStateToCheckpoint(passengerKey, &passenger{Version: 1})
	s := sharing.Load()
	if s == nil {
		return
	}
	k.Pause()
	defer k.Unpause()
	ctx := k.SupervisorContext()
	_ = quiescePausedAnd(k, ctx, func() error {
		for _, t := range k.TaskSet().Root.Tasks() {
			if m := t.MemoryManager(); m != nil {
				if err := s.takeBack(ctx, m, k.MemoryFile()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// takeBackForChild lets a program that is about to have a child with a copy of
// its memory take that back before.
func takeBackForChild(flags func(*kernel.Task, arch.SyscallArguments) uint64) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(usual kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			if s := sharing.Load(); s != nil && flags(t, args)&linux.CLONE_VM == 0 {
				if err := s.takeBack(t, t.MemoryManager(), t.Kernel().MemoryFile()); err != nil {
					return 0, nil, err
				}
			}
			return usual(t, sysno, args)
		}
	}
}

// shareMemory lets this kernel share memory of the snapshot that it is made of.
func shareMemory() {
	state.Register((*passenger)(nil))
	replace("fork", takeBackForChild(func(*kernel.Task, arch.SyscallArguments) uint64 { return 0 }))
	replace("clone", takeBackForChild(func(_ *kernel.Task, args arch.SyscallArguments) uint64 { return args[0].Uint64() }))
	replace("clone3", takeBackForChild(func(t *kernel.Task, args arch.SyscallArguments) uint64 {
		first := make([]byte, 8)
		_, _ = t.CopyInBytes(args[0].Pointer(), first)
		return binary.LittleEndian.Uint64(first)
	}))
}

// passenger is saved with a kernel, so that it finds the kernel that it is
// restored in. It implements state.Type and state.SaverLoader.
type passenger struct{ Version uint64 }

const passengerKey = "atoll"

// StateTypeName implements state.Type.
func (*passenger) StateTypeName() string { return "provider/gvisor/kernel.passenger" }

// StateFields implements state.Type.
func (*passenger) StateFields() []string { return []string{"Version"} }

// StateSave implements state.SaverLoader.
func (p *passenger) StateSave(to state.Sink) { to.Save(0, &p.Version) }

// StateLoad implements state.SaverLoader.
func (p *passenger) StateLoad(ctx context.Context, from state.Source) {
	from.Load(0, &p.Version)
	if k, ok := ctx.Value(kernel.CtxKernel).(*kernel.Kernel); ok {
		running.Store(k)
	}
}
