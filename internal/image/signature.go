package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-run/atoll/sandbox"
)

// Signature is a detached signature found with an image, as cosign writes it.
// It is not verified here, because the trusted keys are not known here.
type Signature struct {
	Subject   string `json:"subject"` // digest that it was found for: the image's, or that of an index that refers to it
	Payload   []byte `json:"payload"` // the signed content, JSON
	Signature []byte `json:"signature"`
}

// How cosign stores signatures: as layers of a manifest whose tag is derived
// from the digest. The content of a layer is what was signed.
const (
	typeSimpleSigning   = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature = "dev.cosignproject.cosign/signature"
	annotationKind      = "kind" // in a layout written by cosign
	kindSignatures      = "dev.cosignproject.cosign/sigs"
)

// Limits of signatures.
const (
	maxPayload    = 64 << 10
	maxSignatures = 16  // per digest
	maxKept       = 128 // per image in the store
)

// signatureTag returns the tag of the signatures for a digest.
func signatureTag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// isAttachment reports whether an entry of a layout is attached to an image
// instead of being one.
func isAttachment(d v1.Descriptor) bool {
	name := d.Annotations[annotationName]
	tag := name[strings.LastIndexByte(name, ':')+1:]
	kind := d.Annotations[annotationKind]
	digest, ext, found := strings.Cut(tag, ".")
	_, isDigest := digestHex(strings.Replace(digest, "-", ":", 1))
	return kind == kindSignatures || kind == "dev.cosignproject.cosign/atts" || found && isDigest && (ext == "sig" || ext == "att" || ext == "sbom")
}

// signatures returns the signatures of a manifest. Invalid ones are left out.
func (r *resolver) signatures(ctx context.Context, subject string, data []byte) (out []Signature) {
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	for _, l := range m.Layers {
		raw, err := base64.StdEncoding.DecodeString(l.Annotations[annotationSignature])
		if string(l.MediaType) != typeSimpleSigning || err != nil || len(raw) == 0 || len(raw) > maxPayload || l.Size > maxPayload {
			continue
		}
		payload, err := r.fetch(ctx, l)
		if err == nil {
			out = append(out, Signature{subject, payload, raw})
		}
		if len(out) == maxSignatures {
			break
		}
	}
	return out
}

// subjects returns the digests that a signature of an image may be for: its
// own, and those of the indexes that refer to it.
func (res *resolved) subjects() []string { return append([]string{res.digest}, res.via...) }

// signatures gets the signatures of an image from the registry. Most images
// have none. If the registry fails, the image counts as not signed.
func (r *registrySource) signatures(ctx context.Context, client *origin, res *resolver, found *resolved) (out []Signature) {
	for _, subject := range found.subjects() {
		data, _, err := client.Manifest(ctx, signatureTag(subject), r.store.opts.Limits.Manifest)
		if err == nil {
			out = append(out, res.signatures(ctx, subject, data)...)
		} else if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			r.store.opts.Logger.Warn("the signatures of an image cannot be read", "image", r.ref.name, "error", err)
		}
	}
	return out
}

// keptWith merges new signatures with known ones, because an image may be found
// in several places. It keeps the latest.
func keptWith(found, known []Signature) []Signature {
	out := append([]Signature(nil), found...)
	for _, k := range known {
		if len(out) >= maxKept {
			break
		}
		if !containsSignature(out, k) {
			out = append(out, k)
		}
	}
	return out
}

func containsSignature(all []Signature, s Signature) bool {
	for _, have := range all {
		if have.Subject == s.Subject && bytes.Equal(have.Signature, s.Signature) && bytes.Equal(have.Payload, s.Payload) {
			return true
		}
	}
	return false
}

// signatures finds the signatures of an image in its layout: by tag as in a
// registry, or by the annotation of cosign save.
func (l *layoutSource) signatures(ctx context.Context, r *resolver, idx *v1.IndexManifest, found *resolved) (out []Signature) {
	for _, d := range idx.Manifests {
		name := d.Annotations[annotationName]
		for _, subject := range found.subjects() {
			tag := signatureTag(subject)
			if name != tag && !strings.HasSuffix(name, ":"+tag) && d.Annotations[annotationKind] != kindSignatures || len(out) >= maxKept {
				continue
			}
			if data, err := r.fetch(ctx, d); err == nil { // damaged data cannot be a valid signature
				out = append(out, r.signatures(ctx, subject, data)...)
			}
		}
	}
	return out
}
