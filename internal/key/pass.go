package key

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Pass lets its bearer reach ports of one sandbox, and do nothing else. Its
// token is sealed: it says nothing to who bears it or sees it. Nothing of it is
// stored, so that it ends with its time, with its sandbox, whose id is never
// used again, or with the key of who made it.
type Pass struct {
	Tenant  string     `json:"t"`
	Sandbox sandbox.ID `json:"s"`
	Ports   []uint16   `json:"p,omitempty"` // empty: all
	Expires time.Time  `json:"e"`
	Key     string     `json:"k,omitempty"` // public part of the key of who made it
	UID     *uint32    `json:"u,omitempty"` // or the local user
}

// Opens reports whether the pass is good for a port at a time.
func (p *Pass) Opens(port uint16, now time.Time) bool {
	return now.Before(p.Expires) && (len(p.Ports) == 0 || slices.Contains(p.Ports, port))
}

// Bearer is who acts with a pass: its maker, with no more than it takes to
// reach a port.
func (p *Pass) Bearer() Principal {
	return Principal{Tenant: p.Tenant, Key: p.Key, UID: p.UID, Verbs: []Verb{Read, Exec}}
}

const (
	passPrefix = "atollport_"
	maxPass    = 4 << 10
	passBlock  = 128 // tokens tell the length of what they hold only roughly
)

// PassKeySize is how many random bytes passes are sealed with.
const PassKeySize = 32

// Passes seals and opens passes. It may be used concurrently.
type Passes struct{ aead cipher.AEAD }

// PassKey is what passes are sealed with.
type PassKey [PassKeySize]byte

// NewPassKey makes a secret.
func NewPassKey() (k PassKey) {
	_, _ = rand.Read(k[:]) // it never fails
	return k
}

// NewPasses makes Passes. Tokens of another secret are not valid.
func NewPasses(secret PassKey) *Passes {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic(err) // the size is one of AES
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // so is that of a block
	}
	return &Passes{aead}
}

// Seal returns the token of a pass.
func (s *Passes) Seal(p Pass) (string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	for len(text)%passBlock != 0 {
		text = append(text, ' ')
	}
	return passPrefix + base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, []byte(passPrefix))), nil
}

// Open returns what a token says, or CodeUnauthorized.
func (s *Passes) Open(token string) (Pass, error) {
	var p Pass
	body, ok := strings.CutPrefix(token, passPrefix)
	if !ok || len(token) > maxPass {
		return p, NotAPass()
	}
	sealed, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return p, NotAPass()
	}
	text, err := s.aead.Open(nil, nil, sealed, []byte(passPrefix))
	if err != nil || json.Unmarshal(text, &p) != nil {
		return Pass{}, NotAPass()
	}
	return p, nil
}

// NotAPass is the one answer to every token that opens nothing.
func NotAPass() error {
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Message: "the token is not valid for this port",
		Hint: "make one with: atoll port token SANDBOX",
	}
}
