package node

import (
	"context"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// images adapts the node's image store to the control plane.
type images struct{ n *Node }

// Ensure pulls an image and resolves its digest, so that the sandbox uses this
// image even if the tag moves meanwhile.
func (i images) Ensure(ctx context.Context, req control.ImageRequest) (control.ImageConfig, error) {
	store, err := i.n.Images()
	if err != nil {
		return control.ImageConfig{}, err
	}
	opts := image.GetOptions{Policy: image.Policy(req.Pull), Platform: req.Platform}
	if req.Progress != nil {
		opts.Progress = func(p image.Progress) {
			req.Progress(control.Progress{Phase: p.String(), Done: p.Done, Total: p.Total})
		}
	}
	img, err := store.Get(ctx, req.Ref, opts)
	if err != nil {
		return control.ImageConfig{}, err
	}
	out := control.ImageConfig{Ref: img.Digest, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd}
	for _, s := range img.Signatures {
		out.Signatures = append(out.Signatures, policy.Signature(s))
	}
	return out, nil
}

// ErrorCode returns "": errors of the store already have codes.
func (images) ErrorCode(error) sandbox.Code { return "" }
