package node

import (
	"context"
	"runtime"

	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// images adapts the node's image store to the engine.
type images struct{ n *Node }

// Ensure pulls an image and resolves its digest, so that the sandbox uses this
// image even if the tag moves meanwhile.
func (i images) Ensure(ctx context.Context, req engine.ImageRequest) (engine.ImageConfig, error) {
	store, err := i.n.Images()
	if err != nil {
		return engine.ImageConfig{}, err
	}
	opts := image.GetOptions{Policy: image.Policy(req.Pull), Platform: req.Platform}
	if req.Progress != nil {
		opts.Progress = func(p image.Progress) {
			req.Progress(engine.Progress{Phase: p.String(), Done: p.Done, Total: p.Total})
		}
	}
	if i.fetches(&req) {
		if err := i.n.fetch(ctx, req.Tenant, req.Ref); err != nil {
			return engine.ImageConfig{}, err
		}
	}
	img, err := store.Get(ctx, req.Ref, opts)
	if err != nil {
		return engine.ImageConfig{}, err
	}
	out := engine.ImageConfig{Ref: img.Digest, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd}
	for _, s := range img.Signatures {
		out.Signatures = append(out.Signatures, policy.Signature(s))
	}
	return out, nil
}

// fetches reports whether an image may be one that other machines have saved. What
// the caller wants anew, or for another platform, is that of a registry.
func (i images) fetches(req *engine.ImageRequest) bool {
	return i.n.fetch != nil && req.Tenant != "" && req.Pull != engine.Pull(image.PolicyAlways) && (req.Platform == "" || req.Platform == "linux/"+runtime.GOARCH)
}

// ErrorCode returns "": errors of the store already have codes.
func (images) ErrorCode(error) sandbox.Code { return "" }
