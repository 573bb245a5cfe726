package superserve

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of the service, with a guest in it that does what is
// done inside. Its methods may be called concurrently.
type Instance struct {
	*guestkit.Instance
	p      *Provider
	id     sandbox.ID
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, b box, ends time.Time) *Instance {
	in := p.api.inside(id, b)
	return &Instance{Instance: p.kit.Instance(id, &machine{in, p}, ends), p: p, id: id, inside: in}
}

// machine is a sandbox as the service knows it.
type machine struct {
	*inside
	p *Provider
}

// Status implements guestkit.Machine. Evidence is the service's own word that it
// does not know the sandbox, and that it does not list it for this account.
func (m *machine) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := m.api.get(ctx, m.id)
	if missing(err) {
		if b, err = m.p.find(ctx, m.name); err == nil && b.ID != m.id {
			err = guestkit.Gone(m.name)
		}
	}
	if err == nil {
		err = m.api.usable(m.name, b)
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	r, _ := m.p.boxes.Get(string(m.name))
	if r.Box != m.id {
		r.Ends = time.Time{}
	}
	return guestkit.Status{State: stateOf(b.Status), Ends: r.Ends}, nil
}

// Cause implements guestkit.Machine. The service does not say how a sandbox
// ended: it was its lifetime if that was over and nobody here ended it.
func (m *machine) Cause(ends time.Time) sandbox.Exit {
	r, _ := m.p.boxes.Get(string(m.name))
	if r.Box != m.id || r.Doomed || ends.IsZero() || time.Now().Before(ends.Add(-guestkit.Slack)) {
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
	if r.Box == in.inside.id {
		r.Doomed = true
		err = l.Write(r)
	}
	if err == nil {
		err = in.p.erase(ctx, in.id, in.inside.id)
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

// Resume implements driver.Resumer. Pausing is left to the service: it cuts the
// connections of a sandbox that it pauses, which driver.Pauser does not allow.
func (in *Instance) Resume(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	status, ended, err := in.Ask(ctx)
	switch {
	case ended:
		return guestkit.Gone(in.id)
	case err != nil || status.State != sandbox.Paused:
		return err
	}
	b, err := in.p.api.awake(ctx, in.id, in.inside.id, true)
	if err != nil {
		return in.Explain(ctx, err)
	}
	in.inside.set(b)
	in.Disconnect() // no connection outlives the pause
	return nil
}

// usageScript says how many KiB of memory there are and are free, how many are
// used on the disk, and how many processes there are.
const usageScript = `while read -r name n rest; do case $name in MemTotal:) t=$n ;; MemFree:) f=$n ;; MemAvailable:) a=$n ;; esac; done </proc/meminfo
set -- /proc/[0-9]*
n=$#
set -- $(df -Pk / | tail -n 1)
echo "$((t - ${a:-$f})) ${3:--1} $n"`

// Usage implements driver.Meter. What processors did is not known.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if _, ended := in.Ended(); ended {
		return sandbox.Usage{}, guestkit.Gone(in.id)
	}
	// With a guest, which is a process, figures compare.
	if err := in.Use(ctx, false, func(context.Context, *guest.Client) error { return nil }); err != nil {
		return sandbox.Usage{}, err
	}
	out, err := in.inside.run(ctx, usageScript)
	if err != nil {
		return sandbox.Usage{}, in.Explain(ctx, err)
	}
	u := sandbox.Usage{CPU: -1, Memory: -1, Disk: -1, PIDs: -1, Sampled: time.Now()}
	fields := strings.Fields(out)
	for i, into := range []*int64{&u.Memory, &u.Disk, &u.PIDs} {
		if i < len(fields) {
			if n, err := strconv.ParseInt(fields[i], 10, 64); err == nil && n >= 0 {
				*into = n
			}
		}
	}
	if u.Memory > 0 {
		u.Memory <<= 10
	}
	if u.Disk > 0 {
		u.Disk <<= 10
	}
	return u, nil
}
