package image

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// registrySource is an image of a registry.
type registrySource struct {
	store *Store
	ref   *reference
}

func (r *registrySource) stamp(context.Context) (string, error) { return "", nil }

func (r *registrySource) load(context.Context, *job) (*content, error) {
	return nil, fail(sandbox.CodeUnsupported, "image.pull", r.ref.name, "", "registries are not supported yet")
}
