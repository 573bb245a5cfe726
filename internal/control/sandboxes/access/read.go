package access

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Reader reads sandboxes. The caller fills in the fields.
type Reader struct {
	Core    *core.Core
	Records *records.Records
}

// List returns a page of the tenant's sandboxes, newest first.
func (s *Reader) List(ctx context.Context, f store.Filter, page store.Page) ([]store.Summary, string, error) {
	return list(ctx, s, f, page, store.Sandboxes.Summaries)
}

// Sandboxes is List with complete records.
func (s *Reader) Sandboxes(ctx context.Context, f store.Filter, page store.Page) ([]store.Sandbox, string, error) {
	return list(ctx, s, f, page, store.Sandboxes.List)
}

func list[T any](
	ctx context.Context, s *Reader, f store.Filter, page store.Page,
	read func(store.Sandboxes, context.Context, string, store.Filter, store.Page) ([]T, string, error),
) (sandboxes []T, next string, err error) {
	sandboxes, err = core.Read(ctx, s.Core, ops.SandboxList, "", func(tx *store.Tx, tenant string) (all []T, err error) {
		all, next, err = read(tx.Sandboxes(), ctx, tenant, f, page)
		return all, err
	})
	return sandboxes, next, err
}

// Inspect returns a sandbox with the request that created it.
func (s *Reader) Inspect(ctx context.Context, ref string) (sandbox.Detail, error) {
	b, err := s.Records.Get(ctx, ref)
	return detailOf(&b), err
}

// InspectAll returns the sandboxes of the caller's tenant that have the labels, newest
// first.
func (s *Reader) InspectAll(ctx context.Context, labels map[string]string) (all []sandbox.Detail, err error) {
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

// detailOf returns the details of a sandbox for callers in this program.
func detailOf(b *store.Sandbox) sandbox.Detail {
	return sandbox.Detail{Sandbox: b.Info(), Spec: b.Spec, Kept: b.Rest.Kept != ""}
}

// Usage returns the resource usage of a running sandbox. It does not count as
// use: it neither keeps a sandbox from becoming idle nor wakes one.
func (s *Reader) Usage(ctx context.Context, ref string) (_ sandbox.Usage, err error) {
	const op = ops.SandboxUsage
	defer core.Name(op, &err)
	who, err := s.Core.Look(ctx, op, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	b, err := s.Records.Find(ctx, who.Tenant, ref)
	if err != nil {
		return sandbox.Usage{}, err
	}
	verdict, err := lifecycle.Decide(records.View(&b), lifecycle.Use)
	if err == nil && verdict == lifecycle.Wake {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Subject: b.Name, Message: "the sandbox is not running and uses no resources"}
	}
	if err != nil {
		return sandbox.Usage{}, err
	}
	sb, err := s.Records.AttachSettled(ctx, &b)
	if err == nil && sb == nil {
		return s.Usage(ctx, ref) // its state has just changed
	}
	if err != nil {
		return sandbox.Usage{}, err
	}
	return sb.Guarded(s.Core.Act).Usage(ctx)
}
