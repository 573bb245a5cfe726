package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// detailOf returns the details of a sandbox for callers in this program.
func detailOf(b *store.Sandbox) sandbox.Detail {
	return sandbox.Detail{Sandbox: b.Info(), Spec: b.Spec, Kept: b.Rest.Kept != ""}
}

// Isolation returns the weakest isolation that a sandbox of a tenant may have, by
// its Spec and the policies. Empty: any.
func (s *creator) Isolation(tenant string, spec *sandbox.Spec) sandbox.Isolation {
	return spec.Isolation.Stronger(s.Policies.Isolation(tenant, spec.Labels))
}

// Inspect returns a sandbox with the request that created it.
func (s *records) Inspect(ctx context.Context, ref string) (sandbox.Detail, error) {
	b, err := s.Get(ctx, ref)
	return detailOf(&b), err
}

// InspectAll returns the sandboxes of the caller's tenant that have the labels, newest
// first.
func (s *records) InspectAll(ctx context.Context, labels map[string]string) (all []sandbox.Detail, err error) {
	page := store.Page{Limit: store.MaxPage}
	for {
		part, next, err := s.Sandboxes(ctx, store.Filter{Labels: labels}, page)
		if err != nil {
			return nil, err
		}
		for i := range part {
			all = append(all, detailOf(&part[i]))
		}
		if page.Cursor = next; next == "" {
			return all, nil
		}
	}
}
