package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/provider/internal/proctree"
	"github.com/atoll-run/atoll/sandbox"
)

// countTime limits counting the processes in the kernel. A paused or stopped
// kernel cannot answer; Usage then returns the other figures.
const countTime = time.Second

// Usage reports the sandbox's resource use. See driver.Meter.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if err := in.alive(ctx); err != nil {
		return sandbox.Usage{}, err
	}
	u := sandbox.Usage{CPU: -1, Memory: -1, Disk: -1, PIDs: -1, Sampled: time.Now()}
	cg := in.rec.cgroup()
	u.CPU, u.Memory = cg.cpu(), cg.memory()
	if u.CPU < 0 || u.Memory < 0 {
		// Without control groups, sum up the processes.
		if sum, err := proctree.Measure(in.rec.Kernel.PID, in.rec.Gofer.PID); err == nil {
			if u.CPU < 0 {
				u.CPU = sum.CPU
			}
			if u.Memory < 0 {
				u.Memory = sum.Memory
			}
		}
	}
	var st unix.Stat_t
	if unix.Stat(in.box.path(fileUpper), &st) == nil {
		u.Disk = st.Blocks * 512
	}
	short, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	_ = in.call(short, func(conn *urpc.Client) (err error) {
		if n, err := countProcesses(conn, in.rec.group()); err == nil {
			u.PIDs = n
		}
		return nil
	})
	if err := in.alive(ctx); err != nil {
		return sandbox.Usage{}, err
	}
	return u, nil
}

// memoryUsed returns the sandbox's memory use in bytes, negative if unknown.
func (in *Instance) memoryUsed() int64 {
	if used := in.rec.cgroup().memory(); used >= 0 {
		return used
	}
	sum, err := proctree.Measure(in.rec.Kernel.PID, in.rec.Gofer.PID)
	if err != nil {
		return -1
	}
	return sum.Memory
}

// cpu returns the processor time that the group has used, negative if unknown.
func (g *cgroup) cpu() time.Duration {
	switch {
	case g == nil:
		return -1
	case g.version == 2:
		if n := g.statistic(ctlCPU, "cpu.stat", "usage_usec"); n >= 0 {
			return time.Duration(n) * time.Microsecond
		}
		return -1
	}
	return time.Duration(g.figure(ctlAccount, "cpuacct.usage"))
}

// memory returns the group's memory use in bytes, without the page cache that
// the host can reclaim. It is negative if unknown.
func (g *cgroup) memory() int64 {
	if g == nil {
		return -1
	}
	idle := "total_inactive_file"
	if g.version == 2 {
		idle = "inactive_file"
	}
	n := g.charged()
	if n < 0 {
		return -1
	}
	return max(0, n-max(0, g.statistic(ctlMemory, "memory.stat", idle)))
}

// figure reads a file that contains one number.
func (g *cgroup) figure(ctl, file string) int64 {
	if !g.has(ctl) {
		return -1
	}
	b, err := os.ReadFile(filepath.Join(g.dirs[ctl], file))
	if err != nil {
		return -1
	}
	return number(string(b))
}

// statistic reads one line of a file of names and numbers.
func (g *cgroup) statistic(ctl, file, name string) int64 {
	if !g.has(ctl) {
		return -1
	}
	b, err := os.ReadFile(filepath.Join(g.dirs[ctl], file))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, name+" "); ok {
			return number(s)
		}
	}
	return -1
}

func number(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
