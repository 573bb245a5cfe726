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

// Pass gives access to ports of one sandbox, and to nothing else. Its token is
// encrypted, so its contents are hidden from its bearer. Passes are not stored.
// A pass is valid until it expires, until its sandbox is removed (ids are never
// reused), or until its creator's key is revoked.
type Pass struct {
	Tenant  string     `json:"t"`
	Sandbox sandbox.ID `json:"s"`
	Ports   []uint16   `json:"p,omitempty"` // empty: all
	Expires time.Time  `json:"e"`
	Key     string     `json:"k,omitempty"` // public part of the creator's key
	UID     *uint32    `json:"u,omitempty"` // or the local user
}

// Opens reports whether the pass is valid for a port at a time.
func (p *Pass) Opens(port uint16, now time.Time) bool {
	return now.Before(p.Expires) && (len(p.Ports) == 0 || slices.Contains(p.Ports, port))
}

// Bearer returns the principal for requests with this pass: its creator,
// restricted to connecting to a port.
func (p *Pass) Bearer() Principal {
	return Principal{Tenant: p.Tenant, Key: p.Key, UID: p.UID, Verbs: []Verb{Read, Exec}}
}

const (
	passPrefix = "atollport_"
	maxPass    = 4 << 10
	passBlock  = 128 // token lengths reveal the length of the contents only roughly
)

// PassKeySize is the size of the encryption key, in bytes.
const PassKeySize = 32

// Passes encrypts and decrypts passes. It is safe for concurrent use.
type Passes struct{ aead cipher.AEAD }

// PassKey is the encryption key of passes.
type PassKey [PassKeySize]byte

// NewPassKey returns a random key.
func NewPassKey() (k PassKey) {
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// NewPasses returns Passes with a key. Tokens of other keys are not valid.
func NewPasses(secret PassKey) *Passes {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic(err) // cannot happen: the key has a valid size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // cannot happen: AES has the block size of GCM
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

// Open decrypts a token. It returns CodeUnauthorized if the token is not valid.
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

// NotAPass is the response to every token that is not valid.
func NotAPass() error {
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Message: "the token is not valid for this port",
		Hint: "create one with: atoll port token SANDBOX",
	}
}
