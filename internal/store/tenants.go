package store

import (
	"context"
	"encoding/json"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Tenant is one customer of the daemon. Tenants are isolated from each other.
type Tenant struct {
	operator.Tenant       // without Usage, which [Tenants.Usage] counts
	Version         int64 // increased by every change
}

const tenantColumns = "id, created, disabled, limits_json, version"

func scanTenant(row scanner) (t Tenant, err error) {
	var created, disabled int64
	var limits []byte
	if err := row.Scan(&t.ID, &created, &disabled, &limits, &t.Version); err != nil {
		return t, err
	}
	t.Created, t.Disabled = timeOf(created), timeOf(disabled)
	return t, json.Unmarshal(limits, &t.Limits)
}

// Tenants reads and changes tenants, their limits and their API keys.
type Tenants struct{ tx *Tx }

// Tenants returns the methods for tenants.
func (tx *Tx) Tenants() Tenants { return Tenants{tx} }

// Get returns a tenant; an unknown one is CodeNotFound.
func (ts Tenants) Get(ctx context.Context, tenant string) (Tenant, error) {
	t, err := scanTenant(ts.tx.queryRow(ctx, "SELECT "+tenantColumns+" FROM tenants WHERE id = $1", tenant))
	return t, missing(err, "tenant", tenant)
}

// Lock is like Get. Until the transaction ends, others cannot change anything
// that depends on the tenant as a whole.
func (ts Tenants) Lock(ctx context.Context, tenant string) (Tenant, error) {
	t, err := scanTenant(ts.tx.queryRow(ctx, "SELECT "+tenantColumns+" FROM tenants WHERE id = $1"+ts.tx.s.dialect.forUpdate(), tenant))
	return t, missing(err, "tenant", tenant)
}

// Ensure returns a tenant, and creates it if it is missing.
func (ts Tenants) Ensure(ctx context.Context, tenant string) (Tenant, error) {
	if err := sandbox.ValidateName(tenant); err != nil {
		return Tenant{}, fail(sandbox.CodeInvalid, "tenant", "%q is not the name of a tenant, which is 1 to 63 characters of a-z, 0-9 and -, beginning with a letter", clip(tenant))
	}
	_, err := ts.tx.exec(ctx, "INSERT INTO tenants (id, created) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING", tenant, nanos(ts.tx.Now()))
	if err != nil {
		return Tenant{}, err
	}
	return ts.Get(ctx, tenant)
}

// SetLimits changes the limits of a tenant. Existing usage is not affected.
func (ts Tenants) SetLimits(ctx context.Context, tenant string, l operator.Limits) error {
	if err := l.Validate(); err != nil {
		return err
	}
	doc, err := json.Marshal(l)
	if err != nil {
		return err
	}
	n, err := ts.tx.exec(ctx, "UPDATE tenants SET limits_json = $1, version = version + 1 WHERE id = $2", string(doc), tenant)
	return oneRow(n, err, "tenant", tenant)
}

// Disable refuses the tenant's keys and new sandboxes from now on, or allows
// them again. Existing sandboxes do not change.
func (ts Tenants) Disable(ctx context.Context, tenant string, disabled bool) error {
	var at int64
	if disabled {
		at = nanos(ts.tx.Now())
	}
	n, err := ts.tx.exec(ctx, "UPDATE tenants SET disabled = $1, version = version + 1 WHERE id = $2", at, tenant)
	return oneRow(n, err, "tenant", tenant)
}

// holding selects sandboxes that may use processors and memory. A lost sandbox
// may still run, and one paused in memory keeps its memory.
const holding = "(state IN ('creating', 'running', 'pausing', 'paused', 'resuming', 'lost') AND pause <> 'disk')"

// Usage counts what a tenant uses.
func (ts Tenants) Usage(ctx context.Context, tenant string) (u operator.TenantUsage, err error) {
	err = ts.tx.queryRow(ctx, `SELECT COUNT(*),
		CAST(COALESCE(SUM(CASE WHEN cpus > 0 AND `+holding+` THEN cpus END), 0) AS DOUBLE PRECISION),
		CAST(COALESCE(SUM(CASE WHEN memory > 0 AND `+holding+` THEN memory END), 0) AS BIGINT),
		CAST(COALESCE(SUM(CASE WHEN disk > 0 THEN disk END), 0) AS BIGINT)
		FROM sandboxes WHERE tenant = $1 AND state <> 'gone'`, tenant).Scan(&u.Sandboxes, &u.CPUs, &u.Memory, &u.Disk)
	if err != nil {
		return u, err
	}
	err = ts.tx.queryRow(ctx, `SELECT COUNT(CASE WHEN name <> '' THEN 1 END), CAST(COALESCE(SUM(size), 0) AS BIGINT)
		FROM snapshots WHERE tenant = $1`, tenant).Scan(&u.Snapshots, &u.SnapshotBytes)
	return u, err
}

// oneRow converts "nothing was changed" to CodeNotFound.
func oneRow(n int64, err error, what, subject string) error {
	if err == nil && n == 0 {
		return fail(sandbox.CodeNotFound, subject, "no such %s", what)
	}
	return err
}
