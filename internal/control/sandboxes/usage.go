package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Usage returns the resource usage of a running sandbox. It does not count as
// use: it neither keeps a sandbox from becoming idle nor wakes one.
func (s *records) Usage(ctx context.Context, ref string) (_ sandbox.Usage, err error) {
	const op = ops.SandboxUsage
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	verdict, err := lifecycle.Decide(view(&b), lifecycle.Use)
	if err == nil && verdict == lifecycle.Wake {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the sandbox is not running and uses no resources"}
	}
	if err != nil {
		return sandbox.Usage{}, err
	}
	box, err := s.attach(ctx, &b)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return s.handle(box).Usage(ctx)
}
