package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// markerEnv is a variable in the environment of every process of a sandbox. It
// identifies the processes of a killed guest. A running guest finds its
// processes by their ancestry, which they cannot change.
const markerEnv = "ATOLL_SANDBOX_ID"

// killMarked kills the remaining processes of a killed guest: those with its
// marker, and those whose working directory is in its directory.
func killMarked(id sandbox.ID, dir string) {
	for round := range 50 {
		pids := marked(id, dir)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Duration(round) * time.Millisecond)
	}
}

func marked(id sandbox.ID, dir string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	mark := []byte("\x00" + markerEnv + "=" + string(id) + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		has := bytes.Contains(append(append([]byte{0}, env...), 0), mark)
		if !has {
			cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
			has = err == nil && strings.HasPrefix(cwd, dir+"/")
		}
		if has && !isZombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isZombie(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, rest, _ := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte{' '})
	return len(rest) > 0 && (rest[0] == 'Z' || rest[0] == 'X')
}
