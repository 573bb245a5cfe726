package microvm

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/atoll-run/atoll/internal/guest"
)

// initrd returns an initial RAM file system: a cpio archive with the guest and
// the kernel modules, in the order of their names.
func initrd(exe []byte, drivers []module) []byte {
	a := &archive{made: map[string]bool{}}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/root"} {
		a.dir(dir)
	}
	a.file(guest.Path, 0o755, exe)
	a.dir(guest.ModulesDir)
	for i, m := range drivers {
		a.file(fmt.Sprintf("%s/%02d-%s.ko", guest.ModulesDir, i, m.name), 0o444, m.content)
	}
	a.add("TRAILER!!!", 0, nil)
	return a.b.Bytes()
}

// archive is a cpio archive in the format "newc".
type archive struct {
	b     bytes.Buffer
	inode int
	made  map[string]bool
}

func (a *archive) dir(name string) {
	if name == "/" || a.made[name] {
		return
	}
	a.dir(path.Dir(name))
	a.made[name] = true
	a.add(strings.TrimPrefix(name, "/"), 0o40755, nil)
}

func (a *archive) file(name string, mode int, content []byte) {
	a.dir(path.Dir(name))
	a.add(strings.TrimPrefix(name, "/"), 0o100000|mode, content)
}

func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	fmt.Fprintf(&a.b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.b.WriteString(name + "\x00")
	a.pad()
	a.b.Write(content)
	a.pad()
}

func (a *archive) pad() { a.b.Write(make([]byte, -a.b.Len()&3)) }
