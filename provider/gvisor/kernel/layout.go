package kernel

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

// layout says where the linked gVisor keeps the unexported state that this
// package reads and changes. All of it is checked before any of it is used.
type layout struct {
	vmas, pmas segments

	vmaMappable, vmaPerms, vmaLock uintptr // in mm.vma

	pmaFile, pmaOff, pmaEffective, pmaMost uintptr // in mm.pma
	pmaCopied, pmaPrivate, pmaHuge         uintptr
}

// segments says where an address space keeps the list of its segments of one
// kind.
type segments struct {
	field                   string       // of mm.MemoryManager
	flat                    reflect.Type // one segment, as ExportSlice returns it
	size, start, end, value uintptr
}

// theLayout returns the layout, or an error that says what does not fit.
var theLayout = sync.OnceValues(findLayout)

func findLayout() (*layout, error) {
	c := &checker{}
	l := &layout{vmas: c.segments("vmas"), pmas: c.segments("pmas")}
	if c.err != nil {
		return nil, c.err
	}
	vma, pma := c.field(l.vmas.flat, "Value").Type, c.field(l.pmas.flat, "Value").Type
	l.vmaMappable = offset[memmap.Mappable](c, vma, "mappable")
	l.vmaPerms = offset[hostarch.AccessType](c, vma, "effectivePerms")
	l.vmaLock = offset[memmap.MLockMode](c, vma, "mlockMode")
	l.pmaFile = offset[memmap.File](c, pma, "file")
	l.pmaOff = offset[uint64](c, pma, "off")
	l.pmaEffective = offset[hostarch.AccessType](c, pma, "effectivePerms")
	l.pmaMost = offset[hostarch.AccessType](c, pma, "maxPerms")
	l.pmaCopied = offset[bool](c, pma, "needCOW")
	l.pmaPrivate = offset[bool](c, pma, "private")
	l.pmaHuge = offset[bool](c, pma, "huge")
	c.memoryManager()
	c.memoryFile()
	c.fileSystems()
	if c.err != nil {
		return nil, c.err
	}
	return l, nil
}

// checker looks fields and methods up by name and type, and keeps the first
// error.
type checker struct{ err error }

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) field(in reflect.Type, name string) reflect.StructField {
	if c.err != nil || in.Kind() != reflect.Struct {
		c.fail("%v is not a struct", in)
		return reflect.StructField{}
	}
	f, ok := in.FieldByName(name)
	if !ok {
		c.fail("%v has no field %s", in, name)
	}
	return f
}

// offset returns where a struct has a field of type T.
func offset[T any](c *checker, in reflect.Type, name string) uintptr {
	f := c.field(in, name)
	if want := reflect.TypeFor[T](); c.err == nil && f.Type != want {
		c.fail("%v.%s is a %v and not a %v", in, name, f.Type, want)
	}
	return f.Offset
}

// method checks that *of has a method with these numbers of arguments and
// results, and returns the type of the only result.
func (c *checker) method(of reflect.Type, name string, in, out int) reflect.Type {
	if c.err != nil {
		return nil
	}
	m, ok := reflect.PointerTo(of).MethodByName(name)
	if !ok || m.Type.NumIn() != 1+in || m.Type.NumOut() != out {
		c.fail("%v has no method %s that takes %d and returns %d values", of, name, in, out)
		return nil
	}
	if out != 1 {
		return nil
	}
	return m.Type.Out(0)
}

// exported returns the type of one element of what ExportSlice returns.
func (c *checker) exported(set reflect.Type) reflect.Type {
	list := c.method(set, "ExportSlice", 0, 1)
	if c.err != nil || list.Kind() != reflect.Slice {
		c.fail("%v.ExportSlice returns no slice", set)
		return nil
	}
	return list.Elem()
}

func (c *checker) segments(name string) segments {
	set := c.field(reflect.TypeFor[mm.MemoryManager](), name)
	if c.err != nil {
		return segments{}
	}
	flat := c.exported(set.Type)
	if c.err != nil {
		return segments{}
	}
	return segments{
		field: name, flat: flat, size: flat.Size(),
		start: offset[hostarch.Addr](c, flat, "Start"), end: offset[hostarch.Addr](c, flat, "End"),
		value: c.field(flat, "Value").Offset,
	}
}

// memoryManager checks what [sharedFile.give] and [sharedFile.in] need of an
// address space.
func (c *checker) memoryManager() {
	m := reflect.TypeFor[mm.MemoryManager]()
	lock := c.field(m, "activeMu")
	if c.err == nil && !reflect.PointerTo(lock.Type).Implements(reflect.TypeFor[rwLocker]()) {
		c.fail("%v.activeMu cannot be locked for reading", m)
	}
	pmas := c.field(m, "pmas").Type
	c.method(pmas, "RemoveAll", 0, 0)
	c.method(pmas, "ImportSlice", 1, 1)
}

// memoryFile checks what [committed] and [pagesFile] need.
func (c *checker) memoryFile() {
	f := reflect.TypeFor[pgalloc.MemoryFile]()
	acct := c.field(f, "memAcct")
	load := c.field(f, "asyncPageLoad")
	if c.err != nil {
		return
	}
	if one := c.exported(acct.Type); c.err == nil {
		offset[uint64](c, one, "Start")
		offset[uint64](c, one, "End")
		offset[bool](c, c.field(one, "Value").Type, "knownCommitted")
	}
	if loading := c.method(load.Type, "Load", 0, 1); c.err == nil {
		offset[*pgalloc.AsyncPagesFileLoad](c, loading.Elem(), "pf")
		offset[stateio.AsyncReader](c, reflect.TypeFor[pgalloc.AsyncPagesFileLoad](), "ar")
		offset[int32](c, reflect.TypeFor[stateio.FDReader](), "fd")
	}
}

type rwLocker interface {
	RLock()
	RUnlock()
}

// field is an unexported field of a struct of gVisor, made accessible.
func field(of reflect.Value, name string) reflect.Value {
	f := of.FieldByName(name)
	return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
}

// set is the set of an address space's segments of one kind.
func (s *segments) set(m *mm.MemoryManager) reflect.Value {
	return field(reflect.ValueOf(m).Elem(), s.field).Addr()
}

// segment is a part of an address space, and gVisor's value for it.
type segment struct {
	ar    hostarch.AddrRange
	value unsafe.Pointer
}

// list returns the segments of an address space, in order.
func (s *segments) list(m *mm.MemoryManager) []segment {
	flat := s.set(m).MethodByName("ExportSlice").Call(nil)[0]
	first := flat.UnsafePointer()
	found := make([]segment, flat.Len())
	for i := range found {
		at := unsafe.Add(first, uintptr(i)*s.size)
		found[i] = segment{
			hostarch.AddrRange{Start: *(*hostarch.Addr)(unsafe.Add(at, s.start)), End: *(*hostarch.Addr)(unsafe.Add(at, s.end))},
			unsafe.Add(at, s.value),
		}
	}
	return found
}
