package kernel

import (
	stdcontext "context"
	"reflect"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// settings is /proc/sys as it is saved: not at all, but made anew by the kernel
// that is restored. It has a hundred files and directories of some 30 objects
// each, and all that is in them is what a kernel says of itself. While anything
// of it is open, it is saved like the rest.
type settings struct {
	*kernfs.StaticDirectory
	k    *kernel.Kernel
	fs   vfs.FilesystemImpl // of /proc
	boot string             // an identifier that stays what it is
}

// rebuildSettings has /proc/sys, which is below root, made anew whenever this
// kernel is restored. Nothing runs.
func rebuildSettings(k *kernel.Kernel, root *kernfs.Dentry, fs *kernfs.Filesystem) {
	top := reflect.ValueOf(root.Inode())
	if top.Kind() != reflect.Pointer {
		return
	}
	children, ok := top.Elem().FieldByName("OrderedChildren").Addr().Interface().(*kernfs.OrderedChildren)
	if !ok {
		return
	}
	sys := child(children, "sys")
	if sys == nil {
		return
	}
	// What somebody has open knows the directory by another name.
	if d, ok := (*sys).(*kernfs.StaticDirectory); ok && d.ReadRefs() == 1 {
		*sys = &settings{StaticDirectory: d, k: k, fs: fs.VFSFilesystem().Impl()}
	}
}

// asMade reports whether nobody has anything of it open, and nobody has changed
// what nothing else knows.
func (s *settings) asMade() bool {
	forward := s.find("net", "ipv4", "ip_forward")
	return s.ReadRefs() == 1 && forward != nil && !reflect.ValueOf(*forward).Elem().FieldByName("enabled").Bool()
}

// make makes it anew.
func (s *settings) make() {
	clock := new(ktime.SyntheticClock) // the kernel's own does not go yet
	clock.Store(ktime.FromNanoseconds(time.Now().UnixNano()))
	ctx := context.WithValue(context.Background(), ktime.CtxRealtimeClock, ktime.Clock(clock))
	root := auth.NewRootCredentials(s.k.RootUserNamespace())
	s.StaticDirectory = newSysDir(reflect.ValueOf(s.fs).UnsafePointer(), ctx, root, s.k).(*kernfs.StaticDirectory)
	if boot := s.bootID(); boot != nil && s.boot != "" {
		*boot = s.boot
	}
}

//go:linkname newSysDir gvisor.dev/gvisor/pkg/sentry/fsimpl/proc.(*filesystem).newSysDir
func newSysDir(fs unsafe.Pointer, ctx context.Context, root *auth.Credentials, k *kernel.Kernel) kernfs.Inode

// bootID is the content of kernel/random/boot_id, which is drawn at random.
func (s *settings) bootID() *string {
	file := s.find("kernel", "random", "boot_id")
	if file == nil {
		return nil
	}
	return reflect.ValueOf(*file).Elem().FieldByName("Data").Addr().Interface().(*string)
}

// find finds something below.
func (s *settings) find(path ...string) (found *kernfs.Inode) {
	dir := s.StaticDirectory
	for _, name := range path {
		if dir == nil {
			return nil
		}
		if found = child(&dir.OrderedChildren, name); found == nil {
			return nil
		}
		dir, _ = (*found).(*kernfs.StaticDirectory)
	}
	return found
}

// child is where a directory keeps what it has of this name, or nil.
func child(of *kernfs.OrderedChildren, name string) *kernfs.Inode {
	slot := reflect.ValueOf(of).Elem().FieldByName("set").MapIndex(reflect.ValueOf(name))
	if !slot.IsValid() {
		return nil
	}
	return (*kernfs.Inode)(slot.Elem().FieldByName("inode").Addr().UnsafePointer())
}

// StateTypeName implements state.Type.
func (*settings) StateTypeName() string { return "provider/gvisor/kernel.settings" }

// StateFields implements state.Type.
func (*settings) StateFields() []string { return []string{"StaticDirectory", "k", "fs", "boot"} }

// StateSave implements state.SaverLoader.
func (s *settings) StateSave(to state.Sink) {
	dir, boot := s.StaticDirectory, ""
	if s.asMade() {
		if id := s.bootID(); id != nil {
			boot = *id
		}
		dir = nil
	}
	to.SaveValue(0, dir)
	to.Save(1, &s.k)
	to.Save(2, &s.fs)
	to.SaveValue(3, boot)
}

// StateLoad implements state.SaverLoader.
func (s *settings) StateLoad(_ stdcontext.Context, from state.Source) {
	from.Load(0, &s.StaticDirectory)
	from.Load(1, &s.k)
	from.Load(2, &s.fs)
	from.Load(3, &s.boot)
	from.AfterLoad(func() { // all that was saved is there then, if not ready
		if s.StaticDirectory == nil {
			s.make()
		}
	})
}
