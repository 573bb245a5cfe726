package sessions

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// provision makes, finds and saves the sandboxes of all sessions.
type provision struct {
	*core.Core
	own        installation
	sandboxes  Sandboxes
	snapshots  Snapshots
	providers  Providers
	workspaces Workspaces
	leases     *leases
	archives   *archives
	observer   Observer
}

// tenantSandboxes manages the sandboxes of one tenant for one of its sessions. It
// implements session.Sandboxes. They are sandboxes of this daemon, by their own IDs.
// The store decides which exist.
type tenantSandboxes struct {
	*provision
	tenant string
	row    *store.Session // nil if no sandbox is made or captured
	held   bool           // the sandbox is in use: capturing must not stop it
}

func (s *provision) sandboxesOf(tenant string, row *store.Session) tenantSandboxes {
	return tenantSandboxes{provision: s, tenant: tenant, row: row}
}

func (s tenantSandboxes) record(ctx context.Context, id string) (store.Sandbox, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Get(ctx, s.tenant, sandbox.ID(id)) })
}

// present returns the present name of a binding, which an earlier version may
// have recorded under another name.
func (s tenantSandboxes) present(ctx context.Context, backend, binding string) string {
	provider, other := s.own.elsewhere(binding)
	if provider == "" || other {
		return binding
	}
	return s.own.binding(s.providers.Present(ctx, backend, provider))
}

func (s tenantSandboxes) sandbox(row *store.Sandbox) session.Sandbox {
	return session.Sandbox{ID: row.ID, Provider: row.Provider, Binding: s.own.binding(row.Binding), Deadline: row.Expires}
}

// Create implements session.Sandboxes. A session that has an archive starts from it.
func (s tenantSandboxes) Create(ctx context.Context, p session.Plan) (session.Sandbox, error) {
	l, err := s.leases.of(s.tenant).Load(ctx, p.Group)
	if err == nil {
		err = s.orphans(ctx, l, false)
	}
	if err != nil {
		return session.Sandbox{}, err
	}
	spec := p.Spec
	if p.Provider != "" {
		spec.Provider = p.Provider
	}
	if s.row != nil {
		spec.Labels = s.row.Labels
	}
	if p.Prior != nil && p.Prior.Archive != nil {
		if err := s.archives.readable(ctx, s.tenant, *p.Prior.Archive); err != nil {
			return session.Sandbox{}, err
		}
		if p.Prior.Archive.Kind == snapshotKind {
			spec.Snapshot, spec.Image = p.Prior.Archive.Ref, ""
			spec.Provider = cmp.Or(p.Prior.Archive.Provider, spec.Provider) // the session may have moved
		}
	}
	if spec.Snapshot == "" && !s.providers.Accepts(spec.Provider) {
		spec.Provider = "" // any other node
	}
	id, err := s.sandboxes.Make(ctx, spec, p.Key, p.Replaces)
	if err != nil {
		return session.Sandbox{}, err
	}
	row, err := s.record(ctx, string(id))
	if err != nil {
		return session.Sandbox{}, err
	}
	return s.sandbox(&row), nil
}

// attemptsBack is how many earlier attempts are checked. Each of them has
// checked the ones before it.
const attemptsBack = 8

// orphans ends unused sandboxes of earlier attempts, and with all also those of
// the present one.
func (s tenantSandboxes) orphans(ctx context.Context, l lease.Lease, all bool) error {
	for attempt := max(1, l.Attempt-attemptsBack); attempt <= l.Attempt; attempt++ {
		row, err := s.made(ctx, attemptKey(l.Group, attempt))
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			continue
		case err != nil:
			return err
		case row.State == sandbox.Gone || row.ID == l.Sandbox || !all && !session.Orphan(l, row.ID, attempt):
			continue
		}
		if err := s.sandboxes.Destroy(ctx, string(row.ID)); err != nil {
			return err
		}
		s.observer.OrphanEnded()
	}
	return nil
}

// attemptKey is the idempotency key of an attempt, as session.SplitKey reads it.
func attemptKey(group string, attempt int64) string {
	return group + "." + strconv.FormatInt(attempt, 10)
}

func (s tenantSandboxes) made(ctx context.Context, key string) (store.Sandbox, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Made(ctx, s.tenant, key) })
}

// Find implements session.Sandboxes.
func (s tenantSandboxes) Find(ctx context.Context, p session.Plan) (session.Sandbox, error) {
	row, err := s.made(ctx, p.Key)
	switch {
	case err != nil:
		return session.Sandbox{}, err
	case row.State == sandbox.Gone:
		return session.Sandbox{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: p.Key, Message: "the sandbox was not made"}
	case row.State != sandbox.Running:
		return session.Sandbox{}, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(row.ID), Message: "the sandbox is " + string(row.State), Hint: "try again"}
	}
	return s.sandbox(&row), nil
}

// Resume implements session.Sandboxes.
func (s tenantSandboxes) Resume(ctx context.Context, e durable.Envelope) (session.Sandbox, durable.Outcome, bool, error) {
	none := session.Sandbox{}
	row, err := s.record(ctx, e.Sandbox)
	binding, other := s.own.elsewhere(e.Binding)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && other && row.State != sandbox.Gone {
		row, err = s.unknown(ctx, e)
	}
	if err != nil {
		return none, "", false, err
	}
	have := s.present(ctx, row.Provider, s.own.binding(row.Binding))
	if other && s.own.binding(binding) == have {
		e.Binding = have
	}
	if s.present(ctx, e.Backend, e.Binding) != have {
		return none, "", false, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: e.Sandbox, Message: "the sandbox belongs to " + have + " and not to " + e.Binding,
		}
	}
	if err := isolated(&row, e.Spec.Isolation); err != nil {
		return none, "", false, err
	}
	how, err := s.wake(ctx, &row)
	if err == nil && e.Spec.Isolation != "" { // its provider may give less than before
		if row, err = s.record(ctx, string(row.ID)); err == nil {
			err = isolated(&row, e.Spec.Isolation)
		}
	}
	if err != nil {
		return none, "", false, err
	}
	return s.sandbox(&row), how, false, nil
}

// isolated refuses a sandbox that has less isolation than its session demands.
func isolated(row *store.Sandbox, demand sandbox.Isolation) error {
	if row.State == sandbox.Gone {
		return nil
	}
	return plan.Isolated(row.Provider, row.Isolation, demand)
}

// takeBack takes over the sandbox of an envelope that another installation wrote,
// if this one has a session with it.
func (s tenantSandboxes) takeBack(ctx context.Context, e durable.Envelope) error {
	if _, other := s.own.elsewhere(e.Binding); !other || e.Sandbox == "" {
		return nil
	}
	_, err := s.unknown(ctx, e)
	return ignore(err, sandbox.CodeGone) // acquiring it reports that too
}

// unknown finds a sandbox without a record in this installation, or one that
// another installation has taken over.
func (s tenantSandboxes) unknown(ctx context.Context, e durable.Envelope) (store.Sandbox, error) {
	if err := s.reachable(ctx, e); err != nil {
		return store.Sandbox{}, err
	}
	binding, other := s.own.elsewhere(e.Binding)
	if !other {
		return store.Sandbox{}, gone(e.Sandbox, "this installation has no sandbox with that id")
	}
	spec := e.Spec
	spec.ID, spec.Provider = sandbox.ID(e.Sandbox), e.Backend
	return s.sandboxes.TakeOver(ctx, s.tenant, binding, spec)
}

// reachable refuses a sandbox unless this installation made it, or another one
// with the same provider account. Ids are not secret, so only the owner of the
// machine can take over sandboxes of other installations.
func (s tenantSandboxes) reachable(ctx context.Context, e durable.Envelope) error {
	err := s.own.has(e.Sandbox, e.Binding)
	binding, other := s.own.elsewhere(e.Binding)
	if err == nil || !other {
		return err
	}
	if have, bindErr := s.providers.Binding(ctx, e.Backend); bindErr != nil || have != binding {
		return err
	}
	switch {
	case guard.ForTenant(ctx):
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: "session.resume", Subject: e.Sandbox, Message: "only the owner of the machine takes over sandboxes of another installation"}
	case len(e.Spec.Workspaces) > 0:
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "session.resume", Subject: e.Sandbox, Message: "its workspaces are those of another installation",
			Hint: "resume the session where it was",
		}
	}
	return nil
}

// wake resumes or starts a recorded sandbox.
func (s tenantSandboxes) wake(ctx context.Context, row *store.Sandbox) (durable.Outcome, error) {
	all, id := s.sandboxes, string(row.ID)
	switch row.State {
	case sandbox.Running:
		err := all.Reach(ctx, id)
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return durable.OutcomeAttached, err
		}
		if now, recordErr := s.record(ctx, id); recordErr != nil || now.State != sandbox.Failed {
			return "", errors.Join(err, recordErr)
		}
	case sandbox.Paused, sandbox.Pausing, sandbox.Resuming:
		if row.Rest.Wakes { // needs only the permission to use it
			return durable.OutcomeWoken, all.Reach(ctx, id)
		}
		_, err := all.Resume(ctx, id)
		return durable.OutcomeWoken, err
	case sandbox.Stopped:
		if row.Rest.Kept != "" {
			_, err := all.Start(ctx, id)
			return durable.OutcomeResumed, err
		}
	case sandbox.Gone:
		return "", gone(id, "it ended: "+row.Reason)
	case sandbox.Failed:
	default: // lost, or still being made
		return "", &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: id, Message: "the sandbox is " + string(row.State), Hint: "try again; it is not known to be gone",
		}
	}
	// It ended by itself and nothing was saved. Its record must not keep its
	// workspaces attached.
	if err := all.Destroy(ctx, id); err != nil {
		return "", err
	}
	return "", gone(id, "it ended: "+row.Reason)
}

func gone(id, why string) error {
	return &sandbox.Error{Code: sandbox.CodeGone, Op: "session.resume", Subject: id, Message: why}
}

// Probe implements session.Sandboxes. Resume has already checked with the provider.
func (s tenantSandboxes) Probe(context.Context, session.Sandbox) error { return nil }

// Hydrate implements session.Sandboxes. It reports the workspaces or the snapshot
// that the sandbox was made with, and unpacks an archive of files.
func (s tenantSandboxes) Hydrate(ctx context.Context, sb session.Sandbox, e durable.Envelope) (session.Sandbox, durable.ReceiptFrom, []string, error) {
	from := durable.ReceiptFrom{Archive: e.Archive}
	lost := []string{durable.LostProcesses, durable.LostMemory}
	for _, w := range s.saves() {
		found, err := s.workspaces.Workspace(ctx, w)
		if err != nil {
			return sb, from, nil, err
		}
		if found.Latest != nil {
			from.Workspaces = append(from.Workspaces, versionOf(w, found.Latest.Number))
		}
	}
	if e.Archive != nil && e.Archive.Kind == tarKind {
		if err := s.archives.unpack(ctx, s.tenant, sb.ID, *e.Archive); err != nil {
			return sb, from, nil, err
		}
	}
	if from.Archive == nil && len(from.Workspaces) > 0 || from.Archive != nil && from.Archive.Kind == tarKind {
		lost = append(lost, durable.LostFiles)
	}
	return sb, from, lost, nil
}

func versionOf(name string, version int) durable.WorkspaceRef {
	return durable.WorkspaceRef{Name: name, Version: "v" + strconv.Itoa(version)}
}

// saves returns the writable workspaces of the session.
func (s tenantSandboxes) saves() (names []string) {
	for _, w := range s.row.Spec.Workspaces {
		if w.Mode != sandbox.WorkspaceRead {
			names = append(names, w.Name)
		}
	}
	return names
}

// Capture implements session.Sandboxes. It saves the workspaces. Without
// workspaces, it takes a snapshot of all files; if the provider cannot, or not
// while the sandbox runs, or is a node, it archives the files below /workspace.
func (s tenantSandboxes) Capture(ctx context.Context, sb session.Sandbox, e durable.Envelope) (durable.Envelope, error) {
	e.Archive, e.Workspaces = nil, nil
	s.sandboxes.Flush(ctx, sb.ID)
	note := "session " + s.row.Name
	for _, name := range s.saves() {
		version, err := s.workspaces.PersistWorkspace(ctx, name, note)
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			continue // a bucket has what was written already
		}
		if err != nil {
			return e, err
		}
		e.Workspaces = append(e.Workspaces, versionOf(name, version.Number))
	}
	if len(s.row.Spec.Workspaces) > 0 {
		return e, nil
	}
	facts, err := s.providers.Facts(ctx, sb.Provider)
	switch {
	case err != nil:
		return e, err
	case facts.Capabilities.Snapshot && !s.providers.OnNode(sb.Provider):
		e.Archive, err = s.snapshot(ctx, sb)
		if !s.held || sandbox.CodeOf(err) != sandbox.CodeConflict { // in use, so it cannot be stopped
			return e, err
		}
	}
	if carriesTree(s.row) {
		e.Archive, err = s.archives.pack(ctx, s.tenant, s.row.Group, sb)
	}
	return e, err
}

// snapshot saves all files of a sandbox.
func (s tenantSandboxes) snapshot(ctx context.Context, sb session.Sandbox) (*durable.Archive, error) {
	a := durable.Archive{Kind: snapshotKind, Ref: newID("archive-"), Provider: sb.Provider, Binding: string(s.own)}
	if err := s.archives.register(ctx, s.tenant, s.row.Group, a); err != nil {
		return nil, err
	}
	take := func() (durable.Snapshot, error) {
		return s.snapshots.CreateSnapshot(ctx, string(sb.ID), durable.SnapshotRequest{Name: a.Ref, Labels: map[string]string{durable.ArchiveLabel: s.row.Name}})
	}
	kept, err := take()
	if sandbox.CodeOf(err) == sandbox.CodeConflict && !s.held { // the provider saves only stopped sandboxes
		if _, err = s.sandboxes.Pause(ctx, string(sb.ID), true); err == nil {
			kept, err = take()
		}
	}
	if err != nil {
		s.Report(ctx, s.Discard(context.WithoutCancel(ctx), durable.Envelope{Archive: &a}))
		return nil, err
	}
	a.Size = kept.Size
	return &a, nil
}

// Discard implements session.Sandboxes. It keeps the current and the previous
// archive of the session. A later sweep removes archives that cannot be removed
// now.
func (s tenantSandboxes) Discard(ctx context.Context, prior durable.Envelope) error {
	a := prior.Archive
	if a == nil || s.archives.readable(ctx, s.tenant, *a) != nil {
		return nil
	}
	goes, err := store.Write(ctx, s.Store, func(tx *store.Tx) (bool, error) { return tx.Sessions().RetireArchive(ctx, s.tenant, a.Ref, false) })
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound: // an earlier version made it
		return s.archives.remove(ctx, s.tenant, *a)
	case err != nil:
		return err
	case !goes:
		return s.archives.tidy(ctx, s.tenant, s.row.Group)
	}
	return s.archives.deleteArchive(ctx, store.KeptArchive{Tenant: s.tenant, Archive: *a})
}

// Pause implements session.Sandboxes: to disk if possible, else in memory.
func (s tenantSandboxes) Pause(ctx context.Context, sb session.Sandbox) error {
	_, err := s.sandboxes.Pause(ctx, string(sb.ID), true)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		_, err = s.sandboxes.Pause(ctx, string(sb.ID), false)
	}
	return err
}

// Permanent implements session.Sandboxes.
func (s tenantSandboxes) Permanent(ctx context.Context, provider string) bool {
	return s.providers.Permanent(ctx, provider)
}

// Delete implements session.Sandboxes.
func (s tenantSandboxes) Delete(ctx context.Context, sb session.Sandbox) error {
	return ignore(s.sandboxes.Destroy(ctx, string(sb.ID)), sandbox.CodeNotFound, sandbox.CodeGone)
}

func ignore(err error, codes ...sandbox.Code) error {
	for _, code := range codes {
		if err != nil && sandbox.CodeOf(err) == code {
			return nil
		}
	}
	return err
}
