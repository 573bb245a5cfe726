package gateway_test

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/driver"
)

// TestTrustStores checks that a Java of an image trusts the gateway wherever it
// keeps its authorities, and that none of it gets into another image.
func TestTrustStores(t *testing.T) {
	fixture := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("../../provider/internal/netfiles/truststore/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	jks, p12, locked := fixture("cacerts.jks"), fixture("cacerts.p12"), fixture("password.p12")
	files := map[string][]byte{
		"/etc/pki/ca-trust/extracted/java/cacerts":      jks,
		"/usr/lib/jvm/java-8/jre/lib/security/cacerts":  jks,
		"/opt/java/openjdk/lib/security/cacerts":        p12,
		"/usr/local/openjdk-17/lib/security/cacerts":    locked,
		"/srv/my-java/lib/security/cacerts":             p12, // where only JAVA_HOME leads
		"/opt/other/lib/security/cacerts":               []byte("no store"),
		"/etc/pki/ca-trust/source/anchors/company.crt":  []byte("another one\n"),
		"/etc/ssl/certs/ca-certificates.crt":            []byte("# none\n"),
		"/usr/share/nothing/security/lib/cacerts/store": jks,
	}
	r := newRig(t, loopback())
	spec := r.spec("stores", allow("good.test"))
	spec.Image, spec.Env = "tar:"+imageOf(t, files), map[string]string{"JAVA_HOME": "/srv/my-java/"}
	in, err := r.provider.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	b := r.own(in)
	pemCA := b.read("/etc/atoll/ca.crt")
	block, _ := pem.Decode(pemCA)
	if block == nil {
		t.Fatalf("the authority is %q", pemCA)
	}
	for name, old := range files {
		now := b.read(name)
		switch has := bytes.Contains(now, block.Bytes); {
		case (bytes.Equal(old, jks) || bytes.Equal(old, p12)) && filepath.Base(name) == "cacerts":
			if !has {
				t.Errorf("%s lacks the authority", name)
			}
		case has || !bytes.HasPrefix(now, old):
			t.Errorf("%s was changed", name)
		}
	}
	for _, dir := range []string{"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors"} {
		if got := b.read(dir + "/atoll-gateway.crt"); !bytes.Equal(got, pemCA) {
			t.Errorf("%s holds %q", dir, got)
		}
	}

	var layer bytes.Buffer
	if err := in.(driver.Differ).Diff(t.Context(), &layer); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(layer.Bytes(), block.Bytes) || bytes.Contains(layer.Bytes(), bytes.TrimSpace(pemCA)) {
		t.Error("the authority of this sandbox is in what is to be an image")
	}
	for tr := tar.NewReader(&layer); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(tr)
		if old, ok := files["/"+h.Name]; ok && !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(old)) {
			t.Errorf("%s is not as it was in the image", h.Name)
		}
	}
}

// imageOf writes an image of files, and returns where it is.
func imageOf(tb testing.TB, files map[string][]byte) string {
	tb.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			tb.Fatal(err)
		}
		_, _ = tw.Write(files[name])
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), "image.tar")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// read returns a file of a sandbox.
func (s *rigSandbox) read(path string) []byte {
	s.r.tb.Helper()
	r, _, err := s.in.(driver.FileSystem).Read(s.r.tb.Context(), path, driver.ReadOptions{})
	if err != nil {
		s.r.tb.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		s.r.tb.Fatal(err)
	}
	return data
}

// BenchmarkCreate measures creating a sandbox with a network and trusted
// certificates.
func BenchmarkCreate(b *testing.B) {
	r := newRig(b, loopback())
	for b.Loop() {
		in, err := r.provider.Create(b.Context(), r.spec("bench", allow("good.test")))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := in.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
