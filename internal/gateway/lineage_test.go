package gateway_test

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// believer is a long-lived program that loads trusted certificates once, and
// makes a request on demand.
const believer = `import os, ssl, time, urllib.request
trust = ssl.create_default_context()
assert trust.get_ca_certs()
open("/tmp/loaded", "w").write("yes")
while not os.path.exists("/tmp/go"): time.sleep(0.01)
try:
    got = urllib.request.urlopen("https://api.test/v1/loaded", context=trust, timeout=20).read().decode()
except Exception as e:
    got = "failed: %r" % e
open("/tmp/got.new", "w").write(got)
os.rename("/tmp/got.new", "/tmp/got")
`

// lineage is a sandbox in which a program has loaded its trusted certificates.
func (r *rig) lineage(id sandbox.ID, p gateway.Policy) *rigSandbox {
	r.tb.Helper()
	b := r.sandbox(id, p)
	b.put("/tmp/p.py", []byte(believer))
	process, err := b.in.Exec(r.tb.Context(), &sandbox.Command{Shell: "exec python3 /tmp/p.py", Background: true})
	if err != nil {
		r.tb.Fatal(err)
	}
	r.tb.Cleanup(func() { process.Close() })
	if out, code := b.sh("while ! [ -s /tmp/loaded ]; do sleep 0.05; done"); code != 0 {
		r.tb.Fatal(out)
	}
	return b
}

// loaded makes the program with loaded certificates send its request.
func (s *rigSandbox) loaded() string {
	s.r.tb.Helper()
	out, _ := s.sh("touch /tmp/go; while ! [ -e /tmp/got ]; do sleep 0.05; done; cat /tmp/got")
	return out
}

// anew makes the request with a program that loads its certificates now.
func (s *rigSandbox) anew() string {
	s.r.tb.Helper()
	out, _ := s.sh("curl -sS --max-time 20 https://api.test/v1/anew")
	return out
}

func (s *rigSandbox) snapshot(opts driver.SnapshotOptions) driver.SnapshotRef {
	s.r.tb.Helper()
	opts.ID = "sn-" + strings.ToLower(rand.Text())
	snap, err := s.in.(driver.Snapshotter).Snapshot(s.r.tb.Context(), opts)
	if err != nil {
		s.r.tb.Fatal(err)
	}
	return snap.Ref
}

// restore makes another sandbox of a snapshot.
func (r *rig) restore(id sandbox.ID, p gateway.Policy, ref driver.SnapshotRef, memory bool) *rigSandbox {
	r.tb.Helper()
	in, how, err := r.provider.Restore(r.tb.Context(), r.spec(id, p), ref)
	if err != nil || how.Memory != memory {
		r.tb.Fatalf("%s: %+v, %v", id, how, err)
	}
	return r.own(in)
}

// reopen puts another gateway in the place of the one of a rig, as when both
// the daemon and its gateway process have ended.
func (r *rig) reopen(w *world, dir string) {
	r.tb.Helper()
	if err := r.gateway.Close(); err != nil {
		r.tb.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{Dir: dir, Executable: program, Event: r.note, Settings: w.settings})
	if err != nil {
		r.tb.Fatal(err)
	}
	r.tb.Cleanup(func() { g.Close() })
	r.gateway = g
	w.outside.do(func() {
		l, err := g.Connect(r.tb.Context(), "first", gateway.Policy{}, gateway.Known{})
		if err != nil {
			r.tb.Fatal(err)
		}
		l.File.Close()
	})
}

func terminated() gateway.Policy {
	return profile(sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/v1/**"}})
}

// TestAuthorityGoesAlong checks that a program with loaded certificates can
// still connect in a copy of its sandbox and in a restored one, even through
// another gateway with the same key. A machine with another key has another
// authority.
func TestAuthorityGoesAlong(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test")
	r, policy := w.rig(), terminated()
	b := r.lineage("original", policy)
	ca := b.read("/etc/atoll/ca.crt")
	keys, err := r.gateway.KeyOf("original")
	if err != nil {
		t.Fatal(err)
	}
	files := b.snapshot(driver.SnapshotOptions{})
	copied := b.snapshot(driver.SnapshotOptions{Memory: true})
	stopped := b.snapshot(driver.SnapshotOptions{Memory: true, Stop: true})

	check := func(b *rigSandbox, memory bool) {
		t.Helper()
		if memory {
			if out := b.loaded(); !strings.Contains(out, `"URI":"/v1/loaded"`) {
				t.Errorf("what was loaded: %s", out)
			}
		}
		if out := b.anew(); !strings.Contains(out, `"URI":"/v1/anew"`) {
			t.Errorf("what is read anew: %s", out)
		}
		if got := b.read("/etc/atoll/ca.crt"); !bytes.Equal(got, ca) {
			t.Errorf("it trusts another authority: %s", got)
		}
		if n := bytes.Count(b.read("/etc/atoll/ca-bundle.crt"), ca); n != 1 {
			t.Errorf("its authority is %d times among those that it trusts", n)
		}
	}
	check(r.restore("copy", policy, copied, true), true)
	check(r.restore("plain", policy, files, false), false)
	again := r.restore("second", policy, copied, true).snapshot(driver.SnapshotOptions{Memory: true})
	check(r.restore("grandchild", policy, again, true), true)
	fresh := r.sandbox("stranger", policy)
	if bytes.Equal(fresh.read("/etc/atoll/ca.crt"), ca) {
		t.Error("a sandbox of no such descent has the same authority")
	}

	r.reopen(w, r.dir)
	check(r.restore("restored", policy, stopped, true), true)

	r.reopen(w, t.TempDir())
	elsewhere := r.restore("elsewhere", policy, copied, true)
	if out := elsewhere.loaded(); !strings.Contains(out, "CERTIFICATE_VERIFY_FAILED") {
		t.Errorf("another machine signs in the name of this one: %s", out)
	}
	if out := elsewhere.anew(); !strings.Contains(out, `"URI":"/v1/anew"`) || bytes.Equal(elsewhere.read("/etc/atoll/ca.crt"), ca) {
		t.Errorf("another machine: %s", out)
	}
	absent(t, r.state, keys) // snapshots are in there too
}

// absent checks that no file below a directory holds one of several texts.
func absent(t *testing.T, dir string, texts [][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return eachData(path, func(data []byte) {
			for _, text := range texts {
				if bytes.Contains(data, text) {
					t.Errorf("%s holds a private key", path)
				}
			}
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// eachData calls f with the data of a file, piece by piece, without its holes.
// Pieces overlap by more than the length of a key.
func eachData(path string, f func([]byte)) error {
	const piece, overlap = 1 << 20, 1 << 10
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	buf := make([]byte, piece+overlap)
	for at := int64(0); ; at += piece {
		if at, err = file.Seek(at, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return nil // no data from here on
		} else if err != nil {
			return err
		}
		n, err := file.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		f(buf[:n])
	}
}

// TestAuthorityIsNotBelieved checks that the certificate in a snapshot is not
// trusted: an authority that this machine did not create is not used.
func TestAuthorityIsNotBelieved(t *testing.T) {
	g, err := gateway.New(gateway.Options{Dir: t.TempDir(), Executable: program})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	connect := func(id sandbox.ID, former []byte) *x509.Certificate {
		t.Helper()
		l, err := g.Connect(t.Context(), id, gateway.Policy{}, gateway.Known{CA: former})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.File.Close() })
		block, _ := pem.Decode(l.CA)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	first := connect("first", nil)
	if next := connect("next", first.Raw); !next.Equal(first) {
		t.Error("it does not go along")
	}
	forged, err := gateway.Forge(first.SerialNumber)
	if err != nil {
		t.Fatal(err)
	}
	altered := bytes.Clone(first.Raw)
	altered[len(altered)-1] ^= 1
	for name, former := range map[string][]byte{
		"forged": forged, "altered": altered, "nothing": []byte("nothing"), "long": bytes.Repeat([]byte{0x30}, 1<<20), "two": append(bytes.Clone(first.Raw), first.Raw...),
	} {
		if got := connect(sandbox.ID(name), former); got.Equal(first) || bytes.Equal(got.Raw, former) {
			t.Errorf("%s: it is believed", name)
		}
	}
}

// TestMasterKey checks that processes that start at the same time use the same
// key, that only its owner can read it, and that a damaged one is not replaced.
func TestMasterKey(t *testing.T) {
	dir := t.TempDir()
	made := make(chan []byte)
	for range 8 {
		go func() {
			g, err := gateway.New(gateway.Options{Dir: dir, Executable: program})
			if err != nil {
				t.Error(err)
				made <- nil
				return
			}
			defer g.Close()
			made <- g.Master()
		}()
	}
	first := <-made
	for range 7 {
		if key := <-made; !bytes.Equal(key, first) {
			t.Error("two keys")
		}
	}
	path := filepath.Join(dir, "authorities.key")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Size() != 32 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.WriteFile(path, first[:8], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gateway.New(gateway.Options{Dir: dir, Executable: program}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Error(err)
	}
}
