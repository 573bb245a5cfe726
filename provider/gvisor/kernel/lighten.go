package kernel

import (
	"reflect"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// Some of what a kernel writes down and reads again is of no use to anybody,
// and takes time while a sandbox stands still. It is removed before.

// leastHole is how much memory in a row that was never touched is given back,
// in bytes. To do so costs about as much as to look at some fifteen pages, and
// programs get it anew by a fault where they touch it after all.
const leastHole = 128 << 10

// running is the kernel of this process, once a program inside has asked it for
// the time, as every guest does when it starts or is woken.
var running atomic.Pointer[kernel.Kernel]

// lighten makes the state smaller that the running kernel would write. Programs
// stand still meanwhile, as they will for the writing, and find everything as it was.
//
// The kernel sets memory aside for a program in pieces of 2 MB, of which most is
// never touched, and to save it compares all of that with zero, page by page,
// which has the machine make each page first.
func lighten(k *kernel.Kernel) {
	k.Pause()
	defer k.Unpause()
	_ = quiescePausedAnd(k, k.SupervisorContext(), func() error {
		mf := k.MemoryFile()
		if err := mf.AwaitLoadAll(); err != nil { // before that, a page to be read looks like one never touched
			return err
		}
		forgetNumbers(k)
		if guest := k.TaskSet().Root.TaskWithID(1); guest != nil {
			forgetNames(k.SupervisorContext(), guest)
		}
		seen := map[*mm.MemoryManager]bool{nil: true}
		for _, t := range k.TaskSet().Root.Tasks() {
			if m := t.MemoryManager(); !seen[m] {
				seen[m] = true
				giveBack(m, mf)
			}
		}
		return nil
	})
}

// quiescePausedAnd does something while nothing else reads or changes a kernel
// that is paused: no other save, in particular.
//
//go:linkname quiescePausedAnd gvisor.dev/gvisor/pkg/sentry/kernel.(*Kernel).quiescePausedAnd
func quiescePausedAnd(k *kernel.Kernel, ctx context.Context, do func() error) error

// giveBack returns the memory of an address space that was set aside but never
// written to, as the programs themselves could. It is zero before and after.
func giveBack(m *mm.MemoryManager, mf *pgalloc.MemoryFile) {
	vmas := exported(vmaSegments, exportVMAs(unsafe.Add(unsafe.Pointer(m), vmaSegments.set)))
	for _, p := range exported(pmaSegments, exportPMAs(unsafe.Add(unsafe.Pointer(m), pmaSegments.set))) {
		if !*(*bool)(unsafe.Add(p.value, pmaPrivate)) || *(*memmap.File)(unsafe.Add(p.value, pmaFile)) != memmap.File(mf) {
			continue
		}
		off := *(*uint64)(unsafe.Add(p.value, pmaOff))
		for len(vmas) > 0 && vmas[0].ar.End <= p.ar.Start {
			vmas = vmas[1:]
		}
		for _, v := range vmas {
			ar := v.ar.Intersect(p.ar)
			if ar.Length() == 0 {
				break
			}
			// What was copied from a file on writing would be the file's again.
			if *(*memmap.Mappable)(unsafe.Add(v.value, vmaMappable)) != nil {
				continue
			}
			begin := off + uint64(ar.Start-p.ar.Start)
			for _, hole := range holes(mf.FD(), begin, begin+uint64(ar.Length())) {
				_ = m.Decommit(ar.Start+hostarch.Addr(hole.Start-begin), hole.Length()) // refused where it is locked
			}
		}
	}
}

// holes are the parts of a file between two places that nobody has written to
// and that are worth the mention.
func holes(fd int, begin, end uint64) (found []memmap.FileRange) {
	for begin < end {
		data := end
		switch at, err := unix.Seek(fd, int64(begin), unix.SEEK_DATA); {
		case err == nil:
			data = min(uint64(at), end)
		case err != unix.ENXIO: // that is: nothing but a hole
			return found
		}
		if data-begin >= leastHole {
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

// segment is a part of an address space, and what gVisor knows about it.
type segment struct {
	ar    hostarch.AddrRange
	value unsafe.Pointer
}

// segments says where gVisor keeps those of an address space.
type segments struct {
	set                     uintptr      // in mm.MemoryManager
	flat                    reflect.Type // one of a list of them
	size, start, end, value uintptr
}

//go:linkname exportPMAs gvisor.dev/gvisor/pkg/sentry/mm.(*pmaSet).ExportSlice
func exportPMAs(set unsafe.Pointer) []struct{}

//go:linkname exportVMAs gvisor.dev/gvisor/pkg/sentry/mm.(*vmaSet).ExportSlice
func exportVMAs(set unsafe.Pointer) []struct{}

// exported makes sense of a list whose type has no name here.
func exported(of segments, list []struct{}) []segment {
	found := make([]segment, len(list))
	first := unsafe.Pointer(unsafe.SliceData(list))
	for i := range found {
		at := unsafe.Add(first, uintptr(i)*of.size)
		found[i] = segment{
			hostarch.AddrRange{Start: *(*hostarch.Addr)(unsafe.Add(at, of.start)), End: *(*hostarch.Addr)(unsafe.Add(at, of.end))},
			unsafe.Add(at, of.value),
		}
	}
	return found
}

var (
	pmaSegments = segmentsOf("pmas")
	vmaSegments = segmentsOf("vmas")

	pmaPrivate  = offset[bool](pmaSegments.flat, "private")
	pmaFile     = offset[memmap.File](pmaSegments.flat, "file")
	pmaOff      = offset[uint64](pmaSegments.flat, "off")
	vmaMappable = offset[memmap.Mappable](vmaSegments.flat, "mappable")
)

func segmentsOf(field string) segments {
	set, ok := reflect.TypeFor[mm.MemoryManager]().FieldByName(field)
	if !ok {
		panic("gVisor's address spaces are not what they were")
	}
	export, ok := reflect.PointerTo(set.Type).MethodByName("ExportSlice")
	if !ok || export.Type.NumOut() != 1 || export.Type.Out(0).Kind() != reflect.Slice {
		panic("gVisor's address spaces are not what they were")
	}
	flat := export.Type.Out(0).Elem()
	value, _ := flat.FieldByName("Value")
	return segments{set.Offset, value.Type, flat.Size(), offset[hostarch.Addr](flat, "Start"), offset[hostarch.Addr](flat, "End"), value.Offset}
}

// offset is where a struct of gVisor has a field, which is of type T.
func offset[T any](in reflect.Type, field string) uintptr {
	f, ok := in.FieldByName(field)
	if !ok || f.Type != reflect.TypeFor[T]() {
		panic("gVisor's " + in.Name() + " is not what it was")
	}
	return f.Offset
}
