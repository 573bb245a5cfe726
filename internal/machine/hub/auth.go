package hub

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Limits of a connection of a machine.
const (
	// admitted is how long a connection lasts before the machine has to prove
	// itself again. Streams outlive that.
	admitted     = time.Hour
	enrolling    = 15 * time.Minute
	maxPayload   = 256 << 10
	maxSubs      = 4
	enrolPayload = 4 << 10
	authTimeout  = 2 * time.Second
)

// authorize answers a server that asks about a new connection. A request that
// is none is not answered, and every refusal is signed.
func (h *Hub) authorize(msg *nats.Msg) {
	req, err := jwt.DecodeAuthorizationRequestClaims(string(msg.Data))
	if err != nil || !nkeys.IsValidPublicUserKey(req.UserNkey) {
		return
	}
	res := jwt.NewAuthorizationResponseClaims(req.UserNkey)
	res.Audience = req.Server.ID
	user, err := h.user(req)
	if err == nil {
		user.Audience = h.cfg.Account
		res.Jwt, err = user.Encode(h.issuer)
	}
	if err != nil {
		h.cfg.Logger.Warn("a machine was not let in", "address", req.ClientInformation.Host, "reason", err)
		res.Jwt, res.Error = "", err.Error()
	}
	text, err := res.Encode(h.issuer)
	if err != nil {
		h.cfg.Logger.Error("answering a NATS server", "error", err)
		return
	}
	_ = msg.Respond([]byte(text))
}

// user returns what a connection may do. It has the right to its own subjects
// alone, which follow from the key that it proves to have.
func (h *Hub) user(req *jwt.AuthorizationRequestClaims) (*jwt.UserClaims, error) {
	key, instance := req.ConnectOptions.Nkey, req.ConnectOptions.Name
	if err := proves(key, req.ClientInformation.Nonce, req.ConnectOptions.SignedNonce); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(h.life, authTimeout)
	defer cancel()
	m, err := h.byKey(ctx, key)
	user := jwt.NewUserClaims(req.UserNkey)
	user.Limits.Subs, user.Limits.Payload = maxSubs, maxPayload
	user.Resp = nil
	switch code := sandbox.CodeOf(err); {
	case err != nil && code != sandbox.CodeNotFound:
		return nil, fmt.Errorf("the enrolment cannot be looked up: %w", err)
	case err != nil || m.State == operator.MachinePending:
		user.Name, user.Limits.Payload = "enrol", enrolPayload
		user.Expires = h.now().Add(enrolling).Unix()
		user.Pub.Allow.Add(machine.EnrolSubject(key))
		user.Sub.Allow.Add(machine.EnrolSubject(key) + machine.ReplySuffix)
		return user, nil
	case m.State != operator.MachineActive:
		return nil, errRevoked
	case !token(instance) || !token(m.Tenant):
		return nil, fmt.Errorf("the connection has no valid name")
	}
	own := machine.Subjects{Tenant: m.Tenant, Machine: m.ID, Instance: instance}
	user.Name = m.ID
	user.Expires = h.now().Add(admitted).Unix()
	user.Pub.Allow.Add(own.Up() + ">")
	user.Sub.Allow.Add(own.Down() + ">")
	h.connected(m.ID, connection{req.Server.ID, req.ClientInformation.ID})
	// If it was revoked meanwhile, Revoked may not have known the connection.
	if m, err = h.byKey(ctx, key); err != nil {
		return nil, fmt.Errorf("the enrolment cannot be looked up: %w", err)
	} else if m.State != operator.MachineActive {
		return nil, errRevoked
	}
	return user, nil
}

func (h *Hub) byKey(ctx context.Context, key string) (store.Machine, error) {
	return store.Read(ctx, h.cfg.Store, func(tx *store.Tx) (store.Machine, error) { return tx.Operator().MachineByKey(ctx, key) })
}

var errRevoked = fmt.Errorf("the enrolment was revoked")

// proves reports whether the signature of the server's nonce was made with the
// key.
func proves(key, nonce, signature string) error {
	if !nkeys.IsValidPublicUserKey(key) || nonce == "" {
		return fmt.Errorf("the connection has no key")
	}
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return fmt.Errorf("the connection does not prove its key")
	}
	public, err := nkeys.FromPublicKey(key)
	if err == nil {
		err = public.Verify([]byte(nonce), sig)
	}
	if err != nil {
		return fmt.Errorf("the connection does not prove its key")
	}
	return nil
}

// token reports whether s can be one part of a subject.
func token(s string) bool {
	return s != "" && len(s) <= 64 && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}) < 0
}
