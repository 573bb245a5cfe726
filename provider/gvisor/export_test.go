package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	guestprogram "github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/provider/gvisor/guestimage"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// Ready returns the number of sandboxes in the pool, and how many of them have
// the memory of a snapshot.
func (p *Provider) Ready() (all, restored int) { return p.pool.Ready() }

// SetLowMemory replaces the check for low memory. Call it before any other
// method of the provider.
func (p *Provider) SetLowMemory(lowMemory func() bool) { p.lowMemory = lowMemory }

// MakeRoom frees memory in a sandbox that makes no progress.
func (in *Instance) MakeRoom() {
	if ended, _ := in.memory.makeRoom(map[int]bool{}); !ended {
		in.memory.endStarved()
	}
}

// EndStopped kills a stub while the kernel is stopped, unless that would end the
// sandbox.
func (in *Instance) EndStopped(pid int) bool {
	return in.memory.endStopped(pid, childrenOf(in.rec.cgroup(), pid))
}

// Hold stops the kernel, as the process does that kills a stub.
func (in *Instance) Hold() (release func(goOn bool)) { return in.memory.hold() }

// Unfinished lists the stubs that gVisor's kernel traces or has not set up.
func (in *Instance) Unfinished() (pids []int) {
	for i, s := range in.memory.stubs() {
		threads := childrenOf(in.rec.cgroup(), s.pid)
		if i > 0 && s.score == scoreProgram && (len(threads) == 0 || traced(s.pid) || slices.ContainsFunc(threads, traced)) {
			pids = append(pids, s.pid)
		}
	}
	return pids
}

// Killed counts the programs that were killed for lack of memory.
func (in *Instance) Killed() int { return in.memory.killed() }

// LimitVersion returns the version of the machine's control groups.
func (p *Provider) LimitVersion() int { return p.groups().Version }

// Full reports whether the sandbox waits for a higher memory limit.
func (in *Instance) Full() bool { return in.memory.full.Load() }

// AtLimit reports whether the sandbox has used up the reserve of its memory and
// waits now (version 1), or is slowed down at its limit (version 2).
func (in *Instance) AtLimit() bool {
	g := in.rec.cgroup()
	if g.Version == 1 {
		return g.Statistic(cgroup.Memory, "memory.oom_control", "under_oom") == 1
	}
	return g.AtLimit()
}

// Held returns the memory of the sandbox without the host's cache of files.
func (in *Instance) Held() int64 { return in.rec.cgroup().Held() }

// LimitState describes the memory of the sandbox's group, for messages.
func (in *Instance) LimitState() string {
	g := in.rec.cgroup()
	words, _ := os.ReadFile(in.stateDir.path(filePanic))
	return fmt.Sprintf("%d of %d bytes, at its limit: %v, full: %v, kills: %d of which %d are ours; stubs: %+v; its kernel said %q",
		g.Held(), g.MemoryLimit(), g.AtLimit(), in.memory.full.Load(), in.memory.killed(), in.stateDir.starved(), in.memory.stubs(), words)
}

// UsedUp reports whether the reserve above the limit was used up, since the last
// call (version 1) or since the sandbox was made (version 2).
func (in *Instance) UsedUp() bool {
	g := in.rec.cgroup()
	if g.Version == 2 {
		return g.Statistic(cgroup.Memory, "memory.events", "max") > 0
	}
	peak := g.Figure(cgroup.Memory, "memory.max_usage_in_bytes")
	_ = os.WriteFile(filepath.Join(g.Dirs[cgroup.Memory], "memory.max_usage_in_bytes"), []byte("0"), 0)
	return peak >= g.Figure(cgroup.Memory, "memory.limit_in_bytes")
}

// Charged returns the memory of the sandbox's group with the host's cache of files.
func (in *Instance) Charged() int64 { return in.rec.cgroup().Charged() }

// Ended reports whether the kernel has ended.
func (in *Instance) Ended() bool { return !in.rec.Kernel.alive() }

// Lend sets the limit of the sandbox's memory on this machine, and no other.
func (in *Instance) Lend(limit int64) error { return in.rec.cgroup().Lend(limit) }

// Freeze freezes the sandbox's group, which must be of version 2.
func (in *Instance) Freeze() error {
	return os.WriteFile(filepath.Join(in.rec.cgroup().Dirs[cgroup.Memory], "cgroup.freeze"), []byte("1"), 0)
}

// MemoryLimit returns that limit.
func (in *Instance) MemoryLimit() int64 { return in.rec.cgroup().MemoryLimit() }

// Stub is the host process of an address space inside.
type Stub struct {
	PID    int
	Spared bool
}

// Stubs lists the stubs of a sandbox, the oldest first.
func (in *Instance) Stubs() (list []Stub) {
	for _, s := range in.memory.stubs() {
		list = append(list, Stub{s.pid, s.score == scoreSpared})
	}
	return list
}

// Kernel returns the host process of the sandbox's kernel.
func (in *Instance) Kernel() int { return in.rec.Kernel.PID }

// Status returns what the kernel says about itself.
func (in *Instance) Status(ctx context.Context) (kernel.Status, error) {
	return askStatus(ctx, in.stateDir.dir)
}

// UseGuest makes an executable the guest of new sandboxes, as if this were
// another build of Atoll. Call it before any other method of the provider.
func (p *Provider) UseGuest(executable string) {
	p.program = sync.OnceValues(func() (*guestimage.Guest, error) {
		found, err := guestprogram.File(executable)
		if err != nil {
			return nil, err
		}
		own, err := guestimage.Open(found, p.opts.StateDir)
		p.opened.Store(own)
		return own, err
	})
}

// GuestDigest identifies the guest that a sandbox runs.
func (in *Instance) GuestDigest() string { return in.rec.Guest }

// Bundle returns a kernel's configuration of a minimal sandbox, and its flags.
func Bundle() (string, error) {
	b, err := newBundle(&sandbox.Spec{ID: "some"}, nil, &image.Image{}, "", 1<<30)
	if err != nil {
		return "", err
	}
	return string(b.spec) + b.mounts + strings.Join(kernelFlags(PlatformSystrap), " "), nil
}

// FileServer returns the host process of the sandbox's file server.
func (in *Instance) FileServer() int { return in.rec.Gofer.PID }

// SetStoppedTime sets stoppedTime.
func SetStoppedTime(d time.Duration) { stoppedTime = d }
