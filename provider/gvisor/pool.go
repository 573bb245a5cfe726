package gvisor

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor/pool"
	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/sandbox"
)

// warmPrefix starts the IDs of prewarmed sandboxes. No Spec can have such an
// ID.
const warmPrefix = "0-"

// prewarmer makes the sandboxes of the pool. It implements pool.Maker.
type prewarmer struct{ p *Provider }

// Warm creates n sandboxes with the image and resources of spec in advance. A
// Create with the same image and resources, and without mounts, then only has
// to configure one. Warm returns when they are ready. Sandboxes in the pool use
// resources of the machine like any other. Drain removes them.
func (p *Provider) Warm(ctx context.Context, spec *sandbox.Spec, n int) error {
	p.sweepOnce()
	s := pool.Shape{Resources: withDefaults(spec.Resources), Guest: p.guest(), Stage: pool.AtGuest}
	for range n {
		m, err := prewarmer{p}.Make(ctx, s, spec.Image, nil)
		if err != nil {
			return err
		}
		s.Digest = m.img.Digest
		if !p.pool.Put(s, spec.Image, m) {
			m.Undo()
			return errors.New("the provider is closed")
		}
	}
	return nil
}

// Drain ends the sandboxes of the pool, including one that is being created,
// and waits for that.
func (p *Provider) Drain() { p.pool.Drain() }

// Make creates a sandbox of a shape as far as possible without its user.
func (w prewarmer) Make(ctx context.Context, s pool.Shape, ref string, from *snapshot.Saved) (*creation, error) {
	img, err := w.p.opts.Images.Get(ctx, ref, image.GetOptions{})
	if err != nil {
		return nil, err
	}
	if s.Digest != "" && img.Digest != s.Digest {
		return nil, fmt.Errorf("%s is another image now", ref)
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	m := w.p.newCreation(&sandbox.Spec{ID: warmID(), Image: ref, Resources: bounded(s.Resources)}, img)
	m.from = from
	if s.Stage == pool.AtKernel {
		if err = m.prepare(); err == nil {
			err = m.launch(ctx)
		}
	} else {
		err = m.start(ctx)
		if err == nil {
			err = m.prewarm(ctx)
		}
	}
	if err == nil && from != nil && !m.restoresMemory() {
		err = errors.New(m.why)
	}
	if err != nil {
		m.Undo()
		return nil, withCause(ctx, err)
	}
	m.from = nil
	return m, nil
}

// LowMemory implements pool.Maker.
func (w prewarmer) LowMemory() bool { return w.p.lowMemory() }

// warmID returns the ID of a sandbox that has no user yet.
func warmID() sandbox.ID { return sandbox.ID(warmPrefix + strings.ToLower(rand.Text()[:16])) }

// prewarm runs a program in a sandbox, so that its first command is faster.
func (m *creation) prewarm(ctx context.Context) error {
	program, err := exitProgram()
	if err != nil {
		return err
	}
	return m.in.client.Prewarm(ctx, program)
}

// bounded is the inverse of withDefaults: in a Spec, no limit is negative.
func bounded(r sandbox.Resources) sandbox.Resources {
	for _, v := range []*int64{&r.Memory, &r.Disk, &r.PIDs} {
		if *v == 0 {
			*v = -1
		}
	}
	return r
}

// Alive reports whether the kernel of a prewarmed sandbox runs.
func (m *creation) Alive() bool { return m.rec.Kernel.alive() && !m.rec.Kernel.stopped() }

// begin begins the creation of a sandbox, with a prewarmed one if the pool has one
// that fits.
func (p *Provider) begin(spec *sandbox.Spec, img *image.Image, from *snapshot.Saved, why string) (*creation, error) {
	m := p.taken(spec, img, from, why)
	if m == nil {
		m = p.newCreation(spec, img)
		m.from, m.why = from, why
		return m, nil
	}
	m.from, m.why = from, why
	if err := m.become(spec); err != nil {
		m.Undo()
		return nil, err
	}
	return m, nil
}

// taken returns the most advanced prewarmed sandbox that fits a request, or
// nil.
func (p *Provider) taken(spec *sandbox.Spec, img *image.Image, from *snapshot.Saved, why string) *creation {
	for _, s := range p.shapesFor(spec, img, from, why) {
		// With another guest, only the snapshot that contains it can be prewarmed.
		if s.From != "" || s.Guest == p.guest() {
			p.pool.Want(s, spec.Image, from)
		}
		if m, ok := p.pool.Take(s); ok {
			return m
		}
	}
	return nil
}

// shapesFor lists the shapes that fit a request, the most advanced first.
// Mounts are fixed when a kernel is launched, the network when it restores a
// snapshot.
func (p *Provider) shapesFor(spec *sandbox.Spec, img *image.Image, from *snapshot.Saved, why string) (shapes []pool.Shape) {
	if len(spec.Mounts) > 0 {
		return nil
	}
	s := pool.Shape{Digest: img.Digest, Resources: withDefaults(spec.Resources), Guest: p.guest()}
	memory := from != nil && from.Memory != nil && why == ""
	if memory {
		s.Guest = from.Memory.Guest
	}
	if memory && from.Transient {
		return []pool.Shape{s} // it is restored only once
	}
	if !memory || !spec.Network.Asked() {
		g := s
		g.Stage = pool.AtGuest
		if memory {
			g.From = from.ID()
		}
		shapes = append(shapes, g)
	}
	if memory {
		shapes = append(shapes, s)
	}
	return shapes
}

// guest returns the digest of new sandboxes' guest. It is empty if the guest
// cannot be prepared; Create then returns the error.
func (p *Provider) guest() string {
	own, err := p.program()
	if err != nil {
		return ""
	}
	return own.Digest
}

// become assigns a prewarmed sandbox its ID and Spec.
func (m *creation) become(spec *sandbox.Spec) error {
	named := stateDir{filepath.Join(m.p.sandboxes, string(spec.ID))}
	err := unix.Renameat2(unix.AT_FDCWD, m.stateDir.dir, unix.AT_FDCWD, named.dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		return &providerError{sandbox.CodeAlreadyExists, fmt.Sprintf("sandbox %s already exists", spec.ID), nil}
	} else if err != nil {
		return err
	}
	m.stateDir, m.spec = named, spec
	if m.in != nil {
		m.in.stateDir, m.in.memory.stateDir = named, named
	}
	m.rec.ID, m.rec.Labels, m.rec.Created = spec.ID, spec.Labels, time.Now().UTC()
	m.rec.Spec.Resources = spec.Resources
	return nil
}

// join adds the link to a prewarmed sandbox that has started, if it is to have
// a network. A new sandbox gets its link when its kernel starts.
func (m *creation) join(ctx context.Context) error {
	if m.restoresMemory() {
		return nil
	}
	link := m.p.connect(ctx, m.spec, m.known())
	defer closeLink(link)
	var err error
	if m.link, err = link(); err != nil || m.link == nil {
		return err
	}
	if err := m.in.call(ctx, func(conn *urpc.Client) error { return addLink(conn, m.link) }); err != nil {
		return m.explain(err)
	}
	return nil
}

// poolUnused is the share of the machine's memory, in percent, that a pool leaves
// free.
const poolUnused = 10

// lowMemory reports whether the machine has too little memory left for a pool.
func lowMemory() bool {
	figures := memoryFigures()
	return figures["MemAvailable"]*100 < figures["MemTotal"]*poolUnused
}

// memoryFigures returns the machine's memory in KiB, by name. See
// proc_meminfo(5).
func memoryFigures() map[string]int64 {
	figures := map[string]int64{}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return figures
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		figures[name], _ = strconv.ParseInt(kb, 10, 64)
	}
	return figures
}
