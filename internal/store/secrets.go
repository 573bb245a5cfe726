package store

import (
	"context"
	"encoding/json"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Secret is the stored record of a secret. Its value is only stored sealed.
type Secret struct {
	durable.StoredSecret
	Tenant string
	KeyID  string // of the key that sealed it
	Sealed []byte
}

// HostsFor returns the hosts that receive the value instead of the sandbox's
// placeholder.
func (s *Secret) HostsFor(ref sandbox.SecretRef) []string {
	if len(ref.Hosts) > 0 {
		return ref.Hosts
	}
	return s.Hosts
}

const secretColumns = "tenant, name, version, description, source, hosts_json, allow_env, key_id, sealed, created, updated, labels_json"

func scanSecret(row scanner) (s Secret, err error) {
	var hosts, labels string
	var allowEnv, created, updated int64
	if err := row.Scan(&s.Tenant, &s.Name, &s.Version, &s.Description, &s.Source, &hosts, &allowEnv, &s.KeyID, &s.Sealed, &created, &updated, &labels); err != nil {
		return s, err
	}
	s.AllowEnv, s.Created, s.Updated = allowEnv != 0, timeOf(created), timeOf(updated)
	if err := json.Unmarshal([]byte(hosts), &s.Hosts); err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(labels), &s.Labels)
}

// Secrets reads and changes the secrets of tenants, and records which sandboxes
// use them.
type Secrets struct{ tx *Tx }

// Secrets returns the methods for secrets.
func (tx *Tx) Secrets() Secrets { return Secrets{tx} }

// Create records a secret at version 1, sealed by the caller. A name that is in
// use is CodeAlreadyExists.
func (ss Secrets) Create(ctx context.Context, s Secret) (Secret, error) {
	hosts, err := json.Marshal(append([]string{}, s.Hosts...))
	if err != nil {
		return s, err
	}
	labels, err := marshalLabels(s.Labels)
	if err != nil {
		return s, err
	}
	s.Version, s.Created, s.Updated = 1, ss.tx.Now(), ss.tx.Now()
	allowEnv := 0
	if s.AllowEnv {
		allowEnv = 1
	}
	if err := ss.tx.room(ctx, "secrets", s.Tenant, maxSecrets); err != nil {
		return s, err
	}
	n, err := ss.tx.exec(ctx, "INSERT INTO secrets ("+secretColumns+`) VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $9, $10)
		ON CONFLICT (tenant, name) DO NOTHING`, s.Tenant, s.Name, s.Description, s.Source, string(hosts), allowEnv, s.KeyID, notNil(s.Sealed), nanos(s.Created), labels)
	if err == nil && n == 0 {
		return s, &sandbox.Error{
			Code: sandbox.CodeAlreadyExists, Subject: s.Name, Message: "a secret of that name exists",
			Hint: "give it a new value with: atoll secret rotate " + s.Name,
		}
	}
	return s, err
}

// SetLabels replaces the labels of a secret.
func (ss Secrets) SetLabels(ctx context.Context, tenant, name string, labels map[string]string) error {
	text, err := marshalLabels(labels)
	if err != nil {
		return err
	}
	n, err := ss.tx.exec(ctx, "UPDATE secrets SET labels_json = $1, updated = $2 WHERE tenant = $3 AND name = $4", text, nanos(ss.tx.Now()), tenant, name)
	return oneRow(n, err, "secret", name)
}

func marshalLabels(labels map[string]string) (string, error) {
	if len(labels) == 0 {
		return "{}", nil
	}
	text, err := json.Marshal(labels)
	return string(text), err
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Rotate replaces the value of a secret at version expect with one that the
// caller sealed for the next version. The old one is not kept.
func (ss Secrets) Rotate(ctx context.Context, tenant, name string, expect int64, keyID string, sealed []byte) error {
	n, err := ss.tx.exec(ctx, "UPDATE secrets SET version = version + 1, key_id = $1, sealed = $2, updated = $3 WHERE tenant = $4 AND name = $5 AND version = $6",
		keyID, notNil(sealed), nanos(ss.tx.Now()), tenant, name, expect)
	if err == nil && n == 0 {
		if _, err := ss.Get(ctx, tenant, name); err != nil {
			return err
		}
		return fail(sandbox.CodeConflict, name, "was rotated at the same time")
	}
	return err
}

// Get returns a secret of a tenant.
func (ss Secrets) Get(ctx context.Context, tenant, name string) (Secret, error) {
	s, err := scanSecret(ss.tx.queryRow(ctx, "SELECT "+secretColumns+" FROM secrets WHERE tenant = $1 AND name = $2", tenant, name))
	return s, missing(err, "secret", name)
}

// List lists the secrets of a tenant by name.
func (ss Secrets) List(ctx context.Context, tenant string) ([]Secret, error) {
	rows, err := ss.tx.query(ctx, "SELECT "+secretColumns+" FROM secrets WHERE tenant = $1 ORDER BY name", tenant)
	all, err := collect(rows, err, scanSecret)
	if err != nil {
		return nil, err
	}
	uses := map[string]map[string]bool{}
	rows, err = ss.tx.query(ctx, `SELECT u.secret, u.sandbox FROM secret_uses u JOIN sandboxes s ON s.id = u.sandbox
		WHERE u.tenant = $1 AND s.state <> 'gone'`, tenant)
	pairs, err := collect(rows, err, func(row scanner) (p [2]string, err error) { return p, row.Scan(&p[0], &p[1]) })
	for _, p := range pairs {
		if uses[p[0]] == nil {
			uses[p[0]] = map[string]bool{}
		}
		uses[p[0]][p[1]] = true
	}
	for i := range all {
		all[i].Uses = len(uses[all[i].Name])
	}
	return all, err
}

// SecretUse is a secret that a sandbox uses.
type SecretUse struct {
	Variable    string // of the sandbox's environment
	Secret      string
	Placeholder string // the variable's content; empty if it is the value itself
}

// Use records that a new sandbox uses a secret.
func (ss Secrets) Use(ctx context.Context, tenant string, sb sandbox.ID, u SecretUse) error {
	if _, err := ss.Get(ctx, tenant, u.Secret); err != nil {
		return err
	}
	_, err := ss.tx.exec(ctx, "INSERT INTO secret_uses (sandbox, variable, tenant, secret, placeholder) VALUES ($1, $2, $3, $4, $5)",
		string(sb), u.Variable, tenant, u.Secret, u.Placeholder)
	return err
}

// Uses returns the secrets that a sandbox uses.
func (ss Secrets) Uses(ctx context.Context, tenant string, sb sandbox.ID) ([]SecretUse, error) {
	rows, err := ss.tx.query(ctx, "SELECT variable, secret, placeholder FROM secret_uses WHERE tenant = $1 AND sandbox = $2 ORDER BY variable", tenant, string(sb))
	return collect(rows, err, func(row scanner) (u SecretUse, err error) { return u, row.Scan(&u.Variable, &u.Secret, &u.Placeholder) })
}

// Users returns the sandboxes that use a secret and are not gone.
func (ss Secrets) Users(ctx context.Context, tenant, name string) ([]Sandbox, error) {
	rows, err := ss.tx.query(ctx, "SELECT "+sandboxColumns+` FROM sandboxes WHERE tenant = $1 AND state <> 'gone'
		AND id IN (SELECT sandbox FROM secret_uses WHERE tenant = $1 AND secret = $2) ORDER BY name`, tenant, name)
	return collect(rows, err, scanSandbox)
}

// Remove removes a secret. If a sandbox uses it, the error is CodeConflict,
// unless force is set: the sandbox then continues without it.
func (ss Secrets) Remove(ctx context.Context, tenant, name string, force bool) error {
	users, err := ss.Users(ctx, tenant, name)
	if err != nil {
		return err
	}
	if len(users) > 0 && !force {
		return inUse("secret", name, users)
	}
	n, err := ss.tx.exec(ctx, "DELETE FROM secrets WHERE tenant = $1 AND name = $2", tenant, name)
	return oneRow(n, err, "secret", name)
}
