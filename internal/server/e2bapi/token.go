package e2bapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// tokens derives the tokens of sandboxes and volumes from a secret, so that they
// need not be stored and are the same after a restart. A token names the key
// that it was given to. It has the rights of that key, and ends with it.
type tokens struct{ secret []byte }

func (t tokens) of(purpose, id, keyID string) string {
	m := hmac.New(sha256.New, t.secret)
	m.Write([]byte("atoll e2b " + purpose + "\x00" + id + "\x00" + keyID))
	return keyID + "." + hex.EncodeToString(m.Sum(nil))
}

// keyOf returns the key that a token was given to, if it is a token for this
// purpose and id. The key may have ended.
func (t tokens) keyOf(purpose, id, token string) (keyID string, ok bool) {
	keyID, _, _ = strings.Cut(token, ".")
	return keyID, keyID != "" && same(token, t.of(purpose, id, keyID))
}

// The purposes of tokens.
const (
	forEnvd    = "envd"    // the data plane of a sandbox
	forTraffic = "traffic" // its other ports, if they are private
	forVolume  = "volume"  // the files of a volume
)

// envd returns the token for the data plane of a sandbox.
func (t tokens) envd(id sandbox.ID, keyID string) string { return t.of(forEnvd, string(id), keyID) }

// traffic returns the token for its other ports.
func (t tokens) traffic(id sandbox.ID, keyID string) string {
	return t.of(forTraffic, string(id), keyID)
}

// volume returns the token for the files of a volume.
func (t tokens) volume(id, keyID string) string { return t.of(forVolume, id, keyID) }

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
