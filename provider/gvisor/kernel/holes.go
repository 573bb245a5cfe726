package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// minHole is the smallest hole that is returned, in bytes. Returning one costs
// about as much as scanning fifteen pages, and a program that touches it later
// takes a page fault.
const minHole = 128 << 10

// returnUntouched returns memory that was allocated for programs but never
// written to. gVisor allocates memory in pieces of 2 MB and, when it saves,
// compares every page with zero, for which the host must first create the page.
// The memory reads as zero before and after. No program may run.
func returnUntouched(k *kernel.Kernel, l *layout) {
	mf := k.MemoryFile()
	if mf.AwaitLoadAll() != nil { // a page that is still to be loaded looks untouched
		return
	}
	seen := map[*mm.MemoryManager]bool{nil: true}
	for _, t := range k.TaskSet().Root.Tasks() {
		if m := t.MemoryManager(); !seen[m] {
			seen[m] = true
			returnHoles(m, mf, l)
		}
	}
}

// returnHoles decommits the holes of private anonymous memory. Decommitting a
// private mapping of a file would bring the file's content back.
func returnHoles(m *mm.MemoryManager, mf *pgalloc.MemoryFile, l *layout) {
	vmas := l.vmas.list(m)
	for _, p := range l.pmas.list(m) {
		if !*(*bool)(unsafe.Add(p.value, l.pmaPrivate)) || *(*memmap.File)(unsafe.Add(p.value, l.pmaFile)) != memmap.File(mf) {
			continue
		}
		off := *(*uint64)(unsafe.Add(p.value, l.pmaOff))
		for len(vmas) > 0 && vmas[0].ar.End <= p.ar.Start {
			vmas = vmas[1:]
		}
		for _, v := range vmas {
			ar := v.ar.Intersect(p.ar)
			if ar.Length() == 0 {
				break
			}
			if *(*memmap.Mappable)(unsafe.Add(v.value, l.vmaMappable)) != nil {
				continue
			}
			begin := off + uint64(ar.Start-p.ar.Start)
			for _, hole := range holes(mf.FD(), begin, begin+uint64(ar.Length())) {
				_ = m.Decommit(ar.Start+hostarch.Addr(hole.Start-begin), hole.Length()) // fails if it is locked
			}
		}
	}
}

// holes returns the ranges of a file that were never written to and are at
// least minHole long.
func holes(fd int, begin, end uint64) (found []memmap.FileRange) {
	for begin < end {
		data := end
		switch at, err := unix.Seek(fd, int64(begin), unix.SEEK_DATA); {
		case err == nil:
			data = min(uint64(at), end)
		case err != unix.ENXIO: // ENXIO: there is no data after begin
			return found
		}
		if data-begin >= minHole {
			found = append(found, memmap.FileRange{Start: begin, End: data})
		}
		at, err := unix.Seek(fd, int64(data), unix.SEEK_HOLE)
		if err != nil {
			return found
		}
		begin = uint64(at)
	}
	return found
}
