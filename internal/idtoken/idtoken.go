// Package idtoken issues tokens by which services outside recognize sandboxes:
// JSON Web Tokens, which the gateway adds to requests and sandboxes never have.
package idtoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// Life is how long a token is valid. The gateway gets a new one every Renewal.
const (
	Life    = time.Hour
	Renewal = 20 * time.Minute
)

// KeysPath is the path of the public keys, below the URL of the issuer. The
// other path is that of OpenID Connect.
const (
	KeysPath      = "/.well-known/jwks.json"
	DiscoveryPath = "/.well-known/openid-configuration"
)

// Issuer signs the tokens of one daemon. Its methods may be called concurrently.
type Issuer struct {
	key *ecdsa.PrivateKey
	id  string // of the key
	now func() time.Time

	mu  sync.Mutex
	url string
}

// Open returns an issuer with a key from a file, which it creates if it is
// missing. now is the clock; nil: time.Now. It issues nothing before it has a
// URL.
func Open(file string, now func() time.Time) (*Issuer, error) {
	if now == nil {
		now = time.Now
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(file); err != nil {
			return nil, err
		}
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	key, err := jwt.ParseECPrivateKeyFromPEM(text)
	if err != nil || key.Curve != elliptic.P256() {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.start", Subject: file, Message: "is not a P-256 key in PEM",
			Hint: "remove it; tokens made with it are then no longer valid",
		}
	}
	point, err := key.PublicKey.Bytes()
	sum := sha256.Sum256(point)
	return &Issuer{key: key, id: encode(sum[:12]), now: now}, err
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func create(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	made, err := os.CreateTemp(filepath.Dir(file), ".identity-*") // only its owner may read it
	if err != nil {
		return err
	}
	defer os.Remove(made.Name())
	err = pem.Encode(made, &pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	if err = errors.Join(err, made.Sync(), made.Close()); err != nil {
		return err
	}
	return os.Rename(made.Name(), file)
}

// Publish sets the URL at which the keys are published, and which the tokens
// name. Empty: nowhere, and no tokens are issued.
func (i *Issuer) Publish(url string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.url = url
}

// URL returns the issuer URL set by Publish, or "".
func (i *Issuer) URL() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.url
}

// Available reports, as an error, that no tokens are issued.
func (i *Issuer) Available() error {
	if i == nil || i.URL() == "" {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "identity tokens", Message: "this daemon does not publish the keys for them",
			Hint: "have it serve E2B's API with a domain: atoll e2b enable",
		}
	}
	return nil
}

// Subject returns the subject of a sandbox's tokens: a SPIFFE ID with the host
// of the issuer as its trust domain.
func Subject(issuer, tenant string, id sandbox.ID) string {
	host := issuer
	if u, err := url.Parse(issuer); err == nil {
		host = u.Hostname()
	}
	return "spiffe://" + host + "/tenant/" + tenant + "/sandbox/" + string(id)
}

// Token issues a token of a sandbox for an audience. The caller clears it.
func (i *Issuer) Token(tenant string, id sandbox.ID, audience string) (secret.Value, error) {
	if err := i.Available(); err != nil {
		return secret.Value{}, err
	}
	issuer, now := i.URL(), i.now()
	t := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": issuer, "sub": Subject(issuer, tenant, id), "aud": audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(Life).Unix(), "tenant": tenant, "sandbox": string(id),
	})
	t.Header["kid"] = i.id
	text, err := t.SignedString(i.key)
	return secret.NewValue([]byte(text)), err
}

// Key is a public key as RFC 7517 has it.
type Key struct {
	Type      string `json:"kty"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	ID        string `json:"kid"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	Y         string `json:"y"`
}

// Keys are the public keys with which tokens can be verified.
type Keys struct {
	Keys []Key `json:"keys"`
}

// Keys returns them.
func (i *Issuer) Keys() (Keys, error) {
	const size = 32 // of a coordinate
	point, err := i.key.PublicKey.Bytes()
	if err != nil {
		return Keys{}, err
	}
	k := Key{Type: "EC", Use: "sig", Algorithm: "ES256", ID: i.id, Curve: "P-256", X: encode(point[1 : 1+size]), Y: encode(point[1+size:])}
	return Keys{[]Key{k}}, nil
}

// Published returns what services need to verify tokens, by path.
func (i *Issuer) Published() map[string]func() (any, error) {
	return map[string]func() (any, error){
		DiscoveryPath: func() (any, error) { return i.Discovery() },
		KeysPath:      func() (any, error) { return i.Keys() },
	}
}

// Discovery is the OpenID Connect discovery document of an issuer.
type Discovery struct {
	Issuer        string   `json:"issuer"`
	Keys          string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	Claims        []string `json:"claims_supported"`
}

// Discovery returns it. Without a URL it is CodeUnsupported.
func (i *Issuer) Discovery() (Discovery, error) {
	if err := i.Available(); err != nil {
		return Discovery{}, err
	}
	issuer := i.URL()
	return Discovery{
		Issuer: issuer, Keys: issuer + KeysPath, ResponseTypes: []string{"id_token"}, SubjectTypes: []string{"public"},
		Algorithms: []string{"ES256"}, Claims: []string{"iss", "sub", "aud", "exp", "iat", "jti", "tenant", "sandbox"},
	}, nil
}
