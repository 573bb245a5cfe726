// Package key makes and checks API keys. A key is shown once, when it is made;
// what is stored recognises it and cannot be turned back into it. To the
// outside, a key that is unknown, malformed, revoked, or expired, or whose
// tenant is disabled, gives the same answer after the same work.
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
)

// Verb is something that a key allows.
type Verb = ops.Verb

// The verbs. None but Admin includes another.
const (
	Read  = ops.Read  // look: sandboxes, files, logs, events
	Exec  = ops.Exec  // run and signal commands, open terminals and ports
	Write = ops.Write // make, change, and remove sandboxes and files
	Admin = ops.Admin // everything in the tenant, its keys included
)

// Verbs lists all verbs.
func Verbs() []Verb { return ops.Verbs() }

// Principal is who is asking, once that is known.
type Principal struct {
	Tenant string
	Key    string  // public part of the key; empty without one
	UID    *uint32 // of a process at the other end of a Unix socket
	Verbs  []Verb
	// Sandbox, if set, is the only one that may be touched.
	Sandbox sandbox.ID
	// Workspace, if set, is the id of the only one whose files may be touched,
	// and nothing else.
	Workspace string
}

// Bearer is the principal of whoever bears the token of one sandbox: it works
// inside that sandbox, and can neither end it nor reach another.
func Bearer(tenant string, id sandbox.ID) Principal {
	return Principal{Tenant: tenant, Key: "of-" + string(id), Verbs: []Verb{Read, Exec, Write}, Sandbox: id}
}

// Holder is the principal of whoever bears the token of one workspace.
func Holder(tenant, workspace string) Principal {
	return Principal{Tenant: tenant, Key: "of-" + workspace, Verbs: []Verb{Read, Write}, Workspace: workspace}
}

// Peer is the principal of a process that was let in by its user.
func Peer(tenant string, uid uint32) Principal {
	return Principal{Tenant: tenant, UID: &uid, Verbs: []Verb{Admin}}
}

// Allow reports whether p may do op: nil, or CodeDenied with the verb that is
// missing.
func (p Principal) Allow(op ops.Op) error {
	if p.Sandbox != "" && !op.Inside() {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "the token is valid inside one sandbox only"}
	}
	if p.Workspace != "" && op != ops.WorkspaceRead && op != ops.WorkspaceWrite {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "the token is valid for the files of one workspace only"}
	}
	v := op.Verb()
	if slices.Contains(p.Verbs, v) || slices.Contains(p.Verbs, Admin) {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Op: string(op), Message: fmt.Sprintf("the key does not allow %q", v),
		Hint: "use a key with this permission",
	}
}

// AllowIn is Allow for an operation on a certain sandbox.
func (p Principal) AllowIn(id sandbox.ID, op ops.Op) error {
	if p.Sandbox != "" && id != "" && id != p.Sandbox {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: string(op), Message: "the token is of another sandbox"}
	}
	return p.Allow(op)
}

// Ring makes, finds and ends keys. It may be used concurrently.
type Ring struct{ store *store.Store }

// NewRing makes a Ring over a store.
func NewRing(s *store.Store) *Ring { return &Ring{s} }

const maxName = 100

func validate(n *sandbox.NewKey) error {
	switch {
	case len(n.Verbs) == 0:
		return invalid("verbs", "none given")
	case n.Expires < 0:
		return invalid("expires", "is in the past")
	case utf8.RuneCountInString(n.Name) > maxName || !utf8.ValidString(n.Name):
		return invalid("name", "is not at most %d characters", maxName)
	}
	for _, r := range n.Name {
		if r < ' ' || r == 0x7f {
			return invalid("name", "holds a control character")
		}
	}
	for _, v := range n.Verbs {
		if !slices.Contains(Verbs(), Verb(v)) {
			return invalid("verbs", "%.20q is none of %v", v, Verbs())
		}
	}
	return nil
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "key.create", Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// Create makes a key of the tenant that n names within a transaction. The result
// holds the token. Its owner must be shown it now, and only if the transaction is
// committed: it is not stored, and cannot be read again.
func (r *Ring) Create(ctx context.Context, tx *store.Tx, n sandbox.NewKey) (sandbox.Key, error) {
	if err := validate(&n); err != nil {
		return sandbox.Key{}, err
	}
	if _, err := tx.Tenants().Get(ctx, n.Tenant); err != nil {
		return sandbox.Key{}, err
	}
	token, id := newToken()
	k := sandbox.Key{ID: id, Name: n.Name, Created: tx.Now()}
	for _, v := range Verbs() { // in one order, each once
		if slices.Contains(n.Verbs, string(v)) {
			k.Verbs = append(k.Verbs, string(v))
		}
	}
	if n.Expires > 0 {
		k.Expires = k.Created.Add(n.Expires)
	}
	if err := tx.Tenants().AddKey(ctx, store.Key{Key: k, Tenant: n.Tenant, Hash: hash(token)}); err != nil {
		return sandbox.Key{}, err
	}
	k.Token = token
	return k, nil
}

// unusable is the one answer to every key that does not let its bearer in.
// The reason is for the log.
func unusable(reason error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Message: "the key is not valid", Cause: reason,
		Hint: "make one with `atoll key create`",
	}
}

// The reasons, for errors.Is and for logs; they are not shown.
var (
	ErrUnknown  = errors.New("no such key")
	ErrRevoked  = errors.New("the key was revoked")
	ErrExpired  = errors.New("the key has expired")
	ErrDisabled = errors.New("the tenant is disabled")
)

// noID is the public part of no key: a malformed key is looked up all the
// same, so that it takes the time of any other.
const noID = "000000000000"

// Authenticate finds out who bears a key. Its refusal is CodeUnauthorized
// whatever is wrong with the key; another code means that nobody could look.
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
	p := Principal{Tenant: k.Tenant, Key: k.ID}
	for _, v := range k.Verbs {
		p.Verbs = append(p.Verbs, Verb(v))
	}
	return p, nil
}

// ended says why a key lets nobody in any more, nil if it does.
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

// Stands reports whether a key of a tenant, by its public part, still lets its
// bearer in: nil, or CodeUnauthorized as [Ring.Authenticate] has it. Another
// code means that nobody could look.
func (r *Ring) Stands(ctx context.Context, tx *store.Tx, tenant, id string) error {
	k, err := tx.Operator().Key(ctx, id)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound, err == nil && k.Tenant != tenant:
		return unusable(ErrUnknown)
	case err != nil:
		return err
	}
	if why := r.ended(&k); why != nil {
		return unusable(why)
	}
	return nil
}
