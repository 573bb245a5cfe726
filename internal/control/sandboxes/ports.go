package sandboxes

import (
	"context"
	"fmt"
	"slices"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Publish forwards a port of the machine to a port of a sandbox, as long as the
// sandbox exists. It returns the port with defaults filled in.
func (s *updater) Publish(ctx context.Context, ref string, p sandbox.PublishedPort) (_ sandbox.PublishedPort, err error) {
	defer core.Name(ops.PortPublish, &err)
	if err := p.Validate(); err != nil {
		return p, err
	}
	t, err := s.lockPorts(ctx, ref, ops.PortPublish)
	if err != nil {
		return p, err
	}
	defer t.release()
	b := &t.box
	if len(b.Spec.Ports) >= sandbox.MaxPorts {
		return p, &sandbox.Error{Code: sandbox.CodeExhausted, Subject: b.Name, Message: fmt.Sprintf("%d of its ports are published already", sandbox.MaxPorts)}
	}
	if slices.Contains(b.Spec.Ports, p) {
		return p, nil
	}
	made, err := s.Ports.Reserve(b.Tenant, b.ID, b.Name, []sandbox.PublishedPort{p})
	if err == nil {
		err = s.setPorts(ctx, t, append(slices.Clone(b.Spec.Ports), made...))
	}
	if err != nil {
		return p, err
	}
	return made[0], nil
}

// Unpublish stops listening on a port of the machine. An empty address matches
// any.
func (s *updater) Unpublish(ctx context.Context, ref, address string, hostPort uint16) (err error) {
	defer core.Name(ops.PortUnpublish, &err)
	t, err := s.lockPorts(ctx, ref, ops.PortUnpublish)
	if err != nil {
		return err
	}
	defer t.release()
	left := slices.DeleteFunc(slices.Clone(t.box.Spec.Ports), func(p sandbox.PublishedPort) bool {
		return p.HostPort == hostPort && (address == "" || p.Address == address || p.Address == "" && address == sandbox.LoopbackAddress)
	})
	if len(left) == len(t.box.Spec.Ports) {
		return &sandbox.Error{
			Code: sandbox.CodeNotFound, Subject: t.box.Name, Message: fmt.Sprintf("port %d of the machine does not lead to this sandbox", hostPort), Hint: "see: atoll port ls",
		}
	}
	return s.setPorts(ctx, t, left)
}

func (s *updater) lockPorts(ctx context.Context, ref string, op ops.Op) (*operation, error) {
	if _, _, err := s.Admit(ctx, op, guard.Subject{Subject: ref}); err != nil {
		return nil, err
	}
	return s.lock(ctx, ref, op, lifecycle.Update)
}

// setPorts records the published ports of a sandbox and listens on them.
func (s *updater) setPorts(ctx context.Context, t *operation, all []sandbox.PublishedPort) error {
	intent, err := s.enter(ctx, t, func(b *store.Sandbox) { b.Spec.Ports = all }, nil)
	if err != nil {
		s.Ports.Sync(&t.box)
		return err
	}
	_, err = s.leave(ctx, t, intent, nil, func(*store.Sandbox) {}, nil)
	return err
}
