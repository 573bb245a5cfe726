package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/urpc"

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
		undo, err := cg.change(limits{cpus: want.CPUs, memory: want.Memory, pids: hostPIDs(want.PIDs)})
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
		_, err = cg.change(limits{memory: want.Memory}) // see settle
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
func resizable(cg *cgroup, want sandbox.Resources) error {
	refuse := func(what, why string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "resize", Subject: what, Message: why}
	}
	switch {
	case want.Disk != 0:
		return refuse("disk", "the size of the writable layer is fixed when a sandbox is made")
	case want.CPUs != 0 && !cg.has(ctlCPU):
		return refuse("cpus", "the sandbox has no control group for processors")
	case want.Memory != 0 && !cg.has(ctlMemory):
		return refuse("memory", "the sandbox has no control group for memory")
	}
	if used := cg.memory(); want.Memory > 0 && used > want.Memory {
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "resize", Subject: "memory",
			Message: fmt.Sprintf("the sandbox uses %d bytes now, more than the new limit", used),
			Hint:    "end programs inside first, or choose a higher limit",
		}
	}
	return nil
}

func (g *cgroup) has(ctl string) bool { return g != nil && g.dirs[ctl] != "" }

// change sets limits of a group in use; negative values remove them. On an
// error some may have changed: undo, which is never nil, restores them.
func (g *cgroup) change(l limits) (undo func(), err error) {
	var done []func()
	undo = func() {
		for i := len(done) - 1; i >= 0; i-- {
			done[i]()
		}
	}
	if g == nil {
		return undo, nil
	}
	for _, s := range g.settings(l) {
		dir, ok := g.dirs[s.ctl]
		if !ok {
			continue
		}
		file := filepath.Join(dir, s.file)
		old, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(s.value), 0)
		}
		switch {
		case err == nil:
			done = append(done, func() { _ = os.WriteFile(file, []byte(strings.TrimSpace(string(old))), 0) })
		case !s.optional:
			return undo, fmt.Errorf("setting %s: %w", s.file, err)
		}
	}
	return undo, nil
}

// raises reports whether a hard limit is above the present one. Version 1 has
// two limits, one of which must never exceed the other.
func (g *cgroup) raises(memory int64) bool {
	if memory < 0 {
		return true
	}
	b, err := os.ReadFile(filepath.Join(g.dirs[ctlMemory], "memory.limit_in_bytes"))
	if err != nil {
		return false
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return err == nil && memory > now
}
