package sessions

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Movers move sessions between providers.
type Movers struct {
	*records
	leases    *leases
	holders   *Holders
	provision *provision
	sandboxes Sandboxes
	providers Providers
	trees     trees
}

// Targets returns the providers that could serve a session, best first, and
// those that cannot, with reasons.
func (s *Movers) Targets(ctx context.Context, ref string) (out []durable.SessionTarget, err error) {
	err = s.onSession(ctx, ops.SessionTargets, ref, func(ctx context.Context, who key.Principal, row store.Session) error {
		out, _, err = s.targets(ctx, who, row)
		return err
	})
	return out, err
}

// targets returns the targets of a session, and the name of the default provider.
func (s *Movers) targets(ctx context.Context, who key.Principal, row store.Session) (out []durable.SessionTarget, standard string, err error) {
	all, err := s.providers.Providers(ctx)
	if err != nil {
		return nil, "", err
	}
	l, err := s.leases.of(row.Tenant).Load(ctx, row.Group)
	if err != nil {
		return nil, "", err
	}
	spec := row.Spec
	spec.Labels = row.Labels
	needs := catalog.NeedsOf(&spec)
	needs.Images = false // each checks the exact image
	needs.Isolation = s.sandboxes.Isolation(row.Tenant, &spec)
	needs.OwnFiles = carriesTree(&row) || len(row.Spec.Workspaces) > 0
	archives, mounts, shares := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range all {
		archives[p.Name], mounts[p.Name] = p.Capabilities["archive"] && p.Capabilities["files"], p.Capabilities["mounts"]
		shares[p.Name] = p.SharesFiles
		if p.Default {
			standard = p.Name
		}
	}
	for _, c := range catalog.ChooseFrom(needs, all).Candidates {
		t := durable.SessionTarget{Provider: c.Provider, Current: c.Provider == l.Provider, Fits: c.Fits, Reasons: c.Reasons}
		var image error
		if t.Fits {
			image = s.providers.CheckImage(ctx, t.Provider, row.Spec.Image)
		}
		switch tree := carriesTree(&row); {
		case !t.Fits && needs.OwnFiles && shares[t.Provider] && s.providers.Permanent(ctx, t.Provider):
			t.Reasons = []string{ownersFiles + t.Provider}
		case !t.Fits:
		case s.providers.Permit(ctx, who, t.Provider) != nil:
			t.Fits, t.Reasons = false, []string{"for the owner of the machine only"}
		case image != nil:
			t.Fits, t.Reasons = false, []string{why(image)}
		case !archives[t.Provider] && (tree || len(row.Spec.Workspaces) > 0 && !mounts[t.Provider]):
			t.Fits, t.Reasons = false, []string{"takes no trees of files"}
		case tree:
			t.Carries = sandbox.WorkspaceDir
		default:
			t.Carries = "workspaces"
		}
		out = append(out, t)
	}
	return out, standard, nil
}

// ownersFiles is why a session does not move to the whole machine of a person, and
// what to do instead. The provider follows.
const ownersFiles = "its directory belongs to the machine's owner, and a move would overwrite files there; " +
	"copy the files that you need with atoll session cp, to a session that begins there: atoll session create --provider "

// why is the text of an error without its operation.
func why(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return cmp.Or(e.Message, string(e.Code))
	}
	return err.Error()
}

// target returns the provider that a request names, with a reason if it cannot
// be used now.
func (s *Movers) target(ctx context.Context, who key.Principal, row store.Session, name string) (provider, reason string, err error) {
	all, standard, err := s.targets(ctx, who, row)
	if err != nil {
		return "", "", err
	}
	if name == "default" || name == "session" {
		name = cmp.Or(row.Spec.Provider, standard)
	}
	for _, t := range all {
		if t.Provider != name {
			continue
		}
		if err := s.providers.Permit(ctx, who, name); err != nil {
			return "", "", err
		}
		if !t.Fits {
			reason = cmp.Or(strings.Join(t.Reasons, "; "), "it does not fit")
		}
		return name, reason, nil
	}
	return "", "", &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "target", Message: "there is no provider " + name, Hint: "list them with: atoll session targets " + row.Name}
}

// Swap moves a session to another provider, with its workspaces or the files
// below /workspace. After an error, the session stays where it was.
func (s *Movers) Swap(ctx context.Context, ref string, req durable.SwapRequest) (out durable.Swapped, err error) {
	err = s.onSession(ctx, ops.SessionSwap, ref, func(ctx context.Context, who key.Principal, row store.Session) error {
		provider, reason, err := s.target(ctx, who, row, req.Target)
		if err != nil || reason != "" {
			out.Reason = reason
			return err
		}
		receipt, err := s.swap(ctx, row, provider)
		if sandbox.CodeOf(err) == sandbox.CodeStale { // another caller was faster; retry
			receipt, err = s.swap(ctx, row, provider)
		}
		if err == nil {
			out = durable.Swapped{Swapped: true, Receipt: &receipt}
		}
		return err
	})
	return out, err
}

// swap moves a session once.
func (s *Movers) swap(ctx context.Context, row store.Session, provider string) (durable.Receipt, error) {
	at := place{row.Tenant, row.Group}
	move, open, err := s.holders.present.shut(ctx, at)
	if err != nil {
		return durable.Receipt{}, err
	}
	defer open()
	self := s.holders.present.holderID()
	held, err := s.holders.acquire(ctx, row, durable.HolderRef{Kind: string(lease.Operator), ID: self}, "")
	if err != nil {
		return durable.Receipt{}, err
	}
	defer s.holders.letGo(ctx, row, self)
	if held.Sandbox.Provider == provider { // already there
		return held.Receipt, nil
	}
	env, err := s.environment(&row)
	if err != nil {
		return durable.Receipt{}, err
	}
	spec := row.Spec
	spec.Env = env
	by := mover{s.provision.sandboxesOf(row.Tenant, &row), move, s.holders.present, s.trees}
	beat := lease.Heartbeat{Kind: lease.Operator, ID: self, Epoch: held.Epoch}
	now, err := s.holders.manager(row).Move(ctx, session.Plan{Group: row.Group, Provider: provider, Spec: spec}, held.Epoch, beat, by)
	if left, ok := errors.AsType[*session.NotEnded](err); ok {
		s.Report(ctx, left)
		err = nil
	}
	if err != nil {
		return durable.Receipt{}, err
	}
	return now.Receipt, s.moved(context.WithoutCancel(ctx), row, &now.Receipt)
}

// moved records where the sessions of a group are now.
func (s *Movers) moved(ctx context.Context, row store.Session, r *durable.Receipt) error {
	r.Time = s.Store.Now()
	s.leases.fact(ctx, row.Tenant, row.Name, r.Sandbox, eventlog.RouteSwapped, r.Epoch, ops.SessionSwap)
	all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Session, error) { return tx.Sessions().InGroup(ctx, row.Tenant, row.Group) })
	failed := []error{err}
	for _, one := range all {
		_, err := s.change(ctx, one, func(one *store.Session) error {
			one.Provider, one.Receipt = r.Provider, r
			return nil
		})
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// visitTime limits how long a sandbox of RunOn exists if this daemon ends.
const visitTime = time.Hour

// Visit makes a sandbox for the session on another provider, with a copy of the
// files below /workspace, and calls use with it. The sandbox then ends and its
// changes are discarded. The session stays where it is.
func (s *Movers) Visit(ctx context.Context, ref, target string, use func(context.Context, sandbox.ID) error) error {
	return s.onSession(ctx, ops.SessionRunOn, ref, func(ctx context.Context, who key.Principal, row store.Session) error {
		provider, reason, err := s.target(ctx, who, row, target)
		if err != nil {
			return err
		}
		if reason != "" {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: provider, Message: "it cannot serve the session: " + reason}
		}
		at, err := s.holders.reach(ctx, row.Tenant, row.ID, 0, false)
		if err != nil {
			return err
		}
		defer at.Done()
		return s.visit(ctx, row, at.Sandbox, provider, use)
	})
}

func (s *Movers) visit(ctx context.Context, row store.Session, from sandbox.ID, provider string, use func(context.Context, sandbox.ID) error) (err error) {
	env, err := s.environment(&row)
	if err != nil {
		return err
	}
	spec := row.Spec
	spec.Env, spec.Provider, spec.Labels, spec.Workspaces = env, provider, row.Labels, nil
	spec.Lifetime = sandbox.Lifetime{Timeout: visitTime}
	id, err := s.sandboxes.Make(ctx, spec, newID("visit-"), "")
	if err != nil {
		return err
	}
	defer func() {
		err = core.FirstError(err, s.sandboxes.Destroy(context.WithoutCancel(ctx), string(id)))
	}()
	row.Spec.Workspaces = nil // the copy replaces them
	if carriesTree(&row) {
		if err := s.trees.copyTree(ctx, from, id); err != nil {
			return err
		}
	}
	return use(ctx, id)
}
