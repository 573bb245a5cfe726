package node

import (
	"context"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// images shows the node's image store to the control plane.
type images struct{ n *Node }

// Ensure fetches an image and pins it by its digest, so that the sandbox is
// made from what was found here even if the name moves meanwhile.
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

// ErrorCode knows nothing more: the store's errors have codes of their own.
func (images) ErrorCode(error) sandbox.Code { return "" }
