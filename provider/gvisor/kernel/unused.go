package kernel

import (
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/refs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// A kernel is written down object by object, each of which costs a microsecond
// to write and another to read. Some of them are there for nobody.

// forgetNumbers removes a table of 2048 numbers that gVisor makes for the
// packets of its network, and does not look at any more: each of those gets a
// random number.
func forgetNumbers(k *kernel.Kernel) {
	ns := k.RootNetworkNamespace()
	if ns == nil {
		return
	}
	s, ok := ns.Stack().(*netstack.Stack)
	if !ok {
		return
	}
	p := reflect.ValueOf(s.Stack.NetworkProtocolInstance(ipv4.ProtocolNumber))
	if p.Kind() == reflect.Pointer {
		*(*[]atomicbitops.Uint32)(unsafe.Add(p.UnsafePointer(), offset[[]atomicbitops.Uint32](p.Type().Elem(), "ids"))) = nil
	}
}

// forgetNames removes what is remembered of names below /proc and that nobody
// has open: some thousand objects for each process whose directory was looked
// at. They are made again for whoever looks next. t is a program's task that
// stands still.
func forgetNames(ctx context.Context, t *kernel.Task) {
	ns := t.MountNamespace()
	if ns == nil {
		return
	}
	top := ns.Root(ctx)
	defer top.DecRef(ctx)
	at := vfs.PathOperation{Root: top, Start: top, Path: fspath.Parse("/proc")}
	proc, err := t.Kernel().VFS().GetDentryAt(ctx, auth.NewRootCredentials(t.UserNamespace()), &at, &vfs.GetDentryOptions{})
	if err != nil {
		return
	}
	defer proc.DecRef(ctx)
	d, ok := proc.Dentry().Impl().(*kernfs.Dentry)
	if !ok {
		return
	}
	fs := *(**kernfs.Filesystem)(unsafe.Add(unsafe.Pointer(d), dentryFilesystem))
	remembered := (*uint64)(unsafe.Add(unsafe.Pointer(fs), filesystemCached))
	lock := unsafe.Add(unsafe.Pointer(fs), filesystemLock)
	lockFilesystem(lock)
	for *remembered > 0 {
		evictCachedDentry(fs, ctx)
	}
	unlockFilesystem(lock)
	processDeferredDecRefs(fs, ctx)
	lockFilesystem(lock) // which whoever adds to this has for reading
	if released := (*[]refs.RefCounter)(unsafe.Add(unsafe.Pointer(fs), filesystemReleased)); len(*released) == 0 {
		*released = nil // its room, which would be saved too, still holds all of them
	}
	rebuildSettings(t.Kernel(), d, fs)
	unlockFilesystem(lock)
}

//go:linkname lockFilesystem gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs.(*filesystemRWMutex).Lock
func lockFilesystem(mu unsafe.Pointer)

//go:linkname unlockFilesystem gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs.(*filesystemRWMutex).Unlock
func unlockFilesystem(mu unsafe.Pointer)

//go:linkname evictCachedDentry gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs.(*Filesystem).evictCachedDentryLocked
func evictCachedDentry(fs *kernfs.Filesystem, ctx context.Context)

//go:linkname processDeferredDecRefs gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs.(*Filesystem).processDeferredDecRefs
func processDeferredDecRefs(fs *kernfs.Filesystem, ctx context.Context)

var (
	dentryFilesystem   = offset[*kernfs.Filesystem](reflect.TypeFor[kernfs.Dentry](), "fs")
	filesystemCached   = offset[uint64](reflect.TypeFor[kernfs.Filesystem](), "cachedDentriesLen")
	filesystemReleased = offset[[]refs.RefCounter](reflect.TypeFor[kernfs.Filesystem](), "deferredDecRefs")
	filesystemLock     = func() uintptr {
		f, ok := reflect.TypeFor[kernfs.Filesystem]().FieldByName("mu")
		if !ok || f.Type.Name() != "filesystemRWMutex" {
			panic("gVisor's file systems are not what they were")
		}
		return f.Offset
	}()
)
