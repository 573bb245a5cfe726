// Package early unmounts /proc for a starting kernel, in a process that was
// started for this, while the program is still being initialised.
//
// gVisor gives up the capability to unmount before it is done with /proc, so it
// starts this program again to unmount it later. Without this package the helper
// would initialise a whole kernel for that, while the real one starts. Go
// initialises packages in the order of their import paths, each as soon as its
// imports are ready. This one imports little, so it comes before most.
package early

import (
	"os"
	"slices"
	"syscall"
)

// unmounter is the command line with which gVisor starts the helper. Any other
// is left to gVisor's own command.
var unmounter = []string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}

func init() {
	if slices.Equal(os.Args, unmounter) {
		os.Exit(unmount(3))
	}
}

// unmount detaches /proc when a byte arrives on the descriptor. It returns the
// exit status.
func unmount(fd int) int {
	var b [1]byte
	for {
		n, err := syscall.Read(fd, b[:])
		if err == syscall.EINTR {
			continue
		}
		if n != 1 {
			return 1 // the kernel died
		}
		if syscall.Unmount("/proc", syscall.MNT_DETACH) != nil {
			return 1
		}
		return 0
	}
}
