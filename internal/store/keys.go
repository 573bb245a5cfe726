package store

import (
	"context"
	"strings"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Key is the stored record of an API key. It can verify the key but does not
// contain it.
type Key struct {
	operator.Key
	Tenant string
	Hash   []byte // see package key
	// TenantDisabled is read with the key but stored with the tenant.
	TenantDisabled bool
}

const keyQuery = `SELECT k.id, k.tenant, k.name, k.hash, k.verbs, k.created, k.expires, k.revoked, t.disabled
	FROM keys k JOIN tenants t ON t.id = k.tenant WHERE `

func scanKey(row scanner) (k Key, err error) {
	var verbs string
	var created, expires, revoked, disabled int64
	err = row.Scan(&k.ID, &k.Tenant, &k.Name, &k.Hash, &verbs, &created, &expires, &revoked, &disabled)
	k.Created, k.Expires, k.Revoked, k.TenantDisabled = timeOf(created), timeOf(expires), timeOf(revoked), disabled != 0
	k.Verbs = strings.Fields(verbs)
	return k, err
}

// AddKey records a key, whose ID must be new.
func (ts Tenants) AddKey(ctx context.Context, k Key) error {
	if err := ts.tx.room(ctx, "keys WHERE revoked = 0", k.Tenant, maxKeys); err != nil {
		return err
	}
	_, err := ts.tx.exec(ctx, "INSERT INTO keys (id, tenant, name, hash, verbs, created, expires) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		k.ID, k.Tenant, k.Name, k.Hash, strings.Join(k.Verbs, " "), nanos(k.Created), nanos(k.Expires))
	return err
}

// Keys lists the keys of a tenant, revoked and expired ones included, oldest
// first.
func (ts Tenants) Keys(ctx context.Context, tenant string) ([]Key, error) {
	rows, err := ts.tx.query(ctx, keyQuery+"k.tenant = $1 ORDER BY k.created, k.id", tenant)
	return collect(rows, err, scanKey)
}

// RevokeKey revokes a key of a tenant immediately. Revoking again changes
// nothing. A key of another tenant is CodeNotFound.
func (ts Tenants) RevokeKey(ctx context.Context, tenant, id string) error {
	n, err := ts.tx.exec(ctx, "UPDATE keys SET revoked = CASE WHEN revoked = 0 THEN $1 ELSE revoked END WHERE tenant = $2 AND id = $3",
		nanos(ts.tx.Now()), tenant, id)
	return oneRow(n, err, "key", id)
}

// RemoveKey removes a key of a tenant, as if it had never been known. A key of
// another tenant is CodeNotFound.
func (ts Tenants) RemoveKey(ctx context.Context, tenant, id string) error {
	n, err := ts.tx.exec(ctx, "DELETE FROM keys WHERE tenant = $1 AND id = $2", tenant, id)
	return oneRow(n, err, "key", id)
}
