package kernel

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"unsafe"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/refs"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/erofs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sync"
)

// An image may have several layers, each a file that other images share. gVisor
// mounts one file as the lower layer of the root. Here, the root gets the others
// as well: its file system is of gVisor's own types and is saved as usual.
//
// gVisor gives out no pointer to its file systems before programs run. But it
// can list all objects that are counted, to find those that are never freed.
// While the kernel starts, it does, and one of them knows all file systems.

// LayersEnv is the variable that holds the numbers of open descriptors: the
// layers below the one that gVisor mounts, from the upper one down, separated by
// commas.
const LayersEnv = "ATOLL_LAYERS"

// maxLayers is more layers than any image has.
const maxLayers = 64

// Layered returns nil if kernels can mount images of several layers.
func Layered() error {
	_, err := internals()
	return err
}

// liveObjects are the objects that gVisor counts, while it lists them.
//
//go:linkname liveObjects gvisor.dev/gvisor/pkg/refs.liveObjects
var liveObjects map[refs.CheckedObject]struct{}

//go:linkname liveObjectsMu gvisor.dev/gvisor/pkg/refs.liveObjectsMu
var liveObjectsMu sync.Mutex

// layers are the layers of this kernel's root below the upper one.
type layers struct {
	fds   []int
	done  bool      // they are part of the root
	level log.Level // at which gVisor logs otherwise, while a kernel is restored
}

// lower are this kernel's. Nil says that nothing is a layer.
var lower *layers

// missing reports whether the root lacks the layers that it should have.
func (l *layers) missing() bool { return l != nil && !l.done }

// lowerLayers returns the layers listed in [LayersEnv].
func lowerLayers() *layers {
	l := &layers{}
	list := os.Getenv(LayersEnv)
	if list == "" {
		l.done = true
		return l
	}
	for part := range strings.SplitSeq(list, ",") {
		fd, err := strconv.Atoi(part)
		if err != nil || len(l.fds) == maxLayers {
			panic(fmt.Sprintf("%s=%q", LayersEnv, list))
		}
		l.fds = append(l.fds, fd)
	}
	return l
}

// watch has gVisor list its objects from now on.
func (l *layers) watch() {
	if !l.done {
		refs.SetLeakMode(refs.LeaksLogWarning)
	}
}

// begin makes the next overlay the one that gets the layers. Nothing is mounted
// yet. Without the layers, the sandbox would miss most of its files, so it must
// not start.
func (l *layers) begin() {
	if l.done {
		return
	}
	refs.SetLeakMode(refs.NoLeakChecking)
	fs := anyFilesystem()
	if fs == nil {
		panic("no file system is known")
	}
	t := overlayType(fs.VirtualFilesystem())
	*t = &layeredRoot{layers: l, usual: *t, place: t}
}

// anyFilesystem returns one of the file systems of the kernel.
func anyFilesystem() *vfs.Filesystem {
	liveObjectsMu.Lock()
	defer liveObjectsMu.Unlock()
	defer clear(liveObjects)
	for o := range liveObjects {
		if r, ok := o.(*vfs.FilesystemRefs); ok {
			return (*vfs.Filesystem)(unsafe.Pointer(r)) // its first field
		}
	}
	return nil
}

// overlayType returns where the kernel stores the type of overlay file systems.
func overlayType(of *vfs.VirtualFilesystem) *vfs.FilesystemType {
	types := field(reflect.ValueOf(of).Elem(), "fsTypes")
	return field(types.MapIndex(reflect.ValueOf(overlay.Name)).Elem(), "fsType").Addr().Interface().(*vfs.FilesystemType)
}

// fileSystems checks what [layers.begin] and [layers.restore] need.
func (c *checker) fileSystems() {
	if f := c.field(reflect.TypeFor[vfs.Filesystem](), "FilesystemRefs"); f.Offset != 0 {
		c.fail("vfs.Filesystem does not begin with its references")
	}
	types := c.field(reflect.TypeFor[vfs.VirtualFilesystem](), "fsTypes").Type
	if c.err != nil || types.Kind() != reflect.Map || types.Elem().Kind() != reflect.Pointer {
		c.fail("vfs.VirtualFilesystem.fsTypes is not a map of pointers")
		return
	}
	offset[vfs.FilesystemType](c, types.Elem().Elem(), "fsType")
}

// layeredRoot creates one overlay with additional lower layers. It is
// uninstalled before anything is saved.
type layeredRoot struct {
	overlay.FilesystemType

	layers *layers
	usual  vfs.FilesystemType
	place  *vfs.FilesystemType
}

// GetFilesystem implements vfs.FilesystemType.
func (r *layeredRoot) GetFilesystem(ctx context.Context, on *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	*r.place = r.usual
	root, ok := opts.InternalData.(overlay.FilesystemOptions)
	if !ok {
		return nil, nil, fmt.Errorf("the root has options of type %T", opts.InternalData)
	}
	for i, fd := range r.layers.fds {
		mnt, err := on.MountDisconnected(ctx, creds, "", erofs.Name, &vfs.MountOptions{ReadOnly: true, GetFilesystemOptions: vfs.GetFilesystemOptions{
			InternalMount: true, Data: "ifd=" + strconv.Itoa(fd), InternalData: erofs.InternalFilesystemOptions{UniqueID: layerID(i)},
		}})
		if err != nil {
			return nil, nil, fmt.Errorf("mounting layer %d below the upper one: %w", i+1, err)
		}
		defer mnt.DecRef(ctx)
		root.LowerRoots = append(root.LowerRoots, vfs.MakeVirtualDentry(mnt, mnt.Root()))
	}
	opts.InternalData = root
	fs, at, err := r.usual.GetFilesystem(ctx, on, creds, source, opts)
	r.layers.done = err == nil
	return fs, at, err
}

// layerID names a layer in the state of a kernel.
func layerID(i int) checkpoint.ResourceID {
	return checkpoint.ResourceID{ContainerName: "atoll", Path: fmt.Sprintf("layer:%d", i+1)}
}

// awaitMounts makes gVisor log the mounts of a kernel before it is restored.
func (l *layers) awaitMounts() {
	if !l.done {
		refs.SetLeakMode(refs.NoLeakChecking)
		l.level = log.Log().Level
		log.SetLevel(log.Debug)
	}
}

// restore adds the layers to the files that a restored kernel finds its file
// systems in. Without them it would not start.
func (l *layers) restore(args []any) {
	if l.done || len(args) == 0 {
		return
	}
	log.SetLevel(l.level)
	of := reflect.ValueOf(args[0])
	if of.Kind() != reflect.Pointer {
		return
	}
	files, ok := field(of.Elem(), "fdmap").Interface().(map[checkpoint.ResourceID]int)
	if !ok {
		return
	}
	for i, fd := range l.fds {
		files[layerID(i)] = fd
	}
	l.done = true
}
