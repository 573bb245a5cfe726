package policies

import (
	"context"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
)

// AskedImage returns the names of the image of a Spec. It replaces the name of
// a snapshot by its id, which never refers to another one, and the full name of
// one of the tenant's own templates by the short one.
func (s *Service) AskedImage(ctx context.Context, tenant string, spec *sandbox.Spec) ([]string, error) {
	if spec.Snapshot == "" {
		if spec.Image == "" {
			return []string{engine.HostImage}, nil
		}
		if ref, ok := strings.CutPrefix(spec.Image, template.Prefix); ok {
			spec.Image = template.Prefix + template.ShortRef(tenant, ref)
		}
		return []string{spec.Image}, nil
	}
	found, err := s.cfg.Snapshot(ctx, tenant, spec.Snapshot)
	if err == nil {
		spec.Snapshot = found.ID
	}
	return []string{found.Image, found.Spec.Image}, err
}

// localSignatures returns the signatures of the image of a Spec, and whether
// the image would have to be pulled first. It does not pull.
func (s *Service) localSignatures(ctx context.Context, spec *sandbox.Spec, asked []string) (all []policy.Signature, unfetched bool) {
	switch {
	case spec.Snapshot != "" || s.cfg.Images == nil:
		return s.signatures(ctx, asked), false
	case strings.HasPrefix(spec.Image, "oci:"):
		return nil, true // looking it up would import it
	case spec.Image == "" || policyset.IsLocal(spec.Image):
		return nil, false
	}
	img, err := s.cfg.Images.Ensure(ctx, engine.ImageRequest{Ref: spec.Image, Pull: engine.PullNever})
	return img.Signatures, sandbox.CodeOf(err) == sandbox.CodeNotFound
}

// signatures returns the signatures of those images on this machine whose
// digests are among the names.
func (s *Service) signatures(ctx context.Context, images []string) (out []policy.Signature) {
	for _, ref := range images {
		if strings.HasPrefix(ref, "sha256:") && s.cfg.Images != nil {
			if img, err := s.cfg.Images.Ensure(ctx, engine.ImageRequest{Ref: ref, Pull: engine.PullNever}); err == nil {
				out = append(out, img.Signatures...)
			}
		}
	}
	return out
}

// FetchSigned pulls the image of a request if a policy requires signatures. It
// replaces the name in the request by the digest, and returns all names of the
// image. An image that no signature could make allowed is not pulled.
func (s *Service) FetchSigned(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, req engine.ImageRequest) ([]string, error) {
	if spec.Image == engine.HostImage || strings.HasPrefix(spec.Image, template.Prefix) || s.cfg.Images == nil ||
		!s.Set().AsksWho(policyset.About{Tenant: a.Tenant, Labels: spec.Labels}) {
		return images, nil
	}
	k, err := s.Known(ctx, a.Tenant, spec, images)
	if err != nil {
		return images, err
	}
	r := k.Request(a.Tenant, spec, images)
	r.Signatures, r.Unfetched = nil, true
	if err := s.Refused(ctx, a, k.Set.Check(r, policyset.Images)); err != nil {
		return images, err
	}
	req.Ref = spec.Image
	img, err := s.cfg.Images.Ensure(ctx, req)
	if err != nil || img.Ref == "" {
		return images, err
	}
	spec.Image = img.Ref
	return append(slices.Clone(images), img.Ref), nil
}

// PermitSigned pulls the image of a plan that the policies cannot judge without
// its signatures, and judges it.
func (s *Service) PermitSigned(ctx context.Context, a audit.Action, p plan.Plan) (plan.Plan, error) {
	img, err := s.cfg.Images.Ensure(ctx, engine.ImageRequest{Ref: p.Spec.Image, Tenant: p.Tenant, Pull: engine.Pull(p.Pull), Platform: p.Platform})
	if err != nil {
		return p, err
	}
	p, err = p.Signed(img.Ref, img.Signatures)
	return p, s.Refused(ctx, a, err)
}
