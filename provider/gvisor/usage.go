package gvisor

import (
	"context"
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
	u.CPU, u.Memory = cg.CPU(), cg.Memory()
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
	if unix.Stat(in.stateDir.path(fileUpper), &st) == nil {
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
	if used := in.rec.cgroup().Memory(); used >= 0 {
		return used
	}
	sum, err := proctree.Measure(in.rec.Kernel.PID, in.rec.Gofer.PID)
	if err != nil {
		return -1
	}
	return sum.Memory
}
