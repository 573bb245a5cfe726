package term

import (
	"os"

	"golang.org/x/sys/unix"
)

// IsNull reports whether our input is nothing, as in the background of a shell
// or of a service manager.
func IsNull(in any) bool {
	f, ok := in.(*os.File)
	if !ok {
		return in == nil
	}
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return err != nil || st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}
