package gvisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/sandbox"
)

// warmPrefix starts the IDs of prewarmed sandboxes. No Spec can have such an
// ID.
const warmPrefix = "0-"

// stage is the stage up to which a sandbox is prewarmed.
type stage int

const (
	// atKernel: its kernel waits for a call that says what to start or to restore.
	// It can restore any snapshot, with or without a network.
	atKernel stage = iota
	// atGuest: its guest waits to be configured.
	atGuest
)

// shape lists the properties that must be equal for a prewarmed sandbox to
// serve a request. Name, environment and user are assigned later.
type shape struct {
	digest    string
	resources sandbox.Resources
	guest     string // digest of the guest's program
	from      string // the snapshot whose memory was restored; empty: none
	stage     stage
}

// pool holds unused sandboxes. Each is used once: a sandbox is never handed to
// a second user.
type pool struct {
	mu     sync.Mutex
	shapes map[shape]*warmSet
	busy   int           // sandboxes being created for callers
	idle   chan struct{} // signals the pool's goroutine that busy is 0
	closed bool
	making sync.Mutex // held while the pool creates one

	lowMemory func() bool // too little memory for a pool; must not change after the first use

	off atomic.Pointer[error] // why the pool is disabled at the moment

	once sync.Once // starts the pool's goroutine, which ends with ctx
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup
}

func newPool() *pool {
	l := &pool{idle: make(chan struct{}, 1), lowMemory: lowMemory}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// warmSet holds the ready sandboxes of one shape and the data to create more.
type warmSet struct {
	image string
	from  *snapshot.Saved // nil without a snapshot
	ready []*maker
	asked []time.Time // times of recent requests, oldest first
	kept  bool        // its size follows asked, not a call of Warm
}

// Warm creates n sandboxes with the image and resources of spec in advance. A
// Create with the same image and resources, and without mounts, then only has
// to configure one. Warm returns when they are ready. Sandboxes in the pool use
// resources of the machine like any other. Drain removes them.
func (p *Provider) Warm(ctx context.Context, spec *sandbox.Spec, n int) error {
	p.sweepOnce()
	s := shape{resources: withDefaults(spec.Resources), guest: p.guest(), stage: atGuest}
	for range n {
		m, err := p.prepareOne(ctx, s, spec.Image, nil)
		if err != nil {
			return err
		}
		s.digest = m.img.Digest
		if !p.pool.put(s, spec.Image, m) {
			m.undo()
			return errors.New("the provider is closed")
		}
	}
	return nil
}

// prepareOne creates a sandbox of a shape as far as possible without its user.
func (p *Provider) prepareOne(ctx context.Context, s shape, ref string, from *snapshot.Saved) (*maker, error) {
	img, err := p.opts.Images.Get(ctx, ref, image.GetOptions{})
	if err != nil {
		return nil, err
	}
	if s.digest != "" && img.Digest != s.digest {
		return nil, fmt.Errorf("%s is another image now", ref)
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	m := p.earlyMaker(s, ref, img)
	m.from = from
	if s.stage == atKernel {
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
		m.undo()
		return nil, withCause(ctx, err)
	}
	return m, nil
}

// earlyMaker begins a sandbox that has no user yet.
func (p *Provider) earlyMaker(s shape, ref string, img *image.Image) *maker {
	id := sandbox.ID(warmPrefix + strings.ToLower(rand.Text()[:16]))
	m := p.newMaker(&sandbox.Spec{ID: id, Image: ref, Resources: bounded(s.resources)}, img)
	return m
}

// prewarm runs a program in a sandbox, so that its first command is faster.
func (m *maker) prewarm(ctx context.Context) error {
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

// closePool ends the sandboxes of the pool permanently.
func (p *Provider) closePool() {
	p.pool.once.Do(func() {}) // prevents starting the goroutine
	p.pool.stop()
	p.pool.work.Wait()
	for _, m := range p.pool.empty(true) {
		m.undo()
	}
}

// Drain ends the sandboxes of the pool, including one that is being created,
// and waits for that.
func (p *Provider) Drain() {
	ready := p.pool.empty(false)
	p.pool.making.Lock()
	defer p.pool.making.Unlock()
	for _, m := range ready {
		m.undo()
	}
}

// empty removes all sandboxes from the pool. With closing the pool stays empty.
func (l *pool) empty(closing bool) (ready []*maker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shapes {
		ready = append(ready, s.ready...)
		s.from.Close()
	}
	l.shapes, l.closed = nil, l.closed || closing
	return ready
}

// warm returns the set of a shape and creates it if it is missing. l.mu is
// held.
func (l *pool) warm(s shape, ref string) *warmSet {
	if l.shapes == nil {
		l.shapes = map[shape]*warmSet{}
	}
	if l.shapes[s] == nil {
		l.shapes[s] = &warmSet{image: ref}
	}
	return l.shapes[s]
}

// put adds a sandbox to the pool. It fails if the pool was closed meanwhile, or
// drained if the sandbox was created for expected requests.
func (l *pool) put(s shape, ref string, m *maker) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || ref == "" && l.shapes[s] == nil {
		return false
	}
	sh := l.warm(s, ref)
	sh.ready = append(sh.ready, m)
	return true
}

// take returns a running sandbox, or nil, and those that have ended.
func (l *pool) take(s shape) (m *maker, dead []*maker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sh := l.shapes[s]
	for sh != nil && len(sh.ready) > 0 {
		m, sh.ready = sh.ready[0], sh.ready[1:]
		if m.alive() {
			return m, dead
		}
		dead = append(dead, m)
	}
	return nil, dead
}

// alive reports whether the kernel of a prewarmed sandbox runs.
func (m *maker) alive() bool { return m.rec.Kernel.alive() && !m.rec.Kernel.stopped() }

// maker returns a maker for a sandbox, prewarmed if the pool has a fitting one.
func (p *Provider) maker(spec *sandbox.Spec, img *image.Image, from *snapshot.Saved, why string) (*maker, error) {
	m := p.taken(spec, img, from, why)
	if m == nil {
		m = p.newMaker(spec, img)
		m.from, m.why = from, why
		return m, nil
	}
	m.from, m.why = from, why
	if err := m.become(spec); err != nil {
		m.undo()
		return nil, err
	}
	return m, nil
}

// taken returns the most advanced prewarmed sandbox that fits a request, or
// nil.
func (p *Provider) taken(spec *sandbox.Spec, img *image.Image, from *snapshot.Saved, why string) *maker {
	for _, s := range p.shapesFor(spec, img, from, why) {
		// With another guest, only the snapshot that contains it can be prewarmed.
		if p.pooled() && (s.from != "" || s.guest == p.guest()) {
			p.pool.ask(s, spec.Image, from)
		}
		m, dead := p.pool.take(s)
		for _, d := range dead {
			d.undo()
		}
		if m != nil {
			return m
		}
	}
	return nil
}

// shapesFor lists the shapes that fit a request, the most advanced first.
// Mounts are fixed when a kernel is launched, the network when it restores a
// snapshot.
func (p *Provider) shapesFor(spec *sandbox.Spec, img *image.Image, from *snapshot.Saved, why string) (shapes []shape) {
	if len(spec.Mounts) > 0 {
		return nil
	}
	s := shape{digest: img.Digest, resources: withDefaults(spec.Resources), guest: p.guest()}
	memory := from != nil && from.Memory != nil && why == ""
	if memory {
		s.guest = from.Memory.Guest
	}
	if memory && from.Transient {
		return []shape{s} // it is restored only once
	}
	if !memory || !spec.Network.Asked() {
		g := s
		g.stage = atGuest
		if memory {
			g.from = from.ID()
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
	return own.digest
}

// become assigns a prewarmed sandbox its ID and Spec.
func (m *maker) become(spec *sandbox.Spec) error {
	named := box{filepath.Join(m.p.boxes, string(spec.ID))}
	err := unix.Renameat2(unix.AT_FDCWD, m.box.dir, unix.AT_FDCWD, named.dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		return &providerError{sandbox.CodeAlreadyExists, fmt.Sprintf("sandbox %s already exists", spec.ID), nil}
	} else if err != nil {
		return err
	}
	m.box, m.spec = named, spec
	if m.in != nil {
		m.in.box, m.in.memory.box = named, named
	}
	m.rec.ID, m.rec.Labels, m.rec.Created = spec.ID, spec.Labels, time.Now().UTC()
	m.rec.Spec.Resources = spec.Resources
	return nil
}

// join adds the link to a prewarmed sandbox that has started, if it is to have
// a network. A new sandbox gets its link when its kernel starts.
func (m *maker) join(ctx context.Context) error {
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
