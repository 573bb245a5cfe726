// Package update replaces the program of a self-hosted machine with a newer one
// of the daemon that the machine joined, if the machine's owner has turned that
// on. The daemon signs what it offers with the key of its account, which the
// machine has kept since it joined.
package update

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/nats-io/nkeys"
	"golang.org/x/mod/semver"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/sandbox"
)

// Offer describes a program.
type Offer struct {
	Version string `json:"version"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"` // in hexadecimal
}

// Signed is an Offer in JSON with a signature, and the daemon that has the
// program, which is not signed.
type Signed struct {
	Offer     []byte `json:"offer"`
	Signature []byte `json:"signature"`
	Daemon    string `json:"daemon"`
}

// purpose begins what is signed, so that no signature for another purpose fits.
const purpose = "atoll: program for machines\n"

// Sign signs an offer.
func Sign(pair nkeys.KeyPair, o Offer) (s Signed, err error) {
	if s.Offer, err = json.Marshal(o); err == nil {
		s.Signature, err = pair.Sign(append([]byte(purpose), s.Offer...))
	}
	return s, err
}

func refused(code sandbox.Code, format string, args ...any) error {
	return &sandbox.Error{Code: code, Op: "machine.update", Message: fmt.Sprintf(format, args...)}
}

// maxSize limits the size of a program in bytes.
const maxSize = 512 << 20

// Open returns the offer if the account with the public key signer has signed it.
func (s Signed) Open(signer string) (o Offer, err error) {
	if !nkeys.IsValidPublicAccountKey(signer) {
		return o, refused(sandbox.CodeDenied, "this machine knows no key of the daemon")
	}
	public, err := nkeys.FromPublicKey(signer)
	if err == nil {
		err = public.Verify(append([]byte(purpose), s.Offer...), s.Signature)
	}
	if err != nil {
		return o, refused(sandbox.CodeDenied, "the program was not signed by the daemon that this machine joined")
	}
	return o, json.Unmarshal(s.Offer, &o)
}

// canonical returns a version as package semver expects it.
func canonical(version string) string {
	if version != "" && !strings.HasPrefix(version, "v") {
		version = "v" + version
	}
	return version
}

// Newer reports whether version is newer than other. A program without a version
// is neither newer nor older.
func Newer(version, other string) bool {
	version, other = canonical(version), canonical(other)
	return semver.IsValid(version) && semver.IsValid(other) && semver.Compare(version, other) > 0
}

// Programs is a directory with programs of the daemon. It is not safe for
// concurrent use.
type Programs struct{ Dir string }

// state describes the installed programs.
type state struct {
	// Tried is the newest program that was tried. Nothing older, and no other
	// program of its version, is ever taken.
	Tried *tried `json:"tried,omitempty"`
	// Current is the program that serves the machine. Nil: the installed one.
	Current *tried `json:"current,omitempty"`
	// Trying is set from the begin of a trial until it succeeded, or the database was
	// restored.
	Trying bool `json:"trying,omitempty"`
}

type tried struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	// Failed is set before the program is started, until it is up.
	Failed bool `json:"failed,omitempty"`
}

func (t *tried) is(o Offer) bool { return t != nil && t.Version == o.Version && t.SHA256 == o.SHA256 }

func (p Programs) stateFile() string { return filepath.Join(p.Dir, "state.json") }

func (p Programs) state() (s state, err error) {
	text, err := os.ReadFile(p.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// path is where a program is.
func (p Programs) path(sum string) string { return filepath.Join(p.Dir, sum, "atoll") }

// Check refuses what must not replace a program of the version running.
func (p Programs) Check(o Offer, running string) error {
	s, err := p.state()
	sum, bad := hex.DecodeString(o.SHA256)
	switch {
	case err != nil:
		return err
	case o.OS != runtime.GOOS || o.Arch != runtime.GOARCH:
		return refused(sandbox.CodeInvalid, "the program is for %s/%s", o.OS, o.Arch)
	case o.Size <= 0 || o.Size > maxSize:
		return refused(sandbox.CodeInvalid, "the program has %d bytes", o.Size)
	case bad != nil || len(sum) != sha256.Size || o.SHA256 != strings.ToLower(o.SHA256):
		return refused(sandbox.CodeInvalid, "the program has no SHA-256")
	case !Newer(o.Version, running):
		return refused(sandbox.CodeConflict, "version %s is not newer than %s, which runs", o.Version, running)
	case s.Tried.is(o) && s.Tried.Failed:
		return refused(sandbox.CodeConflict, "version %s did not come up; to try it again: atoll machine updates on", o.Version)
	case s.Tried != nil && !s.Tried.is(o) && !Newer(o.Version, s.Tried.Version):
		return refused(sandbox.CodeConflict, "version %s is not newer than %s, which was taken before", o.Version, s.Tried.Version)
	}
	return nil
}

// Staged reports whether the program is here, complete.
func (p Programs) Staged(o Offer) bool { return intact(p.path(o.SHA256), o.SHA256) }

func intact(path, want string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return err == nil && hex.EncodeToString(sum.Sum(nil)) == want
}

// Stage stores a program that was checked. It is not started yet.
func (p Programs) Stage(o Offer, r io.Reader) error {
	s, err := p.state()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return err
	}
	if err := p.keep(s.Current); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(p.Dir, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := download(filepath.Join(dir, "atoll"), o, r); err != nil {
		return err
	}
	to := filepath.Dir(p.path(o.SHA256))
	if err := os.RemoveAll(to); err != nil { // one that was damaged
		return err
	}
	return os.Rename(dir, to)
}

func download(path string, o Offer, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(r, o.Size+1))
	err = errors.Join(err, f.Sync(), f.Close())
	switch {
	case err != nil:
		return err
	case n != o.Size:
		return refused(sandbox.CodeInvalid, "the program of version %s has not the %d bytes that were signed", o.Version, o.Size)
	case hex.EncodeToString(sum.Sum(nil)) != o.SHA256:
		return refused(sandbox.CodeInvalid, "the program of version %s is not the one that was signed", o.Version)
	}
	return nil
}

// keep removes all programs but one.
func (p Programs) keep(one *tried) error {
	all, err := os.ReadDir(p.Dir)
	for _, e := range all {
		if e.IsDir() && (one == nil || e.Name() != one.SHA256) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.Dir, e.Name())))
		}
	}
	return err
}

// Current returns the program that serves the machine instead of this one, which
// has the version running. ok is false if it is this one.
func (p Programs) Current(running string) (path string, ok bool) {
	s, err := p.state()
	if err != nil || s.Current == nil || !Newer(s.Current.Version, running) {
		return "", false
	}
	path = p.path(s.Current.SHA256)
	return path, intact(path, s.Current.SHA256)
}

// Forgive allows to try a program again that did not come up.
func (p Programs) Forgive() error {
	s, err := p.state()
	if err != nil || s.Tried == nil || !s.Tried.Failed {
		return err
	}
	s.Tried.Failed = false
	return machine.WriteFile(p.stateFile(), s)
}

// Clear removes the programs and their state.
func (p Programs) Clear() error { return os.RemoveAll(p.Dir) }
