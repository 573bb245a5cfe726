package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/rogpeppe/go-internal/testscript"
)

// serveSigned serves a registry with signed images and forgeries:
//
//	acme/app       signed by release.pub
//	acme/bare      not signed
//	acme/strange   signed by an unknown key
//	acme/swapped   with the signature of acme/app
//	acme/altered   signed by release.pub, with a payload changed afterwards
//	other/app      signed by release.pub, under another name
//
// It writes the registry's address and the public key into files.
func serveSigned(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: servesigned ROOTFS ADDRESS KEY")
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	ts.Defer(server.Close)
	s := &signedImages{ts: ts, host: strings.TrimPrefix(server.URL, "http://"), rootfs: ts.MkAbs(args[0])}
	release, stranger := newKey(ts), newKey(ts)
	app := s.push("acme/app", "")
	s.sign("acme/app", app, release, app, "")
	s.push("acme/bare", "bare")
	strange := s.push("acme/strange", "strange")
	s.sign("acme/strange", strange, stranger, strange, "")
	s.sign("acme/swapped", s.push("acme/swapped", "swapped"), release, app, "")
	altered := s.push("acme/altered", "altered")
	s.sign("acme/altered", altered, release, altered, " ")
	other := s.push("other/app", "other")
	s.sign("other/app", other, release, other, "")

	der, err := x509.MarshalPKIXPublicKey(release.Public())
	ts.Check(err)
	ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(args[2])), 0o755))
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(s.host), 0o600))
}

func newKey(ts *testscript.TestScript) crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	return key
}

type signedImages struct {
	ts           *testscript.TestScript
	host, rootfs string
}

// push creates an image, made unique by a label, and returns its digest.
func (s *signedImages) push(repo, label string) v1.Hash {
	layer, err := tarball.LayerFromFile(s.rootfs)
	s.ts.Check(err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	s.ts.Check(err)
	cfg, err := img.ConfigFile()
	s.ts.Check(err)
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config.Labels = "linux", runtime.GOARCH, map[string]string{"is": label}
	img, err = mutate.ConfigFile(img, cfg)
	s.ts.Check(err)
	s.write(repo+":1", img)
	digest, err := img.Digest()
	s.ts.Check(err)
	return digest
}

// sign puts a signature about an image beside another one, with an optional
// addition to the signed payload.
func (s *signedImages) sign(repo string, beside v1.Hash, key crypto.Signer, about v1.Hash, added string) {
	payload := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, repo, about)
	sum := sha256.Sum256([]byte(payload))
	raw, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	s.ts.Check(err)
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	artifact, err = mutate.Append(artifact, mutate.Addendum{
		Layer:       static.NewLayer([]byte(payload+added), "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(raw)},
	})
	s.ts.Check(err)
	s.write(repo+":sha256-"+beside.Hex+".sig", artifact)
}

func (s *signedImages) write(ref string, img v1.Image) {
	parsed, err := name.ParseReference(s.host + "/" + ref)
	s.ts.Check(err)
	s.ts.Check(remote.Write(parsed, img))
}
