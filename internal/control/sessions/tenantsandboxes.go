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

func (b tenantSandboxes) record(ctx context.Context, id string) (store.Sandbox, error) {
	return store.Read(ctx, b.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Get(ctx, b.tenant, sandbox.ID(id)) })
}

// present returns the present name of a binding, which an earlier version may
// have recorded under another name.
func (b tenantSandboxes) present(ctx context.Context, backend, binding string) string {
	provider, other := b.own.elsewhere(binding)
	if provider == "" || other {
		return binding
	}
	return b.own.binding(b.providers.Present(ctx, backend, provider))
}

func (b tenantSandboxes) sandbox(row *store.Sandbox) session.Sandbox {
	return session.Sandbox{ID: row.ID, Provider: row.Provider, Binding: b.own.binding(row.Binding), Deadline: row.Expires}
}

// Create implements session.Sandboxes. A session that has an archive starts from it.
func (b tenantSandboxes) Create(ctx context.Context, p session.Plan) (session.Sandbox, error) {
	l, err := b.leases.of(b.tenant).Load(ctx, p.Group)
	if err == nil {
		err = b.orphans(ctx, l, false)
	}
	if err != nil {
		return session.Sandbox{}, err
	}
	spec := p.Spec
	if p.Provider != "" {
		spec.Provider = p.Provider
	}
	if b.row != nil {
		spec.Labels = b.row.Labels
	}
	if p.Prior != nil && p.Prior.Archive != nil {
		if err := b.archives.readable(ctx, b.tenant, *p.Prior.Archive); err != nil {
			return session.Sandbox{}, err
		}
		if p.Prior.Archive.Kind == snapshotKind {
			spec.Snapshot, spec.Image = p.Prior.Archive.Ref, ""
			spec.Provider = cmp.Or(p.Prior.Archive.Provider, spec.Provider) // the session may have moved
		}
	}
	if spec.Snapshot == "" && !b.providers.Accepts(spec.Provider) {
		spec.Provider = "" // any other node
	}
	id, err := b.sandboxes.Make(ctx, spec, p.Key, p.Replaces)
	if err != nil {
		return session.Sandbox{}, err
	}
	row, err := b.record(ctx, string(id))
	if err != nil {
		return session.Sandbox{}, err
	}
	return b.sandbox(&row), nil
}

// attemptsBack is how many earlier attempts are checked. Each of them has
// checked the ones before it.
const attemptsBack = 8

// orphans ends unused sandboxes of earlier attempts, and with all also those of
// the present one.
func (b tenantSandboxes) orphans(ctx context.Context, l lease.Lease, all bool) error {
	for attempt := max(1, l.Attempt-attemptsBack); attempt <= l.Attempt; attempt++ {
		row, err := b.made(ctx, attemptKey(l.Group, attempt))
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			continue
		case err != nil:
			return err
		case row.State == sandbox.Gone || row.ID == l.Sandbox || !all && !session.Orphan(l, row.ID, attempt):
			continue
		}
		if err := b.sandboxes.Destroy(ctx, string(row.ID)); err != nil {
			return err
		}
		b.observer.OrphanEnded()
	}
	return nil
}

// attemptKey is the idempotency key of an attempt, as session.SplitKey reads it.
func attemptKey(group string, attempt int64) string {
	return group + "." + strconv.FormatInt(attempt, 10)
}

func (b tenantSandboxes) made(ctx context.Context, key string) (store.Sandbox, error) {
	return store.Read(ctx, b.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Made(ctx, b.tenant, key) })
}

// Find implements session.Sandboxes.
func (b tenantSandboxes) Find(ctx context.Context, p session.Plan) (session.Sandbox, error) {
	row, err := b.made(ctx, p.Key)
	switch {
	case err != nil:
		return session.Sandbox{}, err
	case row.State == sandbox.Gone:
		return session.Sandbox{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: p.Key, Message: "the sandbox was not made"}
	case row.State != sandbox.Running:
		return session.Sandbox{}, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(row.ID), Message: "the sandbox is " + string(row.State), Hint: "try again"}
	}
	return b.sandbox(&row), nil
}

// Resume implements session.Sandboxes.
func (b tenantSandboxes) Resume(ctx context.Context, e durable.Envelope) (session.Sandbox, durable.Outcome, bool, error) {
	none := session.Sandbox{}
	row, err := b.record(ctx, e.Sandbox)
	binding, other := b.own.elsewhere(e.Binding)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && other && row.State != sandbox.Gone {
		row, err = b.unknown(ctx, e)
	}
	if err != nil {
		return none, "", false, err
	}
	have := b.present(ctx, row.Provider, b.own.binding(row.Binding))
	if other && b.own.binding(binding) == have {
		e.Binding = have
	}
	if b.present(ctx, e.Backend, e.Binding) != have {
		return none, "", false, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: e.Sandbox, Message: "the sandbox belongs to " + have + " and not to " + e.Binding,
		}
	}
	if err := isolated(&row, e.Spec.Isolation); err != nil {
		return none, "", false, err
	}
	how, err := b.wake(ctx, &row)
	if err == nil && e.Spec.Isolation != "" { // its provider may give less than before
		if row, err = b.record(ctx, string(row.ID)); err == nil {
			err = isolated(&row, e.Spec.Isolation)
		}
	}
	if err != nil {
		return none, "", false, err
	}
	return b.sandbox(&row), how, false, nil
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
func (b tenantSandboxes) takeBack(ctx context.Context, e durable.Envelope) error {
	if _, other := b.own.elsewhere(e.Binding); !other || e.Sandbox == "" {
		return nil
	}
	_, err := b.unknown(ctx, e)
	return ignore(err, sandbox.CodeGone) // acquiring it reports that too
}

// unknown finds a sandbox without a record in this installation, or one that
// another installation has taken over.
func (b tenantSandboxes) unknown(ctx context.Context, e durable.Envelope) (store.Sandbox, error) {
	if err := b.reachable(ctx, e); err != nil {
		return store.Sandbox{}, err
	}
	binding, other := b.own.elsewhere(e.Binding)
	if !other {
		return store.Sandbox{}, gone(e.Sandbox, "this installation has no sandbox with that id")
	}
	spec := e.Spec
	spec.ID, spec.Provider = sandbox.ID(e.Sandbox), e.Backend
	return b.sandboxes.TakeOver(ctx, b.tenant, binding, spec)
}

// reachable refuses a sandbox unless this installation made it, or another one
// with the same provider account. Ids are not secret, so only the owner of the
// machine can take over sandboxes of other installations.
func (b tenantSandboxes) reachable(ctx context.Context, e durable.Envelope) error {
	err := b.own.has(e.Sandbox, e.Binding)
	binding, other := b.own.elsewhere(e.Binding)
	if err == nil || !other {
		return err
	}
	if have, bindErr := b.providers.Binding(ctx, e.Backend); bindErr != nil || have != binding {
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
func (b tenantSandboxes) wake(ctx context.Context, row *store.Sandbox) (durable.Outcome, error) {
	all, id := b.sandboxes, string(row.ID)
	switch row.State {
	case sandbox.Running:
		err := all.Reach(ctx, id)
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return durable.OutcomeAttached, err
		}
		if now, recordErr := b.record(ctx, id); recordErr != nil || now.State != sandbox.Failed {
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
func (b tenantSandboxes) Probe(context.Context, session.Sandbox) error { return nil }

// Hydrate implements session.Sandboxes. It reports the workspaces or the snapshot
// that the sandbox was made with, and unpacks an archive of files.
func (b tenantSandboxes) Hydrate(ctx context.Context, sb session.Sandbox, e durable.Envelope) (session.Sandbox, durable.ReceiptFrom, []string, error) {
	from := durable.ReceiptFrom{Archive: e.Archive}
	lost := []string{durable.LostProcesses, durable.LostMemory}
	for _, w := range b.saves() {
		found, err := b.workspaces.Workspace(ctx, w)
		if err != nil {
			return sb, from, nil, err
		}
		if found.Latest != nil {
			from.Workspaces = append(from.Workspaces, versionOf(w, found.Latest.Number))
		}
	}
	if e.Archive != nil && e.Archive.Kind == tarKind {
		if err := b.archives.unpack(ctx, b.tenant, sb.ID, *e.Archive); err != nil {
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
func (b tenantSandboxes) saves() (names []string) {
	for _, w := range b.row.Spec.Workspaces {
		if w.Mode != sandbox.WorkspaceRead {
			names = append(names, w.Name)
		}
	}
	return names
}

// Capture implements session.Sandboxes. It saves the workspaces. Without
// workspaces, it takes a snapshot of all files; if the provider cannot, or not
// while the sandbox runs, or is a node, it archives the files below /workspace.
func (b tenantSandboxes) Capture(ctx context.Context, sb session.Sandbox, e durable.Envelope) (durable.Envelope, error) {
	e.Archive, e.Workspaces = nil, nil
	b.sandboxes.Flush(ctx, sb.ID)
	note := "session " + b.row.Name
	for _, name := range b.saves() {
		version, err := b.workspaces.PersistWorkspace(ctx, name, note)
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			continue // a bucket has what was written already
		}
		if err != nil {
			return e, err
		}
		e.Workspaces = append(e.Workspaces, versionOf(name, version.Number))
	}
	if len(b.row.Spec.Workspaces) > 0 {
		return e, nil
	}
	facts, err := b.providers.Facts(ctx, sb.Provider)
	switch {
	case err != nil:
		return e, err
	case facts.Capabilities.Snapshot && !b.providers.OnNode(sb.Provider):
		e.Archive, err = b.snapshot(ctx, sb)
		if !b.held || sandbox.CodeOf(err) != sandbox.CodeConflict { // in use, so it cannot be stopped
			return e, err
		}
	}
	if carriesTree(b.row) {
		e.Archive, err = b.archives.pack(ctx, b.tenant, b.row.Group, sb)
	}
	return e, err
}

// snapshot saves all files of a sandbox.
func (b tenantSandboxes) snapshot(ctx context.Context, sb session.Sandbox) (*durable.Archive, error) {
	a := durable.Archive{Kind: snapshotKind, Ref: newID("archive-"), Provider: sb.Provider, Binding: string(b.own)}
	if err := b.archives.register(ctx, b.tenant, b.row.Group, a); err != nil {
		return nil, err
	}
	take := func() (durable.Snapshot, error) {
		return b.snapshots.CreateSnapshot(ctx, string(sb.ID), durable.SnapshotRequest{Name: a.Ref, Labels: map[string]string{durable.ArchiveLabel: b.row.Name}})
	}
	kept, err := take()
	if sandbox.CodeOf(err) == sandbox.CodeConflict && !b.held { // the provider saves only stopped sandboxes
		if _, err = b.sandboxes.Pause(ctx, string(sb.ID), true); err == nil {
			kept, err = take()
		}
	}
	if err != nil {
		b.Report(ctx, b.Discard(context.WithoutCancel(ctx), durable.Envelope{Archive: &a}))
		return nil, err
	}
	a.Size = kept.Size
	return &a, nil
}

// Discard implements session.Sandboxes. It keeps the current and the previous
// archive of the session. A later sweep removes archives that cannot be removed
// now.
func (b tenantSandboxes) Discard(ctx context.Context, prior durable.Envelope) error {
	a := prior.Archive
	if a == nil || b.archives.readable(ctx, b.tenant, *a) != nil {
		return nil
	}
	goes, err := store.Write(ctx, b.Store, func(tx *store.Tx) (bool, error) { return tx.Sessions().RetireArchive(ctx, b.tenant, a.Ref, false) })
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound: // an earlier version made it
		return b.archives.remove(ctx, b.tenant, *a)
	case err != nil:
		return err
	case !goes:
		return b.archives.tidy(ctx, b.tenant, b.row.Group)
	}
	return b.archives.deleteArchive(ctx, store.KeptArchive{Tenant: b.tenant, Archive: *a})
}

// Pause implements session.Sandboxes: to disk if possible, else in memory.
func (b tenantSandboxes) Pause(ctx context.Context, sb session.Sandbox) error {
	_, err := b.sandboxes.Pause(ctx, string(sb.ID), true)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		_, err = b.sandboxes.Pause(ctx, string(sb.ID), false)
	}
	return err
}

// Permanent implements session.Sandboxes.
func (b tenantSandboxes) Permanent(ctx context.Context, provider string) bool {
	return b.providers.Permanent(ctx, provider)
}

// Delete implements session.Sandboxes.
func (b tenantSandboxes) Delete(ctx context.Context, sb session.Sandbox) error {
	return ignore(b.sandboxes.Destroy(ctx, string(sb.ID)), sandbox.CodeNotFound, sandbox.CodeGone)
}

func ignore(err error, codes ...sandbox.Code) error {
	for _, code := range codes {
		if err != nil && sandbox.CodeOf(err) == code {
			return nil
		}
	}
	return err
}
