package update

import (
	"context"
	"fmt"
	"slices"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Publish forwards a port of the machine to a port of a sandbox, as long as the
// sandbox exists. It returns the port with defaults filled in.
func (s *Updater) Publish(ctx context.Context, ref string, p sandbox.PublishedPort) (_ sandbox.PublishedPort, err error) {
	defer core.Name(ops.PortPublish, &err)
	if err := p.Validate(); err != nil {
		return p, err
	}
	t, err := s.lockPorts(ctx, ref, ops.PortPublish)
	if err != nil {
		return p, err
	}
	defer t.Release()
	b := &t.Sandbox
	if len(b.Spec.Ports) >= bounds.MaxPorts {
		return p, &sandbox.Error{Code: sandbox.CodeExhausted, Subject: b.Name, Message: fmt.Sprintf("%d of its ports are published already", bounds.MaxPorts)}
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
func (s *Updater) Unpublish(ctx context.Context, ref, address string, hostPort uint16) (err error) {
	defer core.Name(ops.PortUnpublish, &err)
	t, err := s.lockPorts(ctx, ref, ops.PortUnpublish)
	if err != nil {
		return err
	}
	defer t.Release()
	left := slices.DeleteFunc(slices.Clone(t.Sandbox.Spec.Ports), func(p sandbox.PublishedPort) bool {
		return p.HostPort == hostPort && (address == "" || p.Address == address || p.Address == "" && address == sandbox.LoopbackAddress)
	})
	if len(left) == len(t.Sandbox.Spec.Ports) {
		return &sandbox.Error{
			Code: sandbox.CodeNotFound, Subject: t.Sandbox.Name, Message: fmt.Sprintf("port %d of the machine does not lead to this sandbox", hostPort), Hint: "see: atoll port ls",
		}
	}
	return s.setPorts(ctx, t, left)
}

func (s *Updater) lockPorts(ctx context.Context, ref string, op ops.Op) (*records.Operation, error) {
	if _, _, err := s.Core.Admit(ctx, op, guard.Subject{Subject: ref}); err != nil {
		return nil, err
	}
	return s.Records.Lock(ctx, ref, op, lifecycle.Update)
}

// setPorts records the published ports of a sandbox and listens on them.
func (s *Updater) setPorts(ctx context.Context, t *records.Operation, all []sandbox.PublishedPort) error {
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) { b.Spec.Ports = all }, nil)
	if err != nil {
		s.Ports.Sync(&t.Sandbox)
		return err
	}
	_, err = s.Records.Leave(ctx, t, intent, nil, func(*store.Sandbox) {}, nil)
	return err
}
