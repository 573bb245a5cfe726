// Package key creates and verifies API keys. A key is shown once, when it is
// created. Only a hash is stored. An unknown, malformed, revoked or expired
// key, and a key of a disabled tenant, all get the same response after the same
// amount of work.
package key

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Verb is a permission of a key.
type Verb = ops.Verb

// The verbs. Only Admin includes the others.
const (
	Read  = ops.Read  // view sandboxes, files, logs, events
	Exec  = ops.Exec  // run and signal commands, open terminals and ports
	Write = ops.Write // create, change, and remove sandboxes and files
	Admin = ops.Admin // everything in the tenant, including its keys
)

// Verbs lists all verbs.
func Verbs() []Verb { return ops.Verbs() }

// DefaultTenant owns sandboxes that were created without a daemon. The owner of
// the machine acts for it, unless a request names another tenant.
const DefaultTenant = "default"

// Principal is an authenticated caller.
type Principal struct {
	Tenant string
	Key    string  // public part of the key; empty without a key
	UID    *uint32 // user of the peer process, on a Unix socket
	Verbs  []Verb
	// Sandbox, if set, is the only sandbox that may be accessed.
	Sandbox sandbox.ID
	// Workspace, if set, is the id of a workspace. Only its files may be accessed,
	// and nothing else.
	Workspace string
}

// Bearer is the principal of the daemon's own work inside a sandbox. It cannot
// remove the sandbox or access another.
func Bearer(tenant string, id sandbox.ID) Principal {
	return Principal{Tenant: tenant, Key: "of-" + string(id), Verbs: []Verb{Read, Exec, Write}, Sandbox: id}
}

// Within returns p, restricted to the inside of one sandbox.
func (p Principal) Within(id sandbox.ID) Principal {
	p.Sandbox = id
	return p
}

// Files returns p, restricted to the files of one workspace, given by its id.
func (p Principal) Files(workspace string) Principal {
	p.Workspace = workspace
	return p
}

// Peer is the principal of a local process, authenticated by its uid.
func Peer(tenant string, uid uint32) Principal {
	return Principal{Tenant: tenant, UID: &uid, Verbs: []Verb{Admin}}
}

// Allow reports whether p may do op: nil, or CodeDenied with the missing verb.
func (p Principal) Allow(op ops.Op) error {
	if p.Sandbox != "" && !op.Inside() {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "the token is valid inside one sandbox only"}
	}
	if p.Workspace != "" && op != ops.WorkspaceRead && op != ops.WorkspaceWrite {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "the token is valid for the files of one workspace only"}
	}
	v := op.Verb()
	if v == ops.Owner {
		return p.owns(op)
	}
	if slices.Contains(p.Verbs, v) || slices.Contains(p.Verbs, Admin) {
		return nil
	}
	hint := "use a key with this permission"
	if v == Admin {
		hint = "use an admin key, from: atoll key create --allow admin, or for clients of E2B: atoll e2b env --admin"
	}
	return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: fmt.Sprintf("the key does not allow %q", v), Hint: hint}
}

// owns reports whether p is the owner of the machine.
func (p Principal) owns(op ops.Op) error {
	if p.UID != nil || slices.Contains(p.Verbs, ops.Page) && op.OfPages() {
		return nil
	}
	e := &sandbox.Error{
		Code: sandbox.CodeDenied, Op: string(op), Message: "only the owner of the machine may do that",
		Hint: "use the daemon's socket, without a key",
	}
	if op.OfPages() {
		e.Hint = "use the daemon's socket, without a key, or a page from: atoll console"
	}
	if op == ops.PortPublish {
		e.Message = "only the owner of the machine may publish ports on it"
		e.Hint = "forward the port to your own machine instead, with: atoll port forward SANDBOX PORT"
	}
	return e
}

// AllowIn is Allow for an operation on a specific sandbox.
func (p Principal) AllowIn(id sandbox.ID, op ops.Op) error {
	if p.Sandbox != "" && id != "" && id != p.Sandbox {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "the token belongs to another sandbox"}
	}
	return p.Allow(op)
}

// Ring creates, finds and revokes keys. It is safe for concurrent use.
type Ring struct{ store *store.Store }

// NewRing returns a Ring that uses s.
func NewRing(s *store.Store) *Ring { return &Ring{s} }

const maxName = 100

func validate(n *operator.NewKey) error {
	switch {
	case len(n.Verbs) == 0:
		return invalid("verbs", "none given")
	case n.Expires < 0:
		return invalid("expires", "is in the past")
	case utf8.RuneCountInString(n.Name) > maxName || !utf8.ValidString(n.Name):
		return invalid("name", "is longer than %d characters", maxName)
	}
	if n.Name == imported {
		return invalid("name", "is the name of a key that another daemon made")
	}
	for _, r := range n.Name {
		if r < ' ' || r == 0x7f {
			return invalid("name", "contains a control character")
		}
	}
	for _, v := range n.Verbs {
		if !slices.Contains(Verbs(), Verb(v)) {
			return invalid("verbs", "%.20q is not one of %v", v, Verbs())
		}
	}
	return nil
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "key.create", Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// Create creates a key of the tenant n.Tenant within a transaction. The result
// contains the token. Show it to the owner only after the transaction is
// committed, and at once: it is not stored and cannot be read again. marks are
// what nobody can ask for, such as ops.Page.
func (r *Ring) Create(ctx context.Context, tx *store.Tx, n operator.NewKey, marks ...Verb) (operator.Key, error) {
	if err := validate(&n); err != nil {
		return operator.Key{}, err
	}
	if _, err := tx.Tenants().Get(ctx, n.Tenant); err != nil {
		return operator.Key{}, err
	}
	token, id := newToken()
	k := operator.Key{ID: id, Name: n.Name, Created: tx.Now()}
	for _, v := range Verbs() { // in a fixed order, without duplicates
		if slices.Contains(n.Verbs, string(v)) {
			k.Verbs = append(k.Verbs, string(v))
		}
	}
	for _, m := range marks {
		k.Verbs = append(k.Verbs, string(m))
	}
	if n.Expires > 0 {
		k.Expires = k.Created.Add(n.Expires)
	}
	if err := tx.Tenants().AddKey(ctx, store.Key{Key: k, Tenant: n.Tenant, Hash: hash(token)}); err != nil {
		return operator.Key{}, err
	}
	k.Token = token
	return k, nil
}

// imported is the name of the key of Import. No other key can have it.
const imported = "of --key-file"

// Imports compares token, a key that another daemon made or "" for none, with
// the keys that were imported. It returns the public part of the token if
// [Import] must add it, and those of the imported keys that it replaces.
// CodeInvalid: Atoll did not make the token, or it was revoked here.
func Imports(ctx context.Context, tx *store.Tx, token string) (add string, replaced []string, err error) {
	id := ""
	if token != "" {
		var formed bool
		if id, formed = idOf(token); !formed {
			return "", nil, unfit("", "the key is not one that Atoll made", "make one with: atoll key create")
		}
		known, err := tx.Operator().Key(ctx, id)
		switch {
		case err == nil && !known.Revoked.IsZero():
			return "", nil, unfit(id, "the key was revoked here", "make another one with: atoll key create")
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			add = id
		case err != nil:
			return "", nil, err
		}
	}
	all, err := tx.Tenants().Keys(ctx, DefaultTenant)
	for i := range all {
		if k := &all[i]; k.Name == imported && k.ID != id && k.Revoked.IsZero() {
			replaced = append(replaced, k.ID)
		}
	}
	return add, replaced, err
}

// Import adds a key that Imports returned. It may read, exec and
// write in the default tenant.
func Import(ctx context.Context, tx *store.Tx, token string) error {
	id, _ := idOf(token)
	k := operator.Key{ID: id, Name: imported, Created: tx.Now(), Verbs: []string{string(Read), string(Exec), string(Write)}}
	return tx.Tenants().AddKey(ctx, store.Key{Key: k, Tenant: DefaultTenant, Hash: hash(token)})
}

func unfit(subject, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "key.import", Subject: subject, Message: message, Hint: hint}
}

// unusable is the response to every key that is not accepted. The reason is
// only logged.
func unusable(reason error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Message: "the key is not valid", Cause: reason,
		Hint: "create one with `atoll key create`",
	}
}

// The reasons, for errors.Is and for logs; callers of the API do not see them.
var (
	ErrUnknown  = errors.New("no such key")
	ErrRevoked  = errors.New("the key was revoked")
	ErrExpired  = errors.New("the key has expired")
	ErrDisabled = errors.New("the tenant is disabled")
)

// noID is the public part of no key. A malformed key is looked up with it, so
// that it takes as long as any other.
const noID = "000000000000"

// principal returns who uses a key.
func principal(k *store.Key) Principal {
	p := Principal{Tenant: k.Tenant, Key: k.ID}
	for _, v := range k.Verbs {
		p.Verbs = append(p.Verbs, Verb(v))
	}
	return p
}

// Authenticate returns the principal of a key. If the key is not accepted for
// any reason, it returns CodeUnauthorized. Other codes mean that the store
// could not be read.
func (r *Ring) Authenticate(ctx context.Context, token string) (Principal, error) {
	id, formed := idOf(token)
	if !formed {
		id = noID
	}
	k, err := store.Read(ctx, r.store, func(tx *store.Tx) (store.Key, error) { return tx.Operator().Key(ctx, id) })
	known := err == nil
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return Principal{}, err
	}
	if !known {
		k.Hash = make([]byte, len(hash("")))
	}
	same := subtle.ConstantTimeCompare(k.Hash, hash(token)) == 1
	ended := r.ended(&k)
	switch {
	case !formed || !known || !same:
		return Principal{}, unusable(ErrUnknown)
	case ended != nil:
		return Principal{}, unusable(ended)
	}
	return principal(&k), nil
}

// ended returns why a key is no longer accepted, nil if it is.
func (r *Ring) ended(k *store.Key) error {
	switch {
	case !k.Revoked.IsZero():
		return ErrRevoked
	case !k.Expires.IsZero() && !r.store.Now().Before(k.Expires):
		return ErrExpired
	case k.TenantDisabled:
		return ErrDisabled
	}
	return nil
}

// Find returns the principal of a tenant's key, given by its public part, if
// the key is still accepted. If not, it returns CodeUnauthorized as
// [Ring.Authenticate] does. Other codes mean that the store could not be read.
func (r *Ring) Find(ctx context.Context, tx *store.Tx, tenant, id string) (Principal, error) {
	k, err := tx.Operator().Key(ctx, id)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound, err == nil && k.Tenant != tenant:
		return Principal{}, unusable(ErrUnknown)
	case err != nil:
		return Principal{}, err
	}
	if why := r.ended(&k); why != nil {
		return Principal{}, unusable(why)
	}
	return principal(&k), nil
}

// Accepted returns the public parts of a tenant's keys that are accepted.
func (r *Ring) Accepted(ctx context.Context, tx *store.Tx, tenant string) (ids []string, err error) {
	t, err := tx.Tenants().Get(ctx, tenant)
	if err != nil || !t.Disabled.IsZero() {
		return nil, err
	}
	keys, err := tx.Tenants().Keys(ctx, tenant)
	for i := range keys {
		if r.ended(&keys[i]) == nil {
			ids = append(ids, keys[i].ID)
		}
	}
	return ids, err
}
