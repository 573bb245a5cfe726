package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Summary is the part of a record that listings return.
type Summary struct {
	sandbox.Sandbox
	Tenant string
	// Binding names the account, address or machine that the sandbox belongs to.
	// Empty: any of the provider's.
	Binding string
}

// Sandbox is the stored record of one sandbox.
type Sandbox struct {
	Summary
	Version int64 // increased by every change except changes of Active

	// Spec is the request. The values of its Env are not kept: they are empty.
	Spec   sandbox.Spec
	Active time.Time // last use
	Idle   Idle
	Rest   Rest
	Epoch  int64 // fencing number of its holder
	// metered is since when its time is counted, in Unix nanoseconds: 0 while none
	// is, ofSession if its session counts it.
	metered int64
}

// Info returns the sandbox as callers see it.
func (sb *Sandbox) Info() sandbox.Sandbox {
	s := sb.Sandbox
	s.Main, s.Ports = sb.Spec.Main, sb.Spec.Ports
	s.Pause, s.Wakes, s.Left, s.Lifetime = sb.Rest.Pause, sb.Rest.Wakes, sb.Rest.Left, sb.Spec.Lifetime
	return s
}

// Idle is the policy for a sandbox that is not used.
type Idle struct {
	After  time.Duration // zero: never
	Action string        // a sandbox.IdleAction
}

// Rest says where a sandbox's state is stored while it does not run, and which
// operation is in progress. It is zero for a running sandbox without an
// operation.
type Rest struct {
	Pause sandbox.PauseKind // of a paused sandbox
	// Step is the operation in progress. A daemon that finds one after a crash
	// finishes or undoes it.
	Step string
	// Kept is the id of the snapshot with its state.
	Kept string
	// Wakes says that it resumes when it is used.
	Wakes bool
	// Left is the remaining lifetime while it does not run.
	Left time.Duration
}

// holds reports whether the processors and memory of a sandbox in its state
// count. It matches [holding].
func (sb *Sandbox) holds() bool {
	switch sb.State {
	case sandbox.Stopped, sandbox.Failed, sandbox.Gone:
		return false
	}
	return sb.Rest.Pause != sandbox.PauseDisk
}

// sandboxColumns are all columns of a sandbox; listings read summaryColumns.
const (
	summaryColumns = "id, name, state, reason, provider, node, image, cpus, memory, disk, pids, labels_json, created, updated, expires, idle_after, idle_action, binding, limits_json, exit_json, isolation"
	sandboxColumns = summaryColumns +
		", version, tenant, active, epoch, spec_json, pause, step, kept, wakes, time_left, origin, metered"
)

// sandboxRow is the destination of a scanned row.
type sandboxRow struct {
	id, tenant, name, state, reason, provider, node, image string
	labels, exit, idleAction, spec                         string
	pause, step, kept, origin, binding, limits, isolation  string
	cpus                                                   float64
	memory, disk, pids, created, updated, expires, active  int64
	idleAfter, epoch, version, wakes, left, metered        int64
}

// summaryDest returns the destinations of summaryColumns.
func (r *sandboxRow) summaryDest() []any {
	return []any{
		&r.id, &r.name, &r.state, &r.reason, &r.provider, &r.node, &r.image, &r.cpus, &r.memory, &r.disk, &r.pids,
		&r.labels, &r.created, &r.updated, &r.expires, &r.idleAfter, &r.idleAction, &r.binding, &r.limits, &r.exit, &r.isolation,
	}
}

// dest returns the destinations of sandboxColumns.
func (r *sandboxRow) dest() []any {
	return append(r.summaryDest(),
		&r.version, &r.tenant, &r.active, &r.epoch, &r.spec,
		&r.pause, &r.step, &r.kept, &r.wakes, &r.left, &r.origin, &r.metered)
}

// summary returns the row as a Summary.
func (r *sandboxRow) summary() (Summary, error) {
	var limits map[string]sandbox.Enforcement
	labels, err := parseLabels(r.labels)
	if err == nil && r.limits != "" {
		err = json.Unmarshal([]byte(r.limits), &limits)
	}
	var exit *sandbox.Exit
	if err == nil && r.exit != "" {
		err = json.Unmarshal([]byte(r.exit), &exit)
	}
	return Summary{
		Sandbox: sandbox.Sandbox{
			ID: sandbox.ID(r.id), Name: r.name, State: sandbox.State(r.state), Reason: r.reason, Provider: r.provider, Isolation: sandbox.Isolation(r.isolation), Node: r.node, Image: r.image,
			Resources: sandbox.Resources{CPUs: r.cpus, Memory: r.memory, Disk: r.disk, PIDs: r.pids},
			Limits:    limits, Labels: labels, Exit: exit, Created: timeOf(r.created), Updated: timeOf(r.updated), Expires: timeOf(r.expires),
			Lifetime: sandbox.Lifetime{Idle: time.Duration(r.idleAfter), IdleAction: sandbox.IdleAction(r.idleAction)},
		},
		Tenant: r.tenant, Binding: r.binding,
	}, err
}

// parseLabels parses a column of labels. It returns nil if there are none.
func parseLabels(doc string) (labels map[string]string, err error) {
	if doc == "{}" {
		return nil, nil
	}
	err = json.Unmarshal([]byte(doc), &labels)
	return labels, err
}

// scanSummary returns a scanner of rows of a tenant with summaryColumns.
func scanSummary(tenant string) func(scanner) (Summary, error) {
	return func(row scanner) (Summary, error) {
		r := sandboxRow{tenant: tenant}
		if err := row.Scan(r.summaryDest()...); err != nil {
			return Summary{}, err
		}
		return r.summary()
	}
}

// scanSandbox scans a row with sandboxColumns.
func scanSandbox(row scanner) (Sandbox, error) {
	var r sandboxRow
	if err := row.Scan(r.dest()...); err != nil {
		return Sandbox{}, err
	}
	return r.sandbox()
}

func (r *sandboxRow) sandbox() (Sandbox, error) {
	summary, err := r.summary()
	if err != nil {
		return Sandbox{}, err
	}
	b := Sandbox{
		Summary: summary, Version: r.version, Active: timeOf(r.active),
		Idle:  Idle{After: time.Duration(r.idleAfter), Action: r.idleAction},
		Rest:  Rest{Pause: sandbox.PauseKind(r.pause), Step: r.step, Kept: r.kept, Wakes: r.wakes != 0, Left: time.Duration(r.left)},
		Epoch: r.epoch, metered: r.metered,
	}
	b.Origin = r.origin
	if r.spec != "" {
		err = json.Unmarshal([]byte(r.spec), &b.Spec)
	}
	return b, err
}

// Create contains options for a new sandbox.
type Create struct {
	// IdempotencyKey makes a repeated request return the sandbox of the first one.
	// Empty: every request creates a sandbox.
	IdempotencyKey string
	// Request is the complete request, including secrets. Only a keyed hash of it
	// is stored, to distinguish a repetition from another request with the same
	// key.
	Request []byte
	// OfSession says that the lease of a session counts the sandbox's time.
	OfSession bool
	// Retry, if set, reports whether the sandbox of the first request is unusable,
	// so that a repetition creates a new one.
	Retry func(*Sandbox) bool
}

// Sandboxes reads and changes the sandboxes of tenants.
type Sandboxes struct{ tx *Tx }

// Sandboxes returns the methods for sandboxes.
func (tx *Tx) Sandboxes() Sandboxes { return Sandboxes{tx} }

// Create records a new sandbox of a tenant, in the state Creating if b names
// none, within the tenant's limits. b.ID, b.Name and b.Resources are set;
// Create sets Created, Updated, Active and Version. The ID must be generated,
// not chosen by a caller: a conflict would reveal a sandbox of another tenant.
//
// replayed reports that the idempotency key was used before for the same
// request, and that the returned sandbox is the one it created, in its present
// state. The same key with another request is CodeConflict, a name in use
// CodeAlreadyExists, an exhausted quota CodeExhausted, a disabled tenant
// CodeDenied.
func (bs Sandboxes) Create(ctx context.Context, tenant string, b Sandbox, c Create) (out Sandbox, replayed bool, err error) {
	t, err := bs.tx.Tenants().Lock(ctx, tenant)
	if err != nil {
		return Sandbox{}, false, err
	}
	old, err := bs.replay(ctx, tenant, c)
	switch {
	case err != nil:
		return Sandbox{}, false, err
	case old == nil:
	case c.Retry == nil || !c.Retry(old):
		return *old, true, nil
	default:
		if err := bs.forget(ctx, tenant, c); err != nil {
			return Sandbox{}, false, err
		}
	}
	if !t.Disabled.IsZero() {
		return Sandbox{}, false, fail(sandbox.CodeDenied, tenant, "the tenant is disabled")
	}
	if err := bs.mayHave(ctx, t, nil, &b); err != nil {
		return Sandbox{}, false, err
	}
	if b.metered = 0; c.OfSession {
		b.metered = ofSession
	}
	if b, err = bs.insert(ctx, tenant, b); err != nil {
		return Sandbox{}, false, err
	}
	return b, false, bs.remember(ctx, tenant, c, b.ID)
}

// mayHave checks the limits of a locked tenant for a sandbox that changes from
// old to now. A nil old is a new sandbox.
func (bs Sandboxes) mayHave(ctx context.Context, t Tenant, old, now *Sandbox) error {
	if t.Limits == (operator.Limits{}) {
		return nil
	}
	used, err := bs.tx.Tenants().Usage(ctx, t.ID)
	if err != nil {
		return err
	}
	if old != nil {
		used.Sandboxes--
		used.Disk -= max(old.Resources.Disk, 0)
		if old.holds() {
			used.CPUs -= max(old.Resources.CPUs, 0)
			used.Memory -= max(old.Resources.Memory, 0)
		}
	}
	return quota.Check(t.Limits, used, now.Resources)
}

func (bs Sandboxes) insert(ctx context.Context, tenant string, b Sandbox) (Sandbox, error) {
	if err := sandbox.ValidateName(b.Name); err != nil {
		return b, err
	}
	if err := sandbox.ValidateName(string(b.ID)); err != nil {
		return b, fail(sandbox.CodeInvalid, "id", "%q is not a sandbox id", clip(string(b.ID)))
	}
	if err := sandbox.ValidateLabels(b.Labels); err != nil {
		return b, err
	}
	now := bs.tx.Now()
	b.Tenant, b.Created, b.Updated, b.Active, b.Version = tenant, now, now, now, 1
	if b.State == "" {
		b.State = sandbox.Creating
	}
	if b.Image == "" {
		b.Image = b.Spec.Image
	}
	b.Lifetime.Idle, b.Lifetime.IdleAction = b.Idle.After, sandbox.IdleAction(b.Idle.Action)
	meter(&b, &b, true)
	docs, err := encode(&b)
	if err != nil {
		return b, err
	}
	var taken int
	if err := bs.tx.queryRow(ctx, "SELECT COUNT(*) FROM sandboxes WHERE tenant = $1 AND name = $2 AND state <> 'gone'", tenant, b.Name).Scan(&taken); err != nil {
		return b, err
	}
	if taken > 0 {
		return b, nameTaken(b.Name)
	}
	n, err := bs.tx.exec(ctx, "INSERT INTO sandboxes ("+sandboxColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
		$24, $25, $26, $27, $28, $29, $30, $31, $32, $33)
		ON CONFLICT DO NOTHING`,
		string(b.ID), b.Name, string(b.State), b.Reason, b.Provider, b.Node, b.Image,
		b.Resources.CPUs, b.Resources.Memory, b.Resources.Disk, b.Resources.PIDs,
		docs.labels, nanos(b.Created), nanos(b.Updated), nanos(b.Expires), int64(b.Idle.After), b.Idle.Action,
		b.Binding, docs.limits, docs.exit, string(b.Isolation), b.Version, tenant, nanos(b.Active), b.Epoch, docs.spec,
		string(b.Rest.Pause), b.Rest.Step, b.Rest.Kept, flag(b.Rest.Wakes), int64(b.Rest.Left), b.Origin, b.metered)
	if err == nil && n == 0 {
		return b, fail(sandbox.CodeAlreadyExists, string(b.ID), "a sandbox with this id already exists")
	}
	if err != nil {
		return b, err
	}
	return b, bs.insertLabels(ctx, &b)
}

// flag is a boolean in its stored form.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func nameTaken(name string) error {
	return &sandbox.Error{
		Code: sandbox.CodeAlreadyExists, Subject: name, Message: "a sandbox with this name exists",
		Hint: "choose another name, or remove that sandbox first",
	}
}

type encoded struct{ labels, spec, exit, limits string }

// encode creates the JSON columns. It removes the values of the environment
// from b.Spec, because they may be secrets.
func encode(b *Sandbox) (d encoded, err error) {
	if len(b.Spec.Env) > 0 {
		env := make(map[string]string, len(b.Spec.Env))
		for k := range b.Spec.Env {
			env[k] = ""
		}
		b.Spec.Env = env
	}
	for dst, v := range map[*string]any{&d.labels: b.Labels, &d.spec: b.Spec, &d.exit: b.Exit, &d.limits: b.Limits} {
		doc, err := json.Marshal(v)
		if err != nil {
			return d, err
		}
		*dst = string(doc)
	}
	if len(b.Labels) == 0 {
		d.labels = "{}"
	}
	if b.Exit == nil {
		d.exit = ""
	}
	if len(b.Limits) == 0 {
		d.limits = ""
	}
	return d, nil
}

func (bs Sandboxes) insertLabels(ctx context.Context, b *Sandbox) error {
	for _, name := range slices.Sorted(maps.Keys(b.Labels)) {
		if _, err := bs.tx.exec(ctx, "INSERT INTO sandbox_labels (sandbox, tenant, name, value) VALUES ($1, $2, $3, $4)",
			string(b.ID), b.Tenant, name, b.Labels[name]); err != nil {
			return err
		}
	}
	return nil
}

// Get returns a tenant's sandbox by its ID, even if it is gone. A missing
// sandbox, or one of another tenant, is CodeNotFound.
func (bs Sandboxes) Get(ctx context.Context, tenant string, id sandbox.ID) (Sandbox, error) {
	b, err := scanSandbox(bs.tx.queryRow(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE tenant = $1 AND id = $2", tenant, string(id)))
	return b, missing(err, "sandbox", string(id))
}

// Find returns the sandbox that has a name now. It is not gone.
func (bs Sandboxes) Find(ctx context.Context, tenant, name string) (Sandbox, error) {
	b, err := scanSandbox(bs.tx.queryRow(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE tenant = $1 AND name = $2 AND state <> 'gone'", tenant, name))
	return b, missing(err, "sandbox", name)
}

// Lookup returns the sandbox with ref as its present name, else the one with
// ref as its id, which may be gone.
func (bs Sandboxes) Lookup(ctx context.Context, tenant, ref string) (Sandbox, error) {
	b, err := scanSandbox(bs.tx.queryRow(ctx, "SELECT "+sandboxColumns+` FROM sandboxes
		WHERE tenant = $1 AND (name = $2 AND state <> 'gone' OR id = $2)
		ORDER BY CASE WHEN name = $2 AND state <> 'gone' THEN 0 ELSE 1 END LIMIT 1`, tenant, ref))
	return b, missing(err, "sandbox", ref)
}

// Removed returns the sandbox that had a name last and is gone. If its record
// was purged, the error is CodeNotFound.
func (bs Sandboxes) Removed(ctx context.Context, tenant, name string) (Sandbox, error) {
	b, err := scanSandbox(bs.tx.queryRow(ctx, "SELECT "+sandboxColumns+` FROM sandboxes
		WHERE tenant = $1 AND name = $2 AND state = 'gone' ORDER BY created DESC LIMIT 1`, tenant, name))
	return b, missing(err, "sandbox", name)
}

// Labels returns the labels of a tenant's sandbox, even if it is gone; nil if
// there is no such sandbox.
func (bs Sandboxes) Labels(ctx context.Context, tenant string, id sandbox.ID) (labels map[string]string, err error) {
	var doc string
	err = bs.tx.queryRow(ctx, "SELECT labels_json FROM sandboxes WHERE tenant = $1 AND id = $2", tenant, string(id)).Scan(&doc)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return parseLabels(doc)
}

// Expect is the precondition of a change. The zero value expects nothing.
type Expect struct {
	States  []sandbox.State // it must be in one of them, else CodeConflict
	Version int64           // it must have this version, else CodeConflict
	Node    string          // this node must hold it, else CodeStale
	Epoch   int64           // its holder must have this number, else CodeStale
	// Observed says that the change records an observed state, not a request, so
	// no limit applies.
	Observed bool
}

// Update changes a tenant's sandbox if it is as expected, and returns the new
// record. change is called with the present record and changes anything but ID,
// Tenant, Name, Created, Origin and Version. A change that needs more
// resources, by size or by state, is checked against the tenant's limits.
func (bs Sandboxes) Update(ctx context.Context, tenant string, id sandbox.ID, want Expect, change func(*Sandbox)) (Sandbox, error) {
	old, err := scanSandbox(bs.tx.queryRow(ctx, "SELECT "+sandboxColumns+" FROM sandboxes WHERE tenant = $1 AND id = $2"+bs.tx.s.dialect.forUpdate(), tenant, string(id)))
	if err != nil {
		return old, missing(err, "sandbox", string(id))
	}
	if err := want.check(&old); err != nil {
		return old, err
	}
	b := old
	b.Labels = maps.Clone(old.Labels)
	change(&b)
	b.ID, b.Tenant, b.Name, b.Created, b.Origin, b.Version = old.ID, old.Tenant, old.Name, old.Created, old.Origin, old.Version+1
	b.Updated = bs.tx.Now()
	if err := bs.allowed(ctx, want, &old, &b); err != nil {
		return old, err
	}
	return b, bs.save(ctx, &old, &b)
}

// allowed refuses invalid changes, and changes that exceed the tenant's limits.
func (bs Sandboxes) allowed(ctx context.Context, want Expect, old, b *Sandbox) error {
	if old.State == sandbox.Gone && b.State != sandbox.Gone {
		return &sandbox.Error{Code: sandbox.CodeGone, Subject: b.Name, Message: "the sandbox is gone"}
	}
	if err := sandbox.ValidateLabels(b.Labels); err != nil {
		return err
	}
	if want.Observed || !grows(old, b) {
		return nil
	}
	t, err := bs.tx.Tenants().Lock(ctx, b.Tenant)
	if err != nil {
		return err
	}
	return bs.mayHave(ctx, t, old, b)
}

func grows(old, b *Sandbox) bool {
	return more(old.Resources.Disk, b.Resources.Disk) || old.Resources.PIDs >= 0 && b.Resources.PIDs < 0 ||
		b.holds() && (!old.holds() || more(old.Resources.CPUs, b.Resources.CPUs) || more(old.Resources.Memory, b.Resources.Memory))
}

// more reports whether a limit is raised. A negative limit means no limit,
// which is more than any.
func more[T int64 | float64](old, now T) bool { return old >= 0 && (now < 0 || now > old) }

func (bs Sandboxes) save(ctx context.Context, old, b *Sandbox) error {
	docs, err := encode(b)
	if err != nil {
		return err
	}
	sameLabels := maps.Equal(old.Labels, b.Labels)
	began, ended := meter(old, b, sameLabels)
	n, err := bs.tx.exec(ctx, `UPDATE sandboxes SET state = $1, reason = $2, provider = $3, node = $4, image = $5,
		cpus = $6, memory = $7, disk = $8, pids = $9, labels_json = $10, exit_json = $11, updated = $12, expires = $13, active = $14,
		idle_after = $15, idle_action = $16, epoch = $17, version = $18, spec_json = $19,
		pause = $20, step = $21, kept = $22, wakes = $23, time_left = $24, binding = $25, limits_json = $26, metered = $27, isolation = $28 WHERE id = $29 AND version = $30`,
		string(b.State), b.Reason, b.Provider, b.Node, b.Image,
		b.Resources.CPUs, b.Resources.Memory, b.Resources.Disk, b.Resources.PIDs, docs.labels, docs.exit,
		nanos(b.Updated), nanos(b.Expires), nanos(b.Active), int64(b.Idle.After), b.Idle.Action, b.Epoch, b.Version, docs.spec,
		string(b.Rest.Pause), b.Rest.Step, b.Rest.Kept, flag(b.Rest.Wakes), int64(b.Rest.Left), b.Binding, docs.limits, b.metered, string(b.Isolation), string(b.ID), old.Version)
	switch {
	case err != nil:
		return err
	case n == 0:
		return fail(sandbox.CodeConflict, b.Name, "was changed at the same time")
	}
	if err := bs.addTime(ctx, old, began, ended); err != nil || sameLabels {
		return err
	}
	if _, err := bs.tx.exec(ctx, "DELETE FROM sandbox_labels WHERE sandbox = $1", string(b.ID)); err != nil {
		return err
	}
	return bs.insertLabels(ctx, b)
}

func (want *Expect) check(b *Sandbox) error {
	switch {
	case len(want.States) > 0 && !slices.Contains(want.States, b.State):
		if b.State == sandbox.Gone {
			return &sandbox.Error{Code: sandbox.CodeGone, Subject: b.Name, Message: "the sandbox is gone"}
		}
		return fail(sandbox.CodeConflict, b.Name, "is %s, not %s", b.State, either(want.States))
	case want.Version != 0 && want.Version != b.Version:
		return fail(sandbox.CodeConflict, b.Name, "is at version %d, not %d", b.Version, want.Version)
	case want.Node != "" && want.Node != b.Node:
		return fail(sandbox.CodeStale, b.Name, "is held by another node")
	case want.Epoch != 0 && want.Epoch != b.Epoch:
		return fail(sandbox.CodeStale, b.Name, "was taken over: its epoch is %d, not %d", b.Epoch, want.Epoch)
	}
	return nil
}

func either(states []sandbox.State) string {
	var b strings.Builder
	for i, s := range states {
		if i > 0 {
			b.WriteString(" or ")
		}
		fmt.Fprint(&b, s)
	}
	return b.String()
}

// Touch records that a tenant's sandbox was used at a time. It does not change
// the version, so it does not affect any [Expect]. A time before the recorded
// one is stored only if the recorded one is in the future.
func (bs Sandboxes) Touch(ctx context.Context, tenant string, id sandbox.ID, at time.Time) error {
	n, err := bs.tx.exec(ctx, `UPDATE sandboxes SET active = CASE WHEN active < $1 OR active > $2 THEN $1 ELSE active END
		WHERE tenant = $3 AND id = $4 AND state <> 'gone'`, nanos(at), nanos(bs.tx.Now()), tenant, string(id))
	return oneRow(n, err, "sandbox", string(id))
}
