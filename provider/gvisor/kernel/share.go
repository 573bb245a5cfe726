package kernel

import (
	"reflect"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

// Copies of a sandbox share the memory of their snapshot until they write to
// it. gVisor alone reads all of it into memory of the new sandbox. Here, large
// ranges stay in the file of the snapshot's pages: programs map the page cache
// of the host, which all copies share, and get a page of their own when they
// write.
//
// gVisor does the same for a private mapping of a file. But there is no such
// mapping here, so memory that a program returns and touches again reads as
// zero, as it should. Two operations would lose shared memory, and so it is
// copied first: fork without CLONE_VM, and saving (see unshare.go).

const (
	// minShared is the smallest snapshot whose memory is shared, in bytes.
	// Reading less than that takes no longer than finding out what to share.
	minShared = 16 << 20

	// minPiece is the smallest range that is shared, in bytes. Each range is
	// mapped by itself when it is touched, which costs about as much as reading
	// twenty pages.
	minPiece = 256 << 10

	// maxPieces bounds how many ranges of an address space are shared: the host
	// bounds how many mappings a process has.
	maxPieces = 4 << 10

	// StillShared is part of gVisor's error when it cannot save a kernel because
	// some of its memory is shared. It is the name of a type.
	StillShared = "*kernel.sharedFile"

	noExec = 0x8 // ST_NOEXEC in the flags of statfs
)

// piece is a range of a sandbox's memory that the snapshot holds, and its
// offset in the file of the snapshot's pages.
type piece struct {
	memmap.FileRange
	at uint64
}

// committed lists the pieces of f in the order in which gVisor writes them, and
// their total size.
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

// restore is the restore of a snapshot into this process, which happens at most
// once. Its methods are called by goroutines of gVisor, see logHooks.
type restore struct {
	layout *layout
	begun  atomic.Bool
	loaded chan struct{} // closed when all of the kernel but its memory is there
	once   sync.Once

	memory *pgalloc.MemoryFile // the programs' memory, if it is to be shared
	pieces []piece
	least  uint64 // bytes; the smallest range that is shared
}

func newRestore(l *layout) *restore { return &restore{layout: l, loaded: make(chan struct{})} }

func (r *restore) kernelLoaded() { r.once.Do(func() { close(r.loaded) }) }

// awaitKernel delays the reading of f's pages until the kernel knows which of
// them it needs. The first memory file is that of programs; others belong to
// file systems.
func (r *restore) awaitKernel(f *pgalloc.MemoryFile) {
	if f == nil || r.begun.Swap(true) {
		return
	}
	pieces, size := committed(f)
	if size < minShared {
		return
	}
	r.memory, r.pieces, r.least = f, pieces, max(minPiece, size/maxPieces)
	<-r.loaded
}

// share replaces memory that is still to be read by mappings of the snapshot.
// No program runs yet, and the goroutine that loads the kernel waits.
func (r *restore) share(f *pgalloc.MemoryFile) {
	k := running.Load()
	if f == nil || f != r.memory || k == nil || k.MemoryFile() != f {
		return
	}
	s, err := openShared(f, r.layout)
	if err != nil {
		return // all of it is read
	}
	for _, t := range k.TaskSet().Root.Tasks() {
		if m := t.MemoryManager(); m != nil && !s.users[m] && s.give(m, f, r.pieces, r.least) {
			s.users[m] = true
		}
	}
	if len(s.users) == 0 {
		s.close()
		return
	}
	sharing.Store(s)
}

// sharing is the file whose memory this kernel shares, if any.
var sharing atomic.Pointer[sharedFile]

// sharedFile is the file of a snapshot's pages. It implements memmap.File. It
// stays open as long as the kernel runs and needs no reference counts.
type sharedFile struct {
	memmap.DefaultMemoryType
	memmap.NoBufferedIOFallback

	layout *layout
	fd     int
	bytes  []byte // the whole file, read-only

	mu    sync.Mutex
	users map[*mm.MemoryManager]bool // that may still share some of it
}

// openShared opens the file from which the memory of f is read.
func openShared(f *pgalloc.MemoryFile, l *layout) (*sharedFile, error) {
	fd, err := pagesFile(f)
	if err != nil {
		return nil, err
	}
	if fd, err = unix.Dup(fd); err != nil {
		return nil, err
	}
	s := &sharedFile{layout: l, fd: fd, users: map[*mm.MemoryManager]bool{}}
	var fs unix.Statfs_t
	var stat unix.Stat_t
	if err = unix.Fstatfs(fd, &fs); err == nil && fs.Flags&noExec != 0 {
		err = unix.EPERM // programs may make their memory executable
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

// close releases a file that nothing shares.
func (s *sharedFile) close() {
	_ = unix.Munmap(s.bytes)
	unix.Close(s.fd)
}

// pagesFile returns the descriptor that gVisor reads the pages of f from.
func pagesFile(f *pgalloc.MemoryFile) (int, error) {
	load := field(reflect.ValueOf(f).Elem(), "asyncPageLoad").Addr().MethodByName("Load").Call(nil)[0]
	if load.IsNil() {
		return 0, unix.ENOENT // it has been read already
	}
	reader, ok := field(field(load.Elem(), "pf").Elem(), "ar").Interface().(*stateio.FDReader)
	if !ok {
		return 0, unix.ENOTSUP
	}
	return int(field(reflect.ValueOf(reader).Elem(), "fd").Int()), nil
}

// give maps large ranges of the memory of m from the file, and reports whether
// there were any. Memory that is executable, locked or mapped from another file
// is left alone, and so is memory that address spaces share already: each
// would get its own when it is copied back.
func (s *sharedFile) give(m *mm.MemoryManager, f *pgalloc.MemoryFile, pieces []piece, least uint64) bool {
	l := s.layout
	vmas := l.vmas.list(m)
	set := l.pmas.set(m)
	old := set.MethodByName("ExportSlice").Call(nil)[0]
	all := reflect.MakeSlice(old.Type(), 0, old.Len())
	var freed []memmap.FileRange
	for i := range old.Len() {
		p := l.pma(old.Index(i))
		begin, ar := *p.off, p.ar()
		done := ar.Start
		// until appends the part of p from the end of the last part to end: as it
		// was, or as a part of the file that begins at some offset.
		until := func(end hostarch.Addr, file bool, at uint64) {
			if done < end {
				all = reflect.Append(all, old.Index(i))
				part := l.pma(all.Index(all.Len() - 1))
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
			if !l.plain(v) {
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
		panic(err.Interface()) // impossible: these are parts of what was there
	}
	for _, fr := range freed {
		f.DecRef(fr)
	}
	return true
}

// overlapping returns the pieces that overlap fr. The pieces are in order.
func overlapping(pieces []piece, fr memmap.FileRange) []piece {
	first := sort.Search(len(pieces), func(i int) bool { return pieces[i].End > fr.Start })
	last := sort.Search(len(pieces), func(i int) bool { return pieces[i].Start >= fr.End })
	return pieces[first:last]
}

// plain reports whether a mapping is anonymous memory that is neither
// executable nor locked.
func (l *layout) plain(vma segment) bool {
	return *(*memmap.Mappable)(unsafe.Add(vma.value, l.vmaMappable)) == nil &&
		!(*hostarch.AccessType)(unsafe.Add(vma.value, l.vmaPerms)).Execute &&
		*(*memmap.MLockMode)(unsafe.Add(vma.value, l.vmaLock)) == memmap.MLockNone
}

// pma points to what gVisor knows about the memory of one part of an address
// space.
type pma struct {
	start, end            *hostarch.Addr
	file                  *memmap.File
	off                   *uint64
	effective, most       *hostarch.AccessType
	copied, private, huge *bool
}

// pma returns the fields of one segment of an exported list.
func (l *layout) pma(one reflect.Value) pma {
	at := one.Addr().UnsafePointer()
	v := unsafe.Add(at, l.pmas.value)
	return pma{
		start: (*hostarch.Addr)(unsafe.Add(at, l.pmas.start)), end: (*hostarch.Addr)(unsafe.Add(at, l.pmas.end)),
		file: (*memmap.File)(unsafe.Add(v, l.pmaFile)), off: (*uint64)(unsafe.Add(v, l.pmaOff)),
		effective: (*hostarch.AccessType)(unsafe.Add(v, l.pmaEffective)), most: (*hostarch.AccessType)(unsafe.Add(v, l.pmaMost)),
		copied: (*bool)(unsafe.Add(v, l.pmaCopied)), private: (*bool)(unsafe.Add(v, l.pmaPrivate)), huge: (*bool)(unsafe.Add(v, l.pmaHuge)),
	}
}

func (p pma) ar() hostarch.AddrRange { return hostarch.AddrRange{Start: *p.start, End: *p.end} }

// become makes p a copy-on-write mapping of s at some offset, and returns the
// range that it had before.
func (p pma) become(s *sharedFile, at uint64) memmap.FileRange {
	was := memmap.FileRange{Start: *p.off, End: *p.off + uint64(*p.end-*p.start)}
	*p.file, *p.off = s, at
	p.effective.Write, p.most.Write = false, false
	*p.copied, *p.private, *p.huge = true, false, false
	return was
}

// IncRef implements memmap.File.
func (s *sharedFile) IncRef(memmap.FileRange, uint32) {}

// DecRef implements memmap.File.
func (s *sharedFile) DecRef(memmap.FileRange) {}

// MapInternal implements memmap.File.
func (s *sharedFile) MapInternal(fr memmap.FileRange, at hostarch.AccessType) (safemem.BlockSeq, error) {
	if at.Write || at.Execute {
		return safemem.BlockSeq{}, linuxerr.EACCES
	}
	return safemem.BlockSeqOf(safemem.BlockFromUnsafePointer(unsafe.Pointer(&s.bytes[fr.Start]), int(fr.Length()))), nil
}

// DataFD implements memmap.File.
func (s *sharedFile) DataFD(memmap.FileRange) (int, error) { return s.fd, nil }

// FD implements memmap.File.
func (s *sharedFile) FD() int { return s.fd }
