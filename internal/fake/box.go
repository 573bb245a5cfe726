package fake

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/fake/internal/coreutils"
	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
	"github.com/atoll-run/atoll/internal/fake/internal/shell"
	"github.com/atoll-run/atoll/sandbox"
)

// box is a sandbox; handles of any number of providers refer to it.
type box struct {
	spec    sandbox.Spec
	created time.Time
	kernel  *kernel.Kernel
	files   *memfs.FS
	user    memfs.Cred
	life    context.Context // ends with the sandbox
	die     context.CancelFunc
	stopped chan struct{} // closed when nothing of it runs any more

	mu       sync.Mutex
	exit     *sandbox.Exit // set when life ends
	lifetime *time.Timer
	commands []*command // oldest first
	lastID   int
}

// The tree that every sandbox begins with.
var directories = map[string]uint32{
	"/bin": 0o755, "/dev": 0o755, "/etc": 0o755, "/home": 0o755, "/root": 0o700, "/tmp": 0o1777, "/usr": 0o755,
	"/usr/bin": 0o755, "/var": 0o755, "/var/tmp": 0o1777,
}

const passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"

var programs = sync.OnceValue(func() map[string]kernel.Program {
	all := coreutils.Programs()
	all["sh"] = shell.Main(coreutils.Builtins())
	return all
})

func newBox(spec *sandbox.Spec) (*box, error) {
	b := &box{spec: *spec, created: time.Now(), files: memfs.New(), stopped: make(chan struct{})}
	b.spec.Env, b.spec.Labels = maps.Clone(spec.Env), maps.Clone(spec.Labels)
	b.kernel = kernel.New(b.files, programs())
	b.kernel.Hostname = spec.Hostname
	if b.kernel.Hostname == "" {
		b.kernel.Hostname = spec.Name
	}
	b.life, b.die = context.WithCancel(context.Background())
	if err := b.furnish(); err != nil {
		return nil, fail(sandbox.CodeInternal, "create", string(spec.ID), err.Error())
	}
	var ok bool
	if b.user, ok = b.lookUser(spec.User); !ok {
		return nil, fail(sandbox.CodeInvalid, "create", "user", "no such user")
	}
	if spec.Workdir != "" {
		if err := b.mkdirAll(path.Clean(spec.Workdir), 0o755, b.user); err != nil {
			return nil, b.fileError("create", spec.Workdir, err)
		}
	}
	return b, nil
}

// furnish makes the initial tree.
func (b *box) furnish() error {
	root := memfs.Cred{}
	for _, dir := range slices.Sorted(maps.Keys(directories)) {
		if err := b.files.Mkdir(root, dir, directories[dir]); err != nil {
			return err
		}
	}
	for _, name := range []string{"null", "zero", "tty"} {
		if err := b.files.Mkdev(root, "/dev/"+name, 0o666, name); err != nil {
			return err
		}
	}
	for name := range programs() {
		if err := b.kernel.Install("/bin/" + name); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"/etc/passwd": passwd, "/etc/hostname": b.kernel.Hostname + "\n"} {
		o, err := b.files.Open(root, name, os.O_WRONLY|os.O_CREATE, 0o644)
		if err == nil {
			_, err = o.File.Write([]byte(text))
		}
		if err != nil {
			return err
		}
	}
	return b.files.Symlink(root, "../bin/env", "/usr/bin/env")
}

// live begins the sandbox's lifetime.
func (b *box) live() {
	b.limit(b.spec.Resources.PIDs)
	if d := b.spec.Lifetime.Timeout; d > 0 {
		b.endAt(time.Now().Add(d))
	}
}

// end ends the sandbox, the first time it is called, and returns when nothing
// of it runs any more.
func (b *box) end(exit sandbox.Exit) {
	b.mu.Lock()
	first := b.exit == nil
	if first {
		b.exit = &exit
		if b.lifetime != nil {
			b.lifetime.Stop()
		}
	}
	b.mu.Unlock()
	if first {
		b.kernel.Stop()
		b.die()
		close(b.stopped)
	}
	<-b.stopped
}

// ended returns why the sandbox has ended, nil while it lives.
func (b *box) ended() *sandbox.Exit {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exit == nil {
		return nil
	}
	exit := *b.exit
	return &exit
}

// gone returns an error if the sandbox has ended.
func (b *box) gone(op string) error {
	if b.ended() == nil {
		return nil
	}
	return fail(sandbox.CodeGone, op, string(b.spec.ID), "the sandbox has ended")
}

func (b *box) found() driver.Found {
	f := driver.Found{ID: b.spec.ID, State: sandbox.Running, Created: b.created, Labels: maps.Clone(b.spec.Labels)}
	if b.kernel.Frozen() != nil {
		f.State = sandbox.Paused
	}
	if f.Exit = b.ended(); f.Exit != nil {
		f.State = sandbox.Stopped
	}
	return f
}

// lookUser finds "name", "uid", "name:group" or "uid:gid" in the sandbox's
// /etc/passwd. The fake has no groups by name.
func (b *box) lookUser(user string) (memfs.Cred, bool) {
	name, group, grouped := strings.Cut(user, ":")
	var c memfs.Cred
	if name == "" {
		return c, true
	}
	uid, err := strconv.ParseUint(name, 10, 32)
	known := false
	for line := range strings.SplitSeq(b.text("/etc/passwd"), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 4 || (f[0] != name && (err != nil || f[2] != name)) {
			continue
		}
		u, uerr := strconv.ParseUint(f[2], 10, 32)
		g, gerr := strconv.ParseUint(f[3], 10, 32)
		if uerr == nil && gerr == nil {
			c, known = memfs.Cred{UID: uint32(u), GID: uint32(g)}, true
			break
		}
	}
	if !known {
		if err != nil {
			return c, false
		}
		c = memfs.Cred{UID: uint32(uid), GID: uint32(uid)}
	}
	if grouped {
		gid, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			return c, false
		}
		c.GID = uint32(gid)
	}
	return c, true
}

// text returns the beginning of a file, empty if it cannot be read.
func (b *box) text(name string) string {
	o, err := b.files.Open(memfs.Cred{}, name, os.O_RDONLY, 0)
	if err != nil || o.File == nil {
		return ""
	}
	buf := make([]byte, 64<<10)
	n, _ := o.File.Read(buf) // An empty file is an empty text.
	return string(buf[:n])
}

// environ returns a command's environment.
func (b *box) environ(cmd *sandbox.Command, c memfs.Cred) []string {
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/", "HOSTNAME": b.kernel.Hostname}
	if c.UID == 0 {
		env["HOME"] = "/root"
	}
	if cmd.TTY != nil {
		env["TERM"] = "dumb"
	}
	maps.Copy(env, b.spec.Env)
	maps.Copy(env, cmd.Env)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, fmt.Sprintf("%s=%s", name, env[name]))
	}
	return list
}
