package gvisor

import (
	"context"
	"strings"
	"sync"
	"time"

	guestprogram "github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// Ready returns the number of sandboxes in the pool, and how many of them have
// the memory of a snapshot.
func (p *Provider) Ready() (all, restored int) {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	for s, sh := range p.pool.shapes {
		all += len(sh.ready)
		if s.from != "" {
			restored += len(sh.ready)
		}
	}
	return all, restored
}

// SetLowMemory replaces the check for low memory. Call it before any other
// method of the provider.
func (p *Provider) SetLowMemory(lowMemory func() bool) { p.pool.lowMemory = lowMemory }

// MakeRoom frees memory in a sandbox that makes no progress.
func (in *Instance) MakeRoom() {
	if !in.memory.makeRoom(map[int]bool{}) {
		in.memory.endStarved()
	}
}

// LimitVersion returns the version of the machine's control groups.
func (p *Provider) LimitVersion() int { return p.groups().version }

// Full reports whether the sandbox waits for a higher memory limit.
func (in *Instance) Full() bool { return in.memory.full.Load() }

// AtLimit reports whether the sandbox waits at its memory limit now.
func (in *Instance) AtLimit() bool { return in.rec.cgroup().atLimit() }

// Lend sets the limit of the sandbox's memory on this machine, and no other.
func (in *Instance) Lend(limit int64) error { return in.rec.cgroup().lend(limit) }

// MemoryLimit returns that limit.
func (in *Instance) MemoryLimit() int64 { return in.rec.cgroup().memoryLimit() }

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
	return askStatus(ctx, in.box.dir)
}

// UseGuest makes an executable the guest of new sandboxes, as if this were
// another build of Atoll. Call it before any other method of the provider.
func (p *Provider) UseGuest(executable string) {
	p.program = sync.OnceValues(func() (*program, error) {
		found, err := guestprogram.File(executable)
		if err != nil {
			return nil, err
		}
		own, err := openProgram(found, p.opts.StateDir)
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
