// Package stream signs and verifies the tokens of streams: desktops, terminals
// and ports of a sandbox that a person watches. All tokens of Atoll's streams
// are one family. Each kind has its own prefix, which is signed too, so that a
// token of one kind never verifies as another, even with the same secret.
package stream

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Kind is the prefix of a kind of token.
type Kind string

// The kinds.
const (
	Viewer    Kind = "atollview_"    // opens a stream
	Producer  Kind = "atollproduce_" // offers a stream of a machine to a relay
	Enrolled  Kind = "atollmachine_" // identifies an enrolled machine
	Enroll    Kind = "atollenroll_"  // for the enrolment of one machine, once
	Delegated Kind = "atolldeleg_"   // access that was passed on
)

// Mode is what a viewer may do.
type Mode string

// The modes.
const (
	View    Mode = "view"
	Control Mode = "control"
)

// Claims are the contents of a viewer token.
type Claims struct {
	Stream     string `json:"stream"`
	Tenant     string `json:"workspaceId"`
	Sandbox    string `json:"sandboxId"`
	Session    string `json:"sessionId,omitempty"`
	LeaseEpoch int64  `json:"leaseEpoch"`
	Mode       Mode   `json:"mode"`
	Port       uint16 `json:"port,omitempty"`
	Agent      string `json:"agent,omitempty"`   // of a machine's stream
	Channel    string `json:"channel,omitempty"` // of a machine's stream
	Expires    int64  `json:"exp"`               // in Unix seconds; the token is valid in that second
}

// maxToken is the maximum length of a token that Open looks at.
const maxToken = 4 << 10

// Seal returns a token of a kind with claims.
func Seal(secret []byte, kind Kind, claims any) (string, error) {
	text, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	body := base64.RawURLEncoding.EncodeToString(text)
	return string(kind) + body + "." + base64.RawURLEncoding.EncodeToString(sum(secret, kind, body)), nil
}

// Open verifies a token and decodes its claims. It does not check their
// meaning.
func Open(secret []byte, kind Kind, token string, claims any) bool {
	rest, ok := strings.CutPrefix(token, string(kind))
	if !ok || kind == "" || len(token) > maxToken {
		return false
	}
	body, sign, ok := strings.Cut(rest, ".")
	if !ok {
		return false
	}
	got, err := base64.RawURLEncoding.Strict().DecodeString(sign)
	if err != nil || !hmac.Equal(got, sum(secret, kind, body)) {
		return false
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(body)
	return err == nil && json.Unmarshal(text, claims) == nil
}

// OpenViewer returns the claims of a viewer token that is valid at a time, or
// nil.
func OpenViewer(secret []byte, token string, now time.Time) *Claims {
	var c Claims
	if !Open(secret, Viewer, token, &c) {
		return nil
	}
	if c.Stream == "" || c.Tenant == "" || c.LeaseEpoch < 0 || c.Mode != View && c.Mode != Control || c.Expires < now.Unix() {
		return nil
	}
	return &c
}

func sum(secret []byte, kind Kind, body string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(string(kind) + body))
	return mac.Sum(nil)
}
