package policyset

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Limits on keys.
const (
	maxKeyFile = 64 << 10
	maxSigners = 16 // per entry
)

// cosignType is the type field of a cosign payload.
const cosignType = "cosign container image signature"

// payload is the signed content. Only the digest is verified, not the image's
// name.
type payload struct {
	Critical struct {
		Type  string `json:"type"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
	} `json:"critical"`
}

// holds reports whether a signature is valid for that key and the image it was
// found for.
func holds(key crypto.PublicKey, s policy.Signature) bool {
	var p payload
	if json.Unmarshal(s.Payload, &p) != nil || p.Critical.Type != cosignType || s.Subject == "" || p.Critical.Image.Digest != s.Subject {
		return false
	}
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(s.Payload)
		return ecdsa.VerifyASN1(key, sum[:], s.Signature)
	case ed25519.PublicKey:
		return ed25519.Verify(key, s.Payload, s.Signature)
	}
	return false
}

// accepts reports whether the image of a request is signed by one of the keys
// of the entry with index signed.
func (p *entry) accepts(r *Request, signed int) bool {
	for _, name := range r.assumed {
		if slices.Contains(p.SignedImages[signed].SignedBy, name) {
			return true
		}
	}
	return slices.ContainsFunc(p.keys[signed], func(key crypto.PublicKey) bool {
		return slices.ContainsFunc(r.Signatures, func(sig policy.Signature) bool { return holds(key, sig) })
	})
}

// AsksWho reports whether the decision about a sandbox depends on the
// signatures of its image.
func (set *Set) AsksWho(a About) bool {
	return slices.ContainsFunc(set.about(a), func(p *entry) bool { return len(p.SignedImages) > 0 })
}

// images decodes the entries of images: names, and names with keys.
func (d *document) images(p *entry) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		p.Images = []string{}
		return d.each(n, func(item *yaml.Node) error {
			if item.Kind != yaml.MappingNode {
				return d.text(item, &p.Images)
			}
			var s operator.SignedImage
			err := d.fields(item, nil, map[string]func(*yaml.Node) error{"image": into(d, &s.Image), "signedBy": d.strings(&s.SignedBy)})
			if err != nil {
				return err
			}
			keys, err := d.signers(item, &s)
			p.SignedImages, p.keys = append(p.SignedImages, s), append(p.keys, keys)
			return err
		})
	}
}

// signers decodes the keys of a signed image.
func (d *document) signers(n *yaml.Node, s *operator.SignedImage) (keys []crypto.PublicKey, err error) {
	switch {
	case s.Image == "":
		return nil, d.fail(n, "the entry needs an image, such as ghcr.io/acme/*")
	case IsLocal(s.Image) && !strings.HasPrefix(s.Image, "oci:"):
		return nil, d.fail(n, "%q carries no signatures: only images of registries and layouts do", clip(s.Image))
	case len(s.SignedBy) == 0 || len(s.SignedBy) > maxSigners:
		return nil, d.fail(n, "the entry names %d keys in signedBy, not 1 to %d", len(s.SignedBy), maxSigners)
	}
	for _, name := range s.SignedBy {
		text, err := d.keyText(name)
		if err != nil {
			return nil, d.fail(n, "the key %q cannot be read: it is a file of at most %d bytes at or below the policies", clip(name), maxKeyFile)
		}
		key, problem := parseKey(text)
		if problem != "" {
			return nil, d.fail(n, "the key %q %s", clip(name), problem)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// keyText reads the file of a key, once.
func (d *document) keyText(name string) ([]byte, error) {
	if text, known := d.keys[name]; known {
		return text, nil
	}
	if d.readKey == nil || !fs.ValidPath(name) {
		return nil, fs.ErrInvalid
	}
	text, err := d.readKey(name)
	if err == nil && len(text) > maxKeyFile {
		err = fs.ErrInvalid
	}
	if err == nil {
		d.keys[name] = text
	}
	return text, err
}

// parseKey parses a PEM public key. The problem never quotes the text, since
// the file may contain a private key.
func parseKey(text []byte) (key crypto.PublicKey, problem string) {
	block, rest := pem.Decode(text)
	switch {
	case block == nil:
		return nil, "is not in PEM"
	case strings.Contains(block.Type, "PRIVATE"):
		return nil, "is a private one: name the public one, and keep this one elsewhere"
	case block.Type != "PUBLIC KEY" || strings.TrimSpace(string(rest)) != "":
		return nil, "is not one PUBLIC KEY in PEM, as cosign.pub is"
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, "cannot be parsed"
	}
	switch key.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return key, ""
	}
	return nil, "is of another kind than ECDSA and Ed25519"
}
