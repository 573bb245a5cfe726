package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Usage tells what a running sandbox consumes. To look at it is not to use it:
// it goes to rest all the same, and one that rests is not woken.
func (s *records) Usage(ctx context.Context, ref string) (sandbox.Usage, error) {
	const op = ops.SandboxUsage
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	if err != nil {
		return sandbox.Usage{}, core.Named(op, err)
	}
	verdict, err := lifecycle.Decide(view(&b), lifecycle.Use)
	if err == nil && verdict == lifecycle.Wake {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the sandbox rests and consumes nothing"}
	}
	if err != nil {
		return sandbox.Usage{}, core.Named(op, err)
	}
	box, err := s.attach(ctx, &b)
	if err != nil {
		return sandbox.Usage{}, err
	}
	return s.handle(box).Usage(ctx)
}
