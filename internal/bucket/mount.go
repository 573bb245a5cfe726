package bucket

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/bucket/bucketfs"
)

// device is the FUSE device.
const device = "/dev/fuse"

const fsType = "fuse.atoll-bucket"

// mount mounts a file system. The holder of the returned file serves it.
func mount(at string) (*os.File, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	dev := os.NewFile(uintptr(fd), device)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", fd, bucketfs.MaxRequest)
	if err := unix.Mount("atoll-bucket", at, fsType, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		dev.Close()
		return nil, fmt.Errorf("mount: %w", err)
	}
	return dev, nil
}

// mayMount reports whether this process has CAP_SYS_ADMIN, which root in a
// container often lacks.
func mayMount() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&head, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// mounts counts the mounts of this package at a path.
func mounts(at string) (int, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n := 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point options … - type source options
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if len(fields) > 4 && unescape(fields[4]) == at && strings.HasPrefix(after, fsType+" ") {
			n++
		}
	}
	return n, lines.Err()
}

// unescape decodes the kernel's escapes, such as \040.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// alive checks that the process of a mount responds. ENOTCONN means that it is
// gone.
func alive(at string) error {
	answer := make(chan error, 1)
	go func() {
		var info unix.Statfs_t
		answer <- unix.Statfs(at, &info) // not cached by the kernel
	}()
	late := time.NewTimer(aliveTimeout)
	defer late.Stop()
	select {
	case err := <-answer:
		return err
	case <-late.C:
		return syscall.ETIMEDOUT // the call returns when the mount is removed
	}
}

// detach unmounts n times: now if nothing is open, otherwise as soon as
// everything is closed.
func detach(at string, n int) error {
	for range n {
		err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) {
			err = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount: %w", err)
		}
	}
	return nil
}
