package templates

import (
	"context"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/sandbox"
)

// free are policies that allow everything.
type free struct{}

func (free) AskedImage(_ context.Context, _ string, spec *sandbox.Spec) ([]string, error) {
	return []string{spec.Image}, nil
}

func (free) FetchSigned(_ context.Context, _ audit.Action, _ *sandbox.Spec, images []string, _ engine.ImageRequest) ([]string, error) {
	return images, nil
}

func (free) Permit(context.Context, audit.Action, *sandbox.Spec, []string, ...policyset.Field) error {
	return nil
}
func (free) Set() *policyset.Set { return nil }
