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
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// warmPrefix begins the ids of sandboxes that have no user yet. No Spec can
// have such an id.
const warmPrefix = "0-"

// shape is what sandboxes must have in common to stand in for one another
// until the moment they are given a name, an environment and a user.
type shape struct {
	digest    string
	resources sandbox.Resources
}

// pool holds started sandboxes that nobody uses yet. Each is used once: what
// ran in one sandbox is never handed to another user.
type pool struct {
	mu    sync.Mutex
	ready map[shape][]*maker
}

// Warm makes n sandboxes of the image and resources of spec ready in advance,
// so that a Create of the same image and resources, without mounts, finds one
// and only has to name it. It returns when they are ready. Sandboxes in the
// pool count against the machine like any other; Drain removes them.
func (p *Provider) Warm(ctx context.Context, spec *sandbox.Spec, n int) error {
	p.sweepOnce()
	img, err := p.opts.Images.Get(ctx, spec.Image, image.GetOptions{})
	if err != nil {
		return err
	}
	for range n {
		blank := &sandbox.Spec{
			ID: sandbox.ID(warmPrefix + strings.ToLower(rand.Text()[:16])), Image: spec.Image, Resources: spec.Resources,
		}
		m := p.newMaker(blank, img)
		if err := m.start(ctx); err != nil {
			m.undo()
			return withCause(ctx, err)
		}
		p.pool.put(shape{img.Digest, m.res}, m)
	}
	return nil
}

// Drain ends the sandboxes of the pool.
func (p *Provider) Drain() {
	p.pool.mu.Lock()
	ready := p.pool.ready
	p.pool.ready = nil
	p.pool.mu.Unlock()
	for _, ms := range ready {
		for _, m := range ms {
			m.undo()
		}
	}
}

func (l *pool) put(s shape, m *maker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready == nil {
		l.ready = map[shape][]*maker{}
	}
	l.ready[s] = append(l.ready[s], m)
}

func (l *pool) take(s shape) *maker {
	l.mu.Lock()
	defer l.mu.Unlock()
	ms := l.ready[s]
	if len(ms) == 0 {
		return nil
	}
	l.ready[s] = ms[1:]
	return ms[0]
}

// adopt gives a sandbox of the pool to its user. It returns nil without an
// error if there is none that fits.
func (p *Provider) adopt(ctx context.Context, spec *sandbox.Spec, img *image.Image) (*Instance, error) {
	if len(spec.Mounts) > 0 {
		return nil, nil
	}
	for {
		m := p.pool.take(shape{img.Digest, withDefaults(spec.Resources)})
		if m == nil {
			return nil, nil
		}
		select {
		case <-m.in.ended: // it died while waiting
			m.undo()
			continue
		default:
		}
		in, err := m.become(ctx, spec)
		if err != nil {
			m.undo()
			return nil, withCause(ctx, err)
		}
		return in, nil
	}
}

// become names a started sandbox, and gives it its link if it is to have one.
func (m *maker) become(ctx context.Context, spec *sandbox.Spec) (*Instance, error) {
	link := m.p.connect(ctx, spec, nil)
	defer closeLink(link)
	named := box{filepath.Join(m.p.boxes, string(spec.ID))}
	err := unix.Renameat2(unix.AT_FDCWD, m.box.dir, unix.AT_FDCWD, named.dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		return nil, &providerError{sandbox.CodeAlreadyExists, fmt.Sprintf("sandbox %s exists already", spec.ID), nil}
	} else if err != nil {
		return nil, err
	}
	m.box, m.spec, m.in.box = named, spec, named
	m.rec.ID, m.rec.Labels, m.rec.Created = spec.ID, spec.Labels, time.Now().UTC()
	m.rec.Spec.Resources = spec.Resources
	if m.link, err = link(); err != nil {
		return nil, err
	}
	if m.link != nil {
		if err := m.in.call(ctx, func(conn *urpc.Client) error { return addLink(conn, m.link) }); err != nil {
			return nil, m.explain(err)
		}
	}
	return m.finish(ctx)
}
