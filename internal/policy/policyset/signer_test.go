package policyset_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/sandbox"
)

const signed = `policies:
  - name: agents
    images:
      - host
      - {image: "ghcr.io/acme/*", signedBy: [keys/release.pub, keys/other.pem]}
tests:
  - {name: signed, image: "ghcr.io/acme/app:1", signedBy: [keys/release.pub], want: allow}
  - {name: unsigned, image: "ghcr.io/acme/app:1", want: deny, rule: agents.images}
  - {name: stranger, image: "ghcr.io/acme/app:1", signedBy: [keys/stranger.pub], want: deny, rule: agents.images}
  - {name: elsewhere, image: "ghcr.io/evil/app:1", signedBy: [keys/release.pub], want: deny, rule: agents.images}
`

const subject = "sha256:" + hex

// says is what cosign signs.
func says(digest string) string {
	return `{"critical":{"identity":{"docker-reference":"ghcr.io/acme/app"},"image":{"docker-manifest-digest":"` + digest +
		`"},"type":"cosign container image signature"},"optional":null}`
}

// sign signs as cosign does: of ECDSA the SHA-256, of Ed25519 the text itself.
func sign(t testing.TB, key crypto.Signer, subject, text string) policy.Signature {
	t.Helper()
	signed, opts := []byte(text), crypto.SignerOpts(crypto.Hash(0))
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		sum := sha256.Sum256(signed)
		signed, opts = sum[:], crypto.SHA256
	}
	raw, err := key.Sign(rand.Reader, signed, opts)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Signature{Subject: subject, Payload: []byte(text), Signature: raw}
}

func publicPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func newKeys(t testing.TB) (*ecdsa.PrivateKey, ed25519.PrivateKey) {
	t.Helper()
	release, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return release, other
}

// An image is allowed by a signature of one of the policy's keys for exactly
// that image, and by nothing similar.
func TestSigners(t *testing.T) {
	release, other := newKeys(t)
	stranger, _ := newKeys(t)
	b, err := policyset.Load(fstest.MapFS{
		"caps.yaml":        {Data: []byte(signed)},
		"keys/release.pub": {Data: publicPEM(t, release)}, "keys/other.pem": {Data: publicPEM(t, other)}, "keys/stranger.pub": {Data: publicPEM(t, stranger)},
	}, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range b.Run() {
		if !r.Passed {
			t.Errorf("%+v", r)
		}
	}
	good := sign(t, release, subject, says(subject))
	another := "sha256:" + strings.Repeat("f", 64)
	with := func(change func(*policy.Signature)) policy.Signature {
		s := good
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		ok         bool
		image      string
		signatures []policy.Signature
	}{
		"ECDSA":              {true, "ghcr.io/acme/app:1", []policy.Signature{good}},
		"Ed25519":            {true, "ghcr.io/acme/app:1", []policy.Signature{sign(t, other, subject, says(subject))}},
		"among others":       {true, "ghcr.io/acme/app@" + subject, []policy.Signature{sign(t, stranger, subject, says(subject)), good}},
		"needs none":         {true, "host", nil},
		"none":               {false, "ghcr.io/acme/app:1", nil},
		"another name":       {false, "ghcr.io/evil/app:1", []policy.Signature{good}},
		"another key":        {false, "ghcr.io/acme/app:1", []policy.Signature{sign(t, stranger, subject, says(subject))}},
		"another image":      {false, "ghcr.io/acme/app:1", []policy.Signature{sign(t, release, another, says(subject))}},
		"about another one":  {false, "ghcr.io/acme/app:1", []policy.Signature{sign(t, release, subject, says(another))}},
		"about nothing":      {false, "ghcr.io/acme/app:1", []policy.Signature{sign(t, release, "", says(""))}},
		"another kind":       {false, "ghcr.io/acme/app:1", []policy.Signature{sign(t, release, subject, strings.Replace(says(subject), "container image", "blob", 1))}},
		"not JSON":           {false, "ghcr.io/acme/app:1", []policy.Signature{sign(t, release, subject, subject)}},
		"tampered payload":   {false, "ghcr.io/acme/app:1", []policy.Signature{with(func(s *policy.Signature) { s.Payload = []byte(says(subject) + " ") })}},
		"tampered signature": {false, "ghcr.io/acme/app:1", []policy.Signature{with(func(s *policy.Signature) { s.Signature = append([]byte{0x30}, s.Signature...) })}},
		"empty signature":    {false, "ghcr.io/acme/app:1", []policy.Signature{with(func(s *policy.Signature) { s.Signature = nil })}},
		"the wrong way":      {false, "ghcr.io/acme/app:1", []policy.Signature{with(func(s *policy.Signature) { s.Signature, s.Payload = s.Payload, s.Signature })}},
	} {
		err := b.Check(policyset.Request{Images: []string{tt.image, subject}, Signatures: tt.signatures})
		e, _ := errors.AsType[*sandbox.Error](err)
		if tt.ok && err != nil || !tt.ok && (e == nil || e.Code != sandbox.CodeDenied || e.Rule != "agents.images") {
			t.Errorf("%s: %v", name, err)
		}
		if e != nil && !strings.Contains(e.Message, "ghcr.io/acme/* signed by keys/release.pub or keys/other.pem (caps.yaml:3)") {
			t.Errorf("%s: %s", name, e.Message)
		}
	}
	unfetched := policyset.Request{Images: []string{"ghcr.io/acme/app:1"}, Unfetched: true}
	if found := b.Explain(unfetched); len(found) != 1 || !found[0].OK || !strings.Contains(found[0].Asked, "signatures") {
		t.Errorf("before it is fetched: %+v", found)
	}
	if unfetched.Images = []string{"ghcr.io/evil/app:1"}; b.Check(unfetched) == nil {
		t.Error("one that never may is fetched")
	}
	if !b.AsksWho(policyset.About{}) || parse(t, agents).AsksWho(policyset.About{}) {
		t.Error("who signed matters, or not")
	}
}

// A different key makes a different set. A file that is not a public key is an
// error with its line, and is not quoted.
func TestSignersKeys(t *testing.T) {
	release, other := newKeys(t)
	load := func(key []byte, change ...string) (*policyset.Set, error) {
		return policyset.Load(fstest.MapFS{
			"caps.yaml":        {Data: []byte(strings.NewReplacer(change...).Replace(signed))},
			"keys/release.pub": {Data: key}, "keys/other.pem": {Data: publicPEM(t, other)},
		}, ".")
	}
	one, err1 := load(publicPEM(t, release))
	two, err2 := load(publicPEM(t, other))
	if err := errors.Join(err1, err2); err != nil || one.Digest() == two.Digest() {
		t.Errorf("%v, %s, %s", err, one.Digest(), two.Digest())
	}
	private, err := x509.MarshalPKCS8PrivateKey(release)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	canary := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	for name, tt := range map[string]struct {
		key    []byte
		change []string
		says   string
	}{
		"private":      {canary, nil, "is a private one"},
		"no PEM":       {[]byte("nonsense"), nil, "not in PEM"},
		"two":          {append(publicPEM(t, release), publicPEM(t, other)...), nil, "not one PUBLIC KEY"},
		"RSA":          {publicPEM(t, weak), nil, "another kind"},
		"broken":       {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), nil, "cannot be parsed"},
		"long":         {append(publicPEM(t, release), make([]byte, 64<<10)...), nil, "cannot be read"},
		"absent":       {nil, []string{"keys/release.pub", "keys/absent.pub"}, "cannot be read"},
		"above":        {nil, []string{"keys/release.pub", "../../etc/passwd"}, "cannot be read"},
		"absolute":     {nil, []string{"keys/release.pub", "/etc/passwd"}, "cannot be read"},
		"nobody":       {nil, []string{"[keys/release.pub, keys/other.pem]", "[]"}, "0 keys"},
		"no image":     {publicPEM(t, release), []string{`image: "ghcr.io/acme/*", `, ""}, "needs an image"},
		"host":         {publicPEM(t, release), []string{"ghcr.io/acme/*", "host"}, "carries no signatures"},
		"a template":   {publicPEM(t, release), []string{"ghcr.io/acme/*", "template:*"}, "carries no signatures"},
		"misspelt":     {publicPEM(t, release), []string{"signedBy: [keys/release.pub, ", "signed: [keys/release.pub, "}, "unknown field"},
		"a list of it": {publicPEM(t, release), []string{"- host", "- [host]"}, "a text is needed"},
	} {
		_, err := load(tt.key, tt.change...)
		if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "caps.yaml:") {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(fmt.Sprintf("%+v", err), string(canary[40:80])) {
			t.Errorf("%s: it shows the key", name)
		}
	}
	if _, err := policyset.Parse(map[string][]byte{"caps.yaml": []byte(signed)}); err == nil {
		t.Error("a key out of nowhere")
	}
}
