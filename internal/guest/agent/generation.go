package agent

import (
	"crypto/rand"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// The generation of a sandbox is a UUID that changes with every fork and every
// restore of memory, as the generation id of a virtual machine does. Programs
// that keep random numbers, keys or unique names in memory compare it.
const (
	generationDir = "/dev/atoll"
	bootID        = "/proc/sys/kernel/random/boot_id"
	hooksDir      = "/etc/atoll/restored.d"
)

// generation writes the files that tell programs of a restore.
type generation struct {
	id     string
	file   *os.File // generationDir/generation
	bootID *os.File // covers bootID; nil if that is not possible
}

// establish makes the files. It needs the capability to mount. Without the files
// the sandbox works, so failures do not matter.
func (g *generation) establish() {
	if unix.Mkdir(generationDir, 0o755) != nil {
		return
	}
	g.file = newIDFile("generation")
	if file := newIDFile("boot_id"); file != nil {
		if unix.Mount(file.Name(), bootID, "", unix.MS_BIND, "") == nil {
			g.bootID = file
		}
	}
	g.renew()
}

func newIDFile(name string) *os.File {
	f, err := os.OpenFile(path.Join(generationDir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil
	}
	return f
}

// renew writes new ids into the files, which stay the same: a program may keep
// them open or watch them.
func (g *generation) renew() {
	g.id = newUUID()
	for f, id := range map[*os.File]string{g.file: g.id, g.bootID: newUUID()} {
		if f != nil {
			_, _ = f.WriteAt([]byte(id+"\n"), 0)
		}
	}
}

// newUUID returns a random UUID, version 4.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// hooks runs the programs in hooksDir, in the order of their names. Its output
// and failures are in generationDir/restored.log.
const hooks = `for f in ` + hooksDir + `/*; do
	[ -f "$f" ] && [ -x "$f" ] || continue
	"$f" </dev/null || echo "$f: exit code $?"
done >` + generationDir + `/restored.log 2>&1`

// hookTime is how long all hooks together may take.
const hookTime = 10 * time.Second

// runHooks runs the hooks after a restore, as root, before any new command. Hooks
// that take too long are killed.
func (a *agent) runHooks() {
	if found, err := os.ReadDir(hooksDir); err != nil || len(found) == 0 {
		return
	}
	p, failed := a.launch(&sandbox.Command{
		Shell: hooks, User: "0", Dir: "/", Timeout: hookTime,
		Env: map[string]string{"ATOLL_GENERATION": a.generation.id},
	})
	if failed != nil {
		return
	}
	if p.pidfd >= 0 && !a.ends(p, 0) {
		a.outlive(p)
	}
	<-p.done
	p.io.close()
}
