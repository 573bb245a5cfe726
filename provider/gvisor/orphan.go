package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// orphan is a running kernel whose state directory was deleted by hand. Its
// sandbox can no longer be reached or listed.
type orphan struct {
	id      sandbox.ID
	process processRef
}

// orphans finds the kernels whose sandbox was in the directory sandboxes and is no
// longer there. A kernel holds a descriptor of its sandbox's upper layer; /proc
// shows the file's former path and that it was deleted. The arguments of a
// process are no proof.
func orphans(sandboxes string) (found []orphan) {
	sandboxes, err := filepath.Abs(sandboxes)
	if err == nil {
		sandboxes, err = filepath.EvalSymlinks(sandboxes)
	}
	if err != nil {
		return nil
	}
	processes, _ := os.ReadDir("/proc") // processes that are not visible cannot be ended
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if !bytes.HasPrefix(args, []byte(argvKernel+"\x00")) {
			continue
		}
		ref := refTo(pid)
		id, lost := lostUpper(pid, sandboxes)
		if lost && ref.alive() {
			found = append(found, orphan{id, ref})
		}
	}
	return found
}

// lostUpper returns the sandbox whose upper layer a process has open although
// its whole directory was deleted, if the process has none open that still
// exists. It ignores processes that it may not inspect.
func lostUpper(pid int, sandboxes string) (id sandbox.ID, lost bool) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		target, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		file, removed := strings.CutSuffix(target, " (deleted)")
		name := filepath.Dir(file)
		if filepath.Base(file) != fileUpper || filepath.Dir(name) != sandboxes {
			continue
		}
		if _, err := os.Lstat(name); !removed || !errors.Is(err, fs.ErrNotExist) {
			return "", false
		}
		id, lost = sandbox.ID(filepath.Base(name)), true
	}
	return id, lost
}

// endOrphans ends orphaned kernels and removes their control groups.
func (p *Provider) endOrphans() {
	for _, o := range orphans(p.sandboxes) {
		g := p.groups().Of(o.process.PID)
		o.process.kill()
		_ = g.Remove() // an empty group is harmless
	}
}

// probeOrphans reports orphaned kernels.
func probeOrphans(sandboxes string) []driver.Finding {
	lost := orphans(sandboxes)
	if len(lost) == 0 {
		return nil
	}
	var names, pids []string
	for _, o := range lost {
		names, pids = append(names, string(o.id)), append(pids, strconv.Itoa(o.process.PID))
	}
	return []driver.Finding{{
		Severity: driver.Warning, Subject: "orphans",
		Message: "the state files of running sandboxes were removed by hand: " + strings.Join(names, ", "),
		Fix:     "atoll ls, or the next start of the daemon, ends them; or: kill -9 " + strings.Join(pids, " "),
	}}
}
