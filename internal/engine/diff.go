package engine

import (
	"context"
	"io"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Diff writes the changes of the sandbox relative to its image, as an image
// layer.
func (s *Sandbox) Diff(ctx context.Context, w io.Writer) error {
	return s.e.do(ctx, s.action(ops.SandboxDiff, ""), func(ctx context.Context) error {
		d, ok := driver.As[driver.Differ](s.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider cannot list changes relative to the image"}
		}
		return d.Diff(ctx, w)
	})
}
