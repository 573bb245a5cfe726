package gvisor

import (
	"context"
	"fmt"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/sandbox"
)

// Resize changes limits. See driver.Resizer. The size of the writable layer is
// fixed when the kernel mounts it, so it cannot be changed.
func (in *Instance) Resize(ctx context.Context, want sandbox.Resources) error {
	if err := in.alive(ctx); err != nil {
		return err
	}
	cg := in.rec.cgroup()
	err := in.update(func(r *record) error {
		if err := resizable(cg, want); err != nil {
			return err
		}
		undo, err := cg.Change(cgroup.Limits{CPUs: want.CPUs, Memory: want.Memory, PIDs: hostPIDs(want.PIDs)})
		if want.Memory != 0 {
			in.memory.full.Store(false)
		}
		if err == nil {
			err = in.call(ctx, func(conn *urpc.Client) error { return boundInside(conn, r.group(), want) })
		}
		if err != nil {
			undo()
			return err
		}
		r.Spec.Resources = merge(r.Spec.Resources, want)
		return nil
	})
	if err == nil && want.Memory != 0 {
		_, err = cg.Change(cgroup.Limits{Memory: want.Memory}) // see settle
		in.memory.watchLimit()
	}
	if err == nil {
		in.showLimits(ctx)
	}
	return err
}

// showLimits makes programs inside see the limits. They see the former ones if the
// guest is of an older version, or if this process has not reached it, because the
// sandbox was paused when it was attached.
func (in *Instance) showLimits(ctx context.Context) {
	if in.retry(ctx) != nil { // it did not answer when its memory was full
		return
	}
	in.mu.Lock()
	client := in.client
	in.mu.Unlock()
	if client != nil {
		_ = client.ShowLimits(ctx)
	}
}

// hostPIDs is hostThreads for a change, where zero means unchanged.
func hostPIDs(pids int64) int64 {
	if pids > 0 {
		return hostThreads(pids)
	}
	return pids
}

func merge(r, change sandbox.Resources) sandbox.Resources {
	if change.CPUs != 0 {
		r.CPUs = change.CPUs
	}
	if change.Memory != 0 {
		r.Memory = change.Memory
	}
	if change.PIDs != 0 {
		r.PIDs = change.PIDs
	}
	return r
}

// resizable rejects limits that cannot be set, before any change.
func resizable(cg *cgroup.Group, want sandbox.Resources) error {
	refuse := func(what, why string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "resize", Subject: what, Message: why}
	}
	switch {
	case want.Disk != 0:
		return refuse("disk", "the size of the writable layer is fixed when a sandbox is made")
	case want.CPUs != 0 && !cg.Has(cgroup.CPU):
		return refuse("cpus", "the sandbox has no control group for processors")
	case want.Memory != 0 && !cg.Has(cgroup.Memory):
		return refuse("memory", "the sandbox has no control group for memory")
	}
	if used := cg.Memory(); want.Memory > 0 && used > want.Memory {
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "resize", Subject: "memory",
			Message: fmt.Sprintf("the sandbox uses %d bytes now, more than the new limit", used),
			Hint:    "end programs inside first, or choose a higher limit",
		}
	}
	return nil
}
