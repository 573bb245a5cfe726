package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-run/atoll/internal/image/registry"
	"github.com/atoll-run/atoll/sandbox"
)

// Signature is a detached signature that lay beside an image, as cosign writes
// them. Nobody has verified it: which keys count is not known here.
type Signature struct {
	Subject   string `json:"subject"` // what it was found for: the image's digest, or that of an index that led to it
	Payload   []byte `json:"payload"` // what was signed, JSON
	Signature []byte `json:"signature"`
}

// How cosign keeps signatures: each is a layer, whose content is what was
// signed, of a manifest that is tagged after the digest.
const (
	typeSimpleSigning   = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature = "dev.cosignproject.cosign/signature"
	annotationKind      = "kind" // in a layout that cosign wrote
	kindSignatures      = "dev.cosignproject.cosign/sigs"
)

// Bounds of what is kept.
const (
	maxPayload    = 64 << 10
	maxSignatures = 16  // for one digest at a time
	maxKept       = 128 // of one image in the store
)

// signatureTag is the tag of the signatures for a digest.
func signatureTag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// isAttachment reports whether an entry of a layout is no image but something
// that was attached to one.
func isAttachment(d v1.Descriptor) bool {
	name := d.Annotations[annotationName]
	tag := name[strings.LastIndexByte(name, ':')+1:]
	kind := d.Annotations[annotationKind]
	digest, ext, found := strings.Cut(tag, ".")
	_, isDigest := digestHex(strings.Replace(digest, "-", ":", 1))
	return kind == kindSignatures || kind == "dev.cosignproject.cosign/atts" || found && isDigest && (ext == "sig" || ext == "att" || ext == "sbom")
}

// signatures reads the signatures of a manifest whose content is given. What
// is none is left out: it cannot be verified anyway.
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

// subjects are the digests that a signature of an image may be for: its own, and
// those of the indexes that led to it.
func (res *resolved) subjects() []string { return append([]string{res.digest}, res.via...) }

// signatures asks the registry for the signatures of an image. One without any
// is the usual case, and a registry that does not tell keeps nobody from the
// image: it counts as not signed.
func (r *registrySource) signatures(ctx context.Context, client *registry.Client, res *resolver, found *resolved) (out []Signature) {
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

// keptWith returns signatures together with those that were known before: an
// image may have been found in several places. The latest are kept.
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

// signatures finds the signatures of an image in its layout: tagged as in a
// registry, or marked as cosign does when it saves an image.
func (l *layoutSource) signatures(ctx context.Context, r *resolver, idx *v1.IndexManifest, found *resolved) (out []Signature) {
	for _, d := range idx.Manifests {
		name := d.Annotations[annotationName]
		for _, subject := range found.subjects() {
			tag := signatureTag(subject)
			if name != tag && !strings.HasSuffix(name, ":"+tag) && d.Annotations[annotationKind] != kindSignatures || len(out) >= maxKept {
				continue
			}
			if data, err := r.fetch(ctx, d); err == nil { // what is damaged verifies nothing
				out = append(out, r.signatures(ctx, subject, data)...)
			}
		}
	}
	return out
}
