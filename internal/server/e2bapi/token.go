package e2bapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// tokens derives the tokens of sandboxes from a secret, so that they need not
// be stored and are the same after a restart.
type tokens struct{ secret []byte }

func (t tokens) of(purpose string, id sandbox.ID) string {
	m := hmac.New(sha256.New, t.secret)
	m.Write([]byte("atoll e2b " + purpose + "\x00" + string(id)))
	return hex.EncodeToString(m.Sum(nil))
}

// envd returns the token for the data plane of a sandbox.
func (t tokens) envd(id sandbox.ID) string { return t.of("envd", id) }

// traffic returns the token for its other ports, if they are private.
func (t tokens) traffic(id sandbox.ID) string { return t.of("traffic", id) }

// volume returns the token for the files of a volume.
func (t tokens) volume(id string) string { return t.of("volume", sandbox.ID(id)) }

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func unauthorized(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: message}
}

// signature returns the signature that allows an operation, "read" or "write",
// on a path without the token. expires is empty, or a time in seconds since
// 1970.
func signature(token, operation, path, username, expires string) string {
	text := path + ":" + operation + ":" + username + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// errExpired is the error for an expired signature.
var errExpired = unauthorized("signature is already expired")

// checkSignature checks the signature in a query.
func checkSignature(token, operation string, q url.Values, now time.Time) error {
	given := q.Get("signature")
	if given == "" {
		return unauthorized("missing signature query parameter")
	}
	expires := q.Get("signature_expiration")
	if !same(given, signature(token, operation, q.Get("path"), q.Get("username"), expires)) {
		return unauthorized("invalid signature")
	}
	if expires == "" {
		return nil
	}
	if at, err := strconv.ParseInt(expires, 10, 64); err != nil || now.Unix() > at {
		return errExpired
	}
	return nil
}
