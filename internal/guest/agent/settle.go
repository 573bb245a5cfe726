package agent

import (
	"path"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// moveIn finishes the setup that the kernel began and then permanently drops
// the capability for it, for all processes in the sandbox. No command has run
// yet, and none may mount anything or lift the sandbox's limits. moveIn runs
// first in this process: dropping a capability costs several system calls and
// two context switches per thread.
func (a *agent) moveIn() error {
	uncoverTmp()
	hideProgram()
	a.generation.establish()
	if err := a.bounds.establish(); err != nil {
		return err
	}
	return dropAdmin()
}

// uncoverTmp unmounts the memory file system that gVisor mounts on an empty
// /tmp. Files there should count as disk, not as memory, and belong to the
// sandbox's files like any others.
func uncoverTmp() {
	var st unix.Statfs_t
	if unix.Statfs("/tmp", &st) == nil && st.Type == unix.TMPFS_MAGIC {
		_ = unix.Unmount("/tmp", 0)
	}
	if unix.Mkdir("/tmp", 0o1777) == nil {
		_ = unix.Chmod("/tmp", 0o1777)
	}
}

// hideProgram unmounts the image that this program was executed from. Commands
// do not need it.
func hideProgram() {
	dir := path.Dir(wire.Path)
	if unix.Unmount(dir, unix.MNT_DETACH) == nil {
		_ = unix.Rmdir(dir)
	}
}

// dropAdmin removes CAP_SYS_ADMIN from all capability sets of every thread, so
// that an exec cannot restore it.
func dropAdmin() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0); errno != 0 {
		return errno
	}
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(header, &data[0]); err != nil {
		return err
	}
	const bit = uint32(1) << unix.CAP_SYS_ADMIN
	data[0].Effective &^= bit
	data[0].Permitted &^= bit
	data[0].Inheritable &^= bit
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
