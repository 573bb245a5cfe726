// Package early is a helper process of a starting kernel, if that is what this
// process was started as, while the program is still being initialised.
//
// gVisor gives up the power to unmount before it is done with /proc, so that
// another process has to unmount it: this binary again, which would initialise
// a whole kernel for that, at the time when the real one starts. Packages are
// initialised in the order of their import paths as soon as what they import
// is ready; this one imports little and so comes before most. A program
// imports it for its effect.
package early

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"unsafe"
)

// unmounter is the command line with which gVisor starts the helper. Another
// one is left to gVisor's own command.
var unmounter = []string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}

func init() {
	if slices.Equal(os.Args, unmounter) {
		become(program)
		os.Exit(unmount(3))
	}
}

// unmount detaches /proc when it is told to by a byte on the descriptor. It
// returns the exit status.
func unmount(fd int) int {
	var b [1]byte
	for {
		n, err := syscall.Read(fd, b[:])
		if err == syscall.EINTR {
			continue
		}
		if n != 1 {
			return 1 // the kernel died, or does not want it
		}
		if syscall.Unmount("/proc", syscall.MNT_DETACH) != nil {
			return 1
		}
		return 0
	}
}

// become makes this process a program of a few bytes, and returns if it cannot.
// A kernel that is to run programs waits until its helper has ended, and to end a
// process of Go, with its threads and its memory, takes milliseconds.
func become(program []byte) {
	if program == nil {
		return
	}
	name := [...]byte{'u', 'm', 'o', 'u', 'n', 't', 0}
	fd, _, errno := syscall.RawSyscall(memfdCreate, uintptr(unsafe.Pointer(&name)), closeOnExec, 0)
	if errno != 0 {
		return
	}
	if n, err := syscall.Write(int(fd), program); err == nil && n == len(program) {
		_ = syscall.Exec("/proc/self/fd/"+strconv.Itoa(int(fd)), os.Args, nil)
	}
}
