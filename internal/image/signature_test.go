package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// signaturesOf makes an image with signatures in cosign's format, from pairs of
// payload and signature.
func signaturesOf(t testing.TB, pairs ...string) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for i := 0; i < len(pairs); i += 2 {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:       static.NewLayer([]byte(pairs[i]), typeSimpleSigning),
			Annotations: map[string]string{annotationSignature: base64.StdEncoding.EncodeToString([]byte(pairs[i+1]))},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return img
}

func digestOf(t testing.TB, what interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := what.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// wantSignatures compares signatures, as "payload=signature", by the digest
// they were found for.
func wantSignatures(t *testing.T, img *Image, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, s := range img.Signatures {
		got[s.Subject] += string(s.Payload) + "=" + string(s.Signature) + " "
	}
	for subject, all := range want {
		if strings.TrimSpace(got[subject]) != all {
			t.Errorf("for %s: %q, want %q", subject, got[subject], all)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d subjects, want %d: %v", len(got), len(want), got)
	}
}

// Signatures come with the image, for it and for the index that led to it, stay
// in the store, and are found when they were made after the image was pulled.
func TestSignatures(t *testing.T) {
	r := newRegistry(t)
	img := imageOf(t, "linux/amd64", tarOf(t, "f", "1"))
	other := imageOf(t, "linux/arm64", tarOf(t, "f", "2"))
	idx := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	own, index := digestOf(t, img), digestOf(t, idx)
	ref := r.push(t, "app:1", idx)
	linux, again := GetOptions{Platform: "linux/amd64"}, GetOptions{Platform: "linux/amd64", Policy: PolicyAlways}
	dir := t.TempDir()
	s := openAt(t, dir, Options{})
	wantSignatures(t, mustGet(t, s, ref, linux), nil)

	r.push(t, "app:"+signatureTag(index), signaturesOf(t, "p1", "s1", "p2", "s2"))
	r.push(t, "app:"+signatureTag(digestOf(t, other)), signaturesOf(t, "not", "mine"))
	wantSignatures(t, mustGet(t, s, ref, linux), nil) // not requested again
	wantSignatures(t, mustGet(t, s, ref, again), map[string]string{index: "p1=s1 p2=s2"})
	r.push(t, "app:"+signatureTag(own), signaturesOf(t, "p3", "s3"))
	both := map[string]string{index: "p1=s1 p2=s2", own: "p3=s3"}
	wantSignatures(t, mustGet(t, s, ref, again), both)
	wantSignatures(t, mustGet(t, s, ref, again), both) // and none twice

	// The same image under another name has no signatures there, and keeps those.
	bare := r.push(t, "elsewhere:1", img)
	wantSignatures(t, mustGet(t, s, bare, linux), both)
	wantSignatures(t, mustGet(t, openAt(t, dir, Options{}), own, GetOptions{}), both)
	wantSignatures(t, mustGet(t, open(t, Options{}), bare, linux), nil)
}

// If a registry fails or returns invalid signatures, the image counts as
// unsigned, and can still be pulled.
func TestSignaturesThatAreNone(t *testing.T) {
	linux := GetOptions{Platform: "linux/amd64"}
	for name, prepare := range map[string]func(r *testRegistry, tag string){
		"refused": func(r *testRegistry, tag string) {
			r.hooks = append(r.hooks, func(w http.ResponseWriter, req *http.Request) bool {
				if strings.HasSuffix(req.URL.Path, tag) {
					w.WriteHeader(http.StatusForbidden)
				}
				return strings.HasSuffix(req.URL.Path, tag)
			})
		},
		"not a manifest": func(r *testRegistry, tag string) {
			r.hooks = append(r.hooks, func(w http.ResponseWriter, req *http.Request) bool {
				if strings.HasSuffix(req.URL.Path, tag) {
					_, _ = w.Write([]byte("{"))
				}
				return strings.HasSuffix(req.URL.Path, tag)
			})
		},
		"tampered": func(r *testRegistry, tag string) {
			sigs := signaturesOf(t, "payload", "signature")
			r.push(t, "app:"+tag, sigs)
			layers, _ := sigs.Layers()
			blob := digestOf(t, layers[0])
			r.hooks = append(r.hooks, func(w http.ResponseWriter, req *http.Request) bool {
				if strings.HasSuffix(req.URL.Path, blob) {
					_, _ = w.Write([]byte("Payload"))
				}
				return strings.HasSuffix(req.URL.Path, blob)
			})
		},
		"too long": func(r *testRegistry, tag string) {
			r.push(t, "app:"+tag, signaturesOf(t, strings.Repeat("x", maxPayload+1), "signature", "p", strings.Repeat("y", maxPayload+1)))
		},
		"an image": func(r *testRegistry, tag string) {
			r.push(t, "app:"+tag, imageOf(t, "linux/amd64", tarOf(t, "evil", "")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			img := imageOf(t, "linux/amd64", tarOf(t, "f", name))
			ref := r.push(t, "app:1", img)
			prepare(r, signatureTag(digestOf(t, img)))
			wantSignatures(t, mustGet(t, open(t, Options{}), ref, linux), nil)
		})
	}
	r := newRegistry(t)
	img := imageOf(t, "linux/amd64", tarOf(t, "f", "many"))
	ref := r.push(t, "app:1", img)
	r.push(t, "app:"+signatureTag(digestOf(t, img)), signaturesOf(t, strings.Split(strings.Repeat("p s ", 100)+"p s", " ")...))
	if got := mustGet(t, open(t, Options{}), ref, linux); len(got.Signatures) > maxSignatures {
		t.Errorf("%d signatures are kept", len(got.Signatures))
	}
}

// A layout has signatures under tags, or with cosign's annotations. They do not
// count as its images.
func TestSignaturesOfLayouts(t *testing.T) {
	img := imageOf(t, "linux/amd64", tarOf(t, "f", "1"))
	own := digestOf(t, img)
	for name, note := range map[string]map[string]string{
		"tagged": {annotationName: signatureTag(own)},
		"named":  {annotationName: "ghcr.io/acme/app:" + signatureTag(own)},
		"saved":  {annotationKind: kindSignatures},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := layout.Write(dir, empty.Index)
			if err == nil {
				err = p.AppendImage(img)
			}
			if err == nil {
				err = p.AppendImage(signaturesOf(t, "p", "s"), layout.WithAnnotations(note))
			}
			if err != nil {
				t.Fatal(err)
			}
			s := open(t, Options{})
			got := mustGet(t, s, "oci:"+dir, GetOptions{Platform: "linux/amd64"})
			wantSignatures(t, got, map[string]string{own: "p=s"})
			if got.Digest != own {
				t.Errorf("it is %s", got.Digest)
			}
			as, err := s.Import(context.Background(), "oci:"+dir, "mine:1", GetOptions{Platform: "linux/amd64"})
			if err != nil {
				t.Fatal(err)
			}
			wantSignatures(t, as, map[string]string{own: "p=s"})
		})
	}
}

// The number of signatures per image is limited; the newest are kept.
func TestKeptWith(t *testing.T) {
	var known []Signature
	for i := range 1000 {
		s := Signature{"sha256:x", []byte{byte(i), byte(i >> 8)}, []byte("s")}
		known = keptWith([]Signature{s, s}[:1], known)
		if len(known) > maxKept || !bytes.Equal(known[0].Payload, s.Payload) {
			t.Fatalf("after %d: %d, %v", i, len(known), known[0])
		}
	}
}
