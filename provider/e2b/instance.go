package e2b

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of the service. A guest inside runs commands and
// accesses files.
type Instance struct {
	*guestkit.Instance
	p      *Provider
	id     sandbox.ID
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, b box) *Instance {
	in := p.api.inside(b)
	return &Instance{Instance: p.kit.Instance(id, &machine{in, p, id}, b.Ends), p: p, id: id, inside: in}
}

// machine is the service's side of a sandbox.
type machine struct {
	*inside
	p    *Provider
	name sandbox.ID
}

// Status implements guestkit.Machine. The sandbox is gone only if the service
// itself does not know it, and the key is not the reason.
func (m *machine) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := m.p.api.get(ctx, m.id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		if b, err = m.p.find(ctx, m.name); err == nil && b.ID != m.id {
			err = guestkit.Gone(m.name)
		}
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	return guestkit.Status{State: stateOf(b), Ends: b.Ends}, nil
}

// Cause implements guestkit.Machine. The service does not report how a sandbox
// ended. If its lifetime was over and this installation did not end it, the
// lifetime is the cause.
func (m *machine) Cause(ends time.Time) sandbox.Exit {
	r, ok := m.p.recordOf(m.name, m.id)
	if r.Ends.Before(ends) && !r.Ends.IsZero() || ends.IsZero() {
		ends = r.Ends
	}
	if !ok || r.Doomed || time.Now().Before(ends.Add(-guestkit.Slack)) {
		return guestkit.Killed
	}
	return guestkit.Expired
}

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	if exit, ended := in.Ended(); ended && exit.Reason == sandbox.ReasonKilled {
		return nil
	}
	l, err := in.p.boxes.Lock(ctx, string(in.id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	in.SetDying(true)
	r := l.Read()
	if ours := r.Box == in.inside.id; ours {
		r.Doomed = true
		err = l.Write(r)
	}
	if err == nil {
		err = in.p.api.kill(ctx, in.inside.id)
	}
	if err != nil {
		in.SetDying(false)
		return err
	}
	in.Finish(guestkit.Killed)
	if r.Box == in.inside.id || r.Box == "" {
		return l.Remove()
	}
	return nil
}

// SetDeadline implements driver.DeadlineSetter. The service uses whole seconds
// and requires a deadline: "never" becomes the longest lifetime.
func (in *Instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ended := in.Ended(); ended {
		return guestkit.Gone(in.id)
	}
	life := in.p.opts.Lifetime
	if !at.IsZero() {
		life = time.Until(at)
	}
	l, err := in.p.boxes.Lock(ctx, string(in.id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	ends := time.Now().Add(time.Duration(seconds(life)) * time.Second)
	err = in.p.api.setTimeout(ctx, in.inside.id, seconds(life))
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		_ = l.Remove()
		return in.Explain(ctx, err)
	}
	if err != nil {
		return err
	}
	in.SetEnds(ends)
	if r := l.Read(); r.Box == in.inside.id {
		r.Ends = ends
		return l.Write(r)
	}
	binding, err := in.p.Binding(ctx)
	if err != nil {
		return err
	}
	return l.Write(record{Box: in.inside.id, Ends: ends, Binding: binding})
}

// Usage implements driver.Meter. The service reports the load of the
// processors, but no processor time.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if _, ended := in.Ended(); ended {
		return sandbox.Usage{}, guestkit.Gone(in.id)
	}
	m, err := in.inside.metrics(ctx)
	if err != nil {
		return sandbox.Usage{}, in.Explain(ctx, err)
	}
	return sandbox.Usage{CPU: -1, Memory: int64(m.MemUsed), Disk: int64(m.DiskUsed), PIDs: -1, Sampled: time.Unix(m.At, 0)}, nil
}
