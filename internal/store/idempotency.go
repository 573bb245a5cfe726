package store

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"errors"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const maxIdempotencyKey = 255

// keyHash is the stored form of an idempotency key. The key itself is not
// stored, because it keys the fingerprint.
func (c *Create) keyHash(tenant string) []byte {
	h := sha256.Sum256([]byte("atoll idempotency key\x00" + tenant + "\x00" + c.IdempotencyKey))
	return h[:]
}

// fingerprint identifies a request. Secrets in a request could be guessed from
// a plain hash, so the hash is keyed with the idempotency key, which only the
// caller knows.
func (c *Create) fingerprint() []byte {
	m := hmac.New(sha256.New, []byte("atoll request\x00"+c.IdempotencyKey))
	m.Write(c.Request)
	return m.Sum(nil)
}

// replay returns the sandbox that an earlier request with the same key made,
// or nil. The tenant is locked.
func (bs Sandboxes) replay(ctx context.Context, tenant string, c Create) (*Sandbox, error) {
	if c.IdempotencyKey == "" {
		return nil, nil
	}
	if len(c.IdempotencyKey) > maxIdempotencyKey {
		return nil, fail(sandbox.CodeInvalid, "idempotency key", "%d bytes, at most %d", len(c.IdempotencyKey), maxIdempotencyKey)
	}
	var id string
	var seen []byte
	err := bs.tx.queryRow(ctx, "SELECT sandbox, fingerprint FROM idempotency WHERE tenant = $1 AND key_hash = $2", tenant, c.keyHash(tenant)).Scan(&id, &seen)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case !hmac.Equal(seen, c.fingerprint()):
		return nil, &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: "idempotency key", Message: "was used for another request",
			Hint: "use a new key for every new request",
		}
	}
	b, err := bs.Get(ctx, tenant, sandbox.ID(id))
	return &b, err
}

// Made returns the sandbox that was created for an idempotency key;
// CodeNotFound if there is none.
func (bs Sandboxes) Made(ctx context.Context, tenant, key string) (Sandbox, error) {
	var id string
	c := Create{IdempotencyKey: key}
	err := bs.tx.queryRow(ctx, "SELECT sandbox FROM idempotency WHERE tenant = $1 AND key_hash = $2", tenant, c.keyHash(tenant)).Scan(&id)
	if err != nil {
		return Sandbox{}, missing(err, "sandbox", key)
	}
	return bs.Get(ctx, tenant, sandbox.ID(id))
}

func (bs Sandboxes) remember(ctx context.Context, tenant string, c Create, id sandbox.ID) error {
	if c.IdempotencyKey == "" {
		return nil
	}
	_, err := bs.tx.exec(ctx, "INSERT INTO idempotency (tenant, key_hash, fingerprint, sandbox, created) VALUES ($1, $2, $3, $4, $5)",
		tenant, c.keyHash(tenant), c.fingerprint(), string(id), nanos(bs.tx.Now()))
	return err
}

func (bs Sandboxes) forget(ctx context.Context, tenant string, c Create) error {
	_, err := bs.tx.exec(ctx, "DELETE FROM idempotency WHERE tenant = $1 AND key_hash = $2", tenant, c.keyHash(tenant))
	return err
}

// ForgetIdempotencyKeys removes keys of all tenants that were used before a
// time, and returns their number.
func (o *Operator) ForgetIdempotencyKeys(ctx context.Context, before time.Time) (int64, error) {
	return o.tx.exec(ctx, "DELETE FROM idempotency WHERE created < $1", nanos(before))
}
