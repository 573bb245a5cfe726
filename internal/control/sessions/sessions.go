// Package sessions is the control service for sessions: what an agent holds
// instead of a sandbox. A session has a name and a Spec, and always leads to the
// one sandbox that serves it now.
//
// The rules of who may make, use and end that sandbox are those of packages
// lease and session. This package connects them to the store and to the
// sandboxes of this daemon.
package sessions

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes is what sessions need of the sandboxes of this daemon. A ref is an
// id. Errors are classified; CodeGone is proof that the sandbox is gone.
type Sandboxes interface {
	// Make makes a sandbox. The key identifies the request: the same one returns
	// what it made. The workspaces of the sandbox that it replaces, if any, are
	// shared with it.
	Make(ctx context.Context, spec sandbox.Spec, key string, replaces sandbox.ID) (sandbox.ID, error)
	// Reach asks the provider for a running sandbox.
	Reach(ctx context.Context, ref string) error
	Resume(ctx context.Context, ref string) (store.Sandbox, error)
	Start(ctx context.Context, ref string) (store.Sandbox, error)
	Pause(ctx context.Context, ref string, toDisk bool) (store.Sandbox, error)
	Destroy(ctx context.Context, ref string) error
	// TakeOver records a sandbox that another installation made with the account,
	// address or machine that a provider of this one has too. CodeGone: it ended.
	TakeOver(ctx context.Context, tenant, binding string, spec sandbox.Spec) (store.Sandbox, error)
	// Files reaches the files of a running sandbox, until ctx ends.
	Files(ctx context.Context, ref string) (control.Files, error)
}

// Providers are those that a session can move to.
type Providers interface {
	Providers(ctx context.Context) ([]sandbox.Provider, error)
	// Binding returns what the sandboxes of a provider belong to.
	Binding(ctx context.Context, provider string) (string, error)
	// Present returns the present name of a binding in a record.
	Present(ctx context.Context, provider, binding string) string
	// Facts tells what a provider can do, as far as that is known.
	Facts(ctx context.Context, provider string) (driver.Facts, error)
	// CheckImage refuses an image that no sandbox of a provider can be made from.
	// An empty image is the provider's own.
	CheckImage(ctx context.Context, provider, image string) error
	// Permanent reports whether the sandboxes of a provider are machines of their
	// users.
	Permanent(ctx context.Context, name string) bool
	// SnapshotPauses reports whether a provider pauses a sandbox while it takes a
	// snapshot of it.
	SnapshotPauses(ctx context.Context, name string) bool
	// Permit returns why somebody may not choose a provider.
	Permit(who key.Principal, name string) error
}

// Snapshots keeps the files of sandboxes without a workspace.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, ref string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error)
	RemoveSnapshot(ctx context.Context, ref string) error
}

// Workspaces saves workspaces.
type Workspaces interface {
	PersistWorkspace(ctx context.Context, name, note string) (sandbox.WorkspaceVersion, error)
	Workspace(ctx context.Context, name string) (sandbox.Workspace, error)
}

// Environments keep the environments of sessions, which may be secret, by the
// ids of the sessions.
type Environments interface {
	Put(id sandbox.ID, env map[string]string) error
	Get(id sandbox.ID) (map[string]string, error)
	Remove(id sandbox.ID) error
}

// Config is what a Service works with.
type Config struct {
	Sandboxes    Sandboxes
	Snapshots    Snapshots
	Providers    Providers
	Workspaces   Workspaces
	Environments Environments
	// Archive keeps the files of sandboxes whose provider takes no snapshots,
	// encrypted unless Plain is set. They pass through Scratch, a directory. Nil:
	// such sandboxes cannot be saved.
	Archive *archive.Archive
	Plain   bool
	Scratch string
	// Binding is that of sandboxes whose provider has none: it names this
	// installation.
	Binding string
	// Lease are the durations. The zero value is lease.Default.
	Lease lease.Config
	// Observer is told what happens to leases. Nil: nobody is.
	Observer Observer
}

// Observer counts what happens to leases. Its methods may be called concurrently.
type Observer interface {
	// Acquired is told how long a holder waited for the sandbox, and the role it
	// got; "failed": none.
	Acquired(role string, took time.Duration)
	Rotated()     // a sandbox is to be replaced before its deadline
	Evicted()     // a sandbox is saved while it has holders
	OrphanEnded() // a sandbox that nobody wanted was ended
}

type nobody struct{}

func (nobody) Acquired(string, time.Duration) {}
func (nobody) Rotated()                       {}
func (nobody) Evicted()                       {}
func (nobody) OrphanEnded()                   {}

// Service keeps the sessions of all tenants. Its methods may be called
// concurrently.
type Service struct {
	*core.Core
	cfg     Config
	present presences
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service {
	if cfg.Lease == (lease.Config{}) {
		cfg.Lease = lease.Default()
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return &Service{Core: c, cfg: cfg}
}

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:16]) }

// Create makes a session, and acquires its sandbox if the request has a holder.
func (s *Service) Create(ctx context.Context, n sandbox.NewSession) (out sandbox.Opened, err error) {
	const op = ops.SessionCreate
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	row, env, err := newSession(who.Tenant, n)
	if err != nil {
		return out, core.Named(op, err)
	}
	var stored store.Session
	err = s.Do(ctx, op, guard.Subject{Subject: row.Name}, func(ctx context.Context) error {
		stored, out.Created, err = s.add(ctx, row, env, n.IfExists == sandbox.IfExistsAttach)
		return err
	})
	if err != nil {
		return out, core.Named(op, err)
	}
	return s.opened(ctx, stored, out, n.Holder)
}

// newSession returns the record of a session, and its environment.
func newSession(tenant string, n sandbox.NewSession) (row store.Session, env map[string]string, err error) {
	id := newID("se-")
	spec := n.Spec
	spec.ID, spec.Name = "", ""
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, n.Labels)
	spec.Labels = nil
	row = store.Session{Tenant: tenant, Session: sandbox.Session{
		ID: id, Name: cmp.Or(n.Name, id), Group: cmp.Or(n.Group, id), Provider: spec.Provider, Spec: spec, Labels: labels, PauseOnExit: n.PauseOnExit,
	}}
	return row, spec.Env, check(&row)
}

// check refuses a session that can never have a sandbox.
func check(row *store.Session) error {
	for _, name := range []string{row.Name, row.Group} {
		if err := sandbox.ValidateName(name); err != nil {
			return err
		}
	}
	if err := row.Spec.Validate(); err != nil {
		return err
	}
	if len(row.Spec.Ports) > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "ports", Message: "the sandboxes of a session have no published ports, because one may follow another at any time",
			Hint: "forward a port of the session with: atoll port forward",
		}
	}
	if p := row.Spec.Network.Inline; p != nil && p.Proxy != nil && p.Proxy.Password != "" {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "proxy.password", Message: "a session keeps no password of a proxy",
			Hint: "store a profile with the proxy, and name it in the session",
		}
	}
	for k := range row.Labels {
		if strings.HasPrefix(k, control.ReservedPrefix) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "labels", Message: fmt.Sprintf("%.80q begins with %q, which Atoll keeps for itself", k, control.ReservedPrefix)}
		}
	}
	return sandbox.ValidateLabels(row.Labels)
}

// add records a session. With attach, one of that name is returned instead.
func (s *Service) add(ctx context.Context, row store.Session, env map[string]string, attach bool) (stored store.Session, created bool, err error) {
	if attach {
		stored, err = s.find(ctx, row.Tenant, row.Name)
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return stored, false, err
		}
	}
	if len(env) > 0 {
		if err := s.cfg.Environments.Put(sandbox.ID(row.ID), env); err != nil {
			return stored, false, err
		}
	}
	stored, err = store.Write(ctx, s.Store, func(tx *store.Tx) (store.Session, error) { return tx.Sessions().Create(ctx, row) })
	if err == nil {
		return stored, true, nil
	}
	s.Report(ctx, s.cfg.Environments.Remove(sandbox.ID(row.ID)))
	if attach && sandbox.CodeOf(err) == sandbox.CodeAlreadyExists { // somebody was faster
		stored, err = s.find(ctx, row.Tenant, row.Name)
	}
	return stored, false, err
}

// opened acquires the sandbox of a session, if that was asked for, and describes
// both.
func (s *Service) opened(ctx context.Context, row store.Session, out sandbox.Opened, holder *sandbox.HolderRef) (sandbox.Opened, error) {
	if holder != nil {
		got, err := s.Acquire(ctx, row.ID, *holder)
		if err != nil && out.Created { // the request failed as a whole
			s.Report(ctx, s.remove(context.WithoutCancel(ctx), row))
		}
		if err != nil {
			return out, err
		}
		out.Receipt = &got.Receipt
	}
	var err error
	out.Session, err = s.described(ctx, row.Tenant, row.ID)
	return out, err
}

// find reads a session of a tenant that is not being removed.
func (s *Service) find(ctx context.Context, tenant, ref string) (store.Session, error) {
	row, err := s.findAny(ctx, tenant, ref)
	if err == nil && row.Removing {
		err = &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: row.Name, Message: "the session is being removed",
			Hint: "finish that with: atoll session rm " + row.Name,
		}
	}
	return row, err
}

func (s *Service) findAny(ctx context.Context, tenant, ref string) (store.Session, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return store.Session{}, err
	}
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Session, error) { return tx.Sessions().Get(ctx, tenant, ref) })
}

// described returns a session with its lease.
func (s *Service) described(ctx context.Context, tenant, ref string) (out sandbox.Session, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		row, err := tx.Sessions().Get(ctx, tenant, ref)
		if err != nil {
			return err
		}
		if out, err = describe(ctx, tx, row, s.cfg.Lease.Grace); err == nil {
			out.Lease.History, err = tx.Sessions().Epochs(ctx, row.Tenant, row.Group, maxHistory)
		}
		return err
	})
	return out, err
}

// maxHistory is how many epochs of a session are shown.
const maxHistory = 20

func describe(ctx context.Context, tx *store.Tx, row store.Session, grace time.Duration) (sandbox.Session, error) {
	l, err := tx.Sessions().Lease(ctx, row.Tenant, row.Group)
	out := row.Session
	out.Lease = &sandbox.LeaseInfo{
		State: string(l.State), Epoch: l.Epoch, Provider: l.Provider, Sandbox: l.Sandbox, Holders: []sandbox.Holder{}, Expires: l.Expires,
	}
	for _, h := range l.Holders {
		out.Lease.Holders = append(out.Lease.Holders, sandbox.Holder{Kind: string(h.Kind), ID: h.ID, Subject: h.Subject, Beat: h.Beat})
	}
	if l.State == lease.Draining && !l.Expires.IsZero() && !l.Rotating {
		out.Lease.Idle = l.Expires.Add(-grace)
	}
	return out, err
}

// Get returns a session by its name or id.
func (s *Service) Get(ctx context.Context, ref string) (sandbox.Session, error) {
	const op = ops.SessionGet
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return sandbox.Session{}, err
	}
	if err := sandbox.ValidateName(ref); err != nil {
		return sandbox.Session{}, core.Named(op, err)
	}
	out, err := s.described(ctx, who.Tenant, ref)
	return out, core.Named(op, err)
}

// List returns the sessions of the tenant that have all of the labels, by name.
func (s *Service) List(ctx context.Context, labels map[string]string) (out []sandbox.Session, err error) {
	const op = ops.SessionList
	who, err := s.Look(ctx, op, "")
	if err != nil {
		return nil, err
	}
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		out = nil
		rows, err := tx.Sessions().List(ctx, who.Tenant)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if !matches(row.Labels, labels) {
				continue
			}
			one, err := describe(ctx, tx, row, s.cfg.Lease.Grace)
			if err != nil {
				return err
			}
			out = append(out, one)
		}
		return nil
	})
	return out, core.Named(op, err)
}

func matches(labels, wanted map[string]string) bool {
	for k, v := range wanted {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Update changes labels and what happens to the sandbox when nobody needs it.
func (s *Service) Update(ctx context.Context, ref string, c sandbox.SessionChange) (out sandbox.Session, err error) {
	const op = ops.SessionUpdate
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	err = s.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		row, err := s.find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		_, err = s.change(ctx, row, func(row *store.Session) error {
			for k, v := range c.Labels {
				if v == nil {
					delete(row.Labels, k)
				} else {
					row.Labels[k] = *v
				}
			}
			if c.PauseOnExit != nil {
				row.PauseOnExit = *c.PauseOnExit
			}
			return check(row)
		})
		if err == nil {
			out, err = s.described(ctx, who.Tenant, row.ID)
		}
		return err
	})
	return out, core.Named(op, err)
}

// change changes what is recorded of a session.
func (s *Service) change(ctx context.Context, row store.Session, change func(*store.Session) error) (store.Session, error) {
	return store.Write(ctx, s.Store, func(tx *store.Tx) (store.Session, error) {
		row, err := tx.Sessions().Get(ctx, row.Tenant, row.ID)
		if err != nil {
			return row, err
		}
		if row.Labels == nil {
			row.Labels = map[string]string{}
		}
		if err := change(&row); err != nil {
			return row, err
		}
		return row, tx.Sessions().Update(ctx, row)
	})
}

// Remove removes a session. The last of its group takes the sandbox and what was
// saved of it along; workspaces stay. A removal that failed half way is finished
// by another.
func (s *Service) Remove(ctx context.Context, ref string) error {
	const op = ops.SessionRemove
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return core.Named(op, s.Do(ctx, op, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		row, err := s.findAny(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		row, err = s.change(ctx, row, func(row *store.Session) error {
			row.Removing = true
			return nil
		})
		if err != nil {
			return err
		}
		return s.remove(ctx, row)
	}))
}

// maxRemovals bounds how many sandboxes are ended for one removal: callers that
// were making one meanwhile are refused, and remove it themselves.
const maxRemovals = 5

func (s *Service) remove(ctx context.Context, row store.Session) error {
	for range maxRemovals {
		l, last, err := s.lastOf(ctx, row)
		if err != nil {
			return err
		}
		if last {
			if err := s.clear(ctx, row.Tenant, l); err != nil {
				return err
			}
		}
		done, err := s.forget(ctx, row, l, last)
		if err != nil || done {
			return err
		}
	}
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: row.Name, Message: "others use the session", Hint: "try again"}
}

// lastOf returns the lease of a session, and whether no other session has it.
func (s *Service) lastOf(ctx context.Context, row store.Session) (l lease.Lease, last bool, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) (err error) {
		l, last, err = lastOf(ctx, tx, row)
		return err
	})
	return l, last, err
}

func lastOf(ctx context.Context, tx *store.Tx, row store.Session) (l lease.Lease, last bool, err error) {
	others, err := tx.Sessions().InGroup(ctx, row.Tenant, row.Group)
	if err != nil {
		return l, false, err
	}
	last = true
	for _, o := range others {
		last = last && (o.ID == row.ID || o.Removing)
	}
	l, err = tx.Sessions().Lease(ctx, row.Tenant, row.Group)
	return l, last, err
}

// clear ends the sandbox of a lease and removes what was saved of it.
func (s *Service) clear(ctx context.Context, tenant string, l lease.Lease) error {
	b := s.boxes(tenant, nil)
	if l.Sandbox != "" {
		if err := b.Delete(ctx, session.Box{ID: l.Sandbox, Provider: l.Provider, Binding: l.Binding}); err != nil {
			return err
		}
	}
	if err := b.orphans(ctx, l, true); err != nil {
		return err
	}
	s.Report(ctx, s.retire(ctx, tenant, l.Group)) // a sweep tries again
	if l.Archive == nil {
		return nil
	}
	e, err := sandbox.ParseEnvelope(l.Archive)
	if err != nil {
		return nil //nolint:nilerr // nobody can use what nobody can read
	}
	return b.Discard(ctx, e)
}

// forget drops the records of a session, unless its lease changed since it was
// read.
func (s *Service) forget(ctx context.Context, row store.Session, seen lease.Lease, last bool) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		done = false
		l, still, err := lastOf(ctx, tx, row)
		if err != nil || still != last {
			return err
		}
		if last {
			if l.Sandbox != seen.Sandbox || l.Attempt != seen.Attempt {
				return nil
			}
			if err := tx.Sessions().ForgetLease(ctx, row.Tenant, row.Group, row.Group == row.ID); err != nil {
				return err
			}
		}
		done = true
		return tx.Sessions().Remove(ctx, row.Tenant, row.ID)
	})
	if done && err == nil {
		s.Report(ctx, s.cfg.Environments.Remove(sandbox.ID(row.ID)))
	}
	return done, err
}
