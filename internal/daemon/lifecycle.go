package daemon

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

func shownWith(b store.Sandbox, err error) (sandbox.Sandbox, error) { return shown(b), err }

func (s service) Stop(ctx context.Context, ref string, grace time.Duration) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Stop(ctx, ref, grace))
}

func (s service) Start(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Start(ctx, ref))
}

func (s service) Pause(ctx context.Context, ref string, toDisk bool) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Pause(ctx, ref, toDisk))
}

func (s service) Resume(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Resume(ctx, ref))
}

func (s service) Update(ctx context.Context, ref string, c sandbox.Change) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Update(ctx, ref, c))
}

func (s service) Reboot(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Reboot(ctx, ref))
}

func (s service) Expire(ctx context.Context, ref string, at time.Time, extend bool) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.Expire(ctx, ref, at, extend))
}

func (s service) SetNetwork(ctx context.Context, ref string, n sandbox.Network) (sandbox.Sandbox, error) {
	return shownWith(s.Plane.SetNetwork(ctx, ref, n))
}

func (s service) Fork(ctx context.Context, ref string, req sandbox.ForkRequest) ([]sandbox.Sandbox, error) {
	boxes, err := s.Plane.Fork(ctx, ref, req)
	out := make([]sandbox.Sandbox, len(boxes))
	for i, b := range boxes {
		out[i] = shown(b)
	}
	return out, err
}
