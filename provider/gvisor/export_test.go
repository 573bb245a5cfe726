package gvisor

import (
	"strings"
	"sync"
	"time"

	guestprogram "github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// Ready counts the sandboxes of the pool, and those whose memory comes from a
// snapshot.
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

// SetLowMemory replaces what tells whether the machine has too little memory for a
// pool. It comes before anything else is done with the provider.
func (p *Provider) SetLowMemory(lowMemory func() bool) { p.pool.lowMemory = lowMemory }

// MakeRoom does what is done about a sandbox that stands still.
func (in *Instance) MakeRoom() { in.makeRoom() }

// Stub is a host process that stands for an address space inside.
type Stub struct {
	PID    int
	Spared bool
}

// Stubs lists those of a sandbox, the oldest first.
func (in *Instance) Stubs() (list []Stub) {
	for _, s := range in.stubs() {
		list = append(list, Stub{s.pid, s.score == scoreSpared})
	}
	return list
}

// Kernel is the host process that the sandbox's kernel is.
func (in *Instance) Kernel() int { return in.rec.Kernel.PID }

// UseGuest makes an executable the guest of new sandboxes, as another build of
// Atoll would have another one. It comes before anything else is done with the
// provider.
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

// GuestDigest names the guest that a sandbox runs.
func (in *Instance) GuestDigest() string { return in.rec.Guest }

// Bundle is what a kernel is told about a sandbox with nothing special, and with
// which flags it is started.
func Bundle() (string, error) {
	b, err := newBundle(&sandbox.Spec{ID: "some"}, nil, &image.Image{}, "", 1<<30)
	if err != nil {
		return "", err
	}
	return string(b.spec) + b.mounts + strings.Join(kernelFlags(), " "), nil
}

// FileServer is the host process that is the sandbox's file server.
func (in *Instance) FileServer() int { return in.rec.Gofer.PID }

// SetStoppedTime says how long a sandbox may be stopped before those who wait for
// its commands are told.
func SetStoppedTime(d time.Duration) { stoppedTime = d }
