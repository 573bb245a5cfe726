package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/sandbox"
)

func TestNewer(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0.4.0", "0.3.9", true},
		{"v0.4.0", "0.3.9", true},
		{"0.4.0", "0.4.0", false},
		{"0.4.0+other", "0.4.0", false},
		{"0.4.0-rc.1", "0.4.0", false},
		{"0.3.9", "0.4.0", false},
		{"v0.0.0-20261129000000-abcdefabcdef", "v0.0.0-20261128000000-abcdefabcdef", true},
		{"", "0.4.0", false},
		{"0.4.0", "", false},
		{"0.4.0", "(devel)", false},
		{"latest", "0.4.0", false},
	} {
		if got := Newer(c.a, c.b); got != c.want {
			t.Errorf("Newer(%q, %q) = %v", c.a, c.b, got)
		}
	}
}

func offer(version, program string) Offer {
	sum := sha256.Sum256([]byte(program))
	return Offer{Version: version, OS: runtime.GOOS, Arch: runtime.GOARCH, Size: int64(len(program)), SHA256: hex.EncodeToString(sum[:])}
}

func TestSignatures(t *testing.T) {
	pair, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Sign(pair, offer("1.0.0", "program"))
	if err != nil {
		t.Fatal(err)
	}
	if o, err := s.Open(public); err != nil || o != offer("1.0.0", "program") {
		t.Errorf("%+v, %v", o, err)
	}
	changed := s
	changed.Offer = bytes.Replace(s.Offer, []byte("1.0.0"), []byte("2.0.0"), 1)
	elsewhere := s // the key signs other things, too
	if elsewhere.Signature, err = pair.Sign(s.Offer); err != nil {
		t.Fatal(err)
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	own, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		s      Signed
		signer string
	}{
		"a changed offer": {changed, public}, "a signature for another purpose": {elsewhere, public}, "no signature": {Signed{Offer: s.Offer}, public},
		"no key": {s, ""}, "a key of a machine": {s, own},
	} {
		if _, err := c.s.Open(c.signer); sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("%s: %v, want %s", what, err, sandbox.CodeDenied)
		}
	}
}

// stage stages a program and tries it.
func stage(t *testing.T, p Programs, running, version, program string) error {
	t.Helper()
	o := offer(version, program)
	if err := p.Check(o, running); err != nil {
		return err
	}
	if err := p.Stage(o, strings.NewReader(program)); err != nil {
		return err
	}
	return p.Try(t.Context(), o, nil, time.Minute)
}

func works(version string) string {
	return "#!/bin/sh\n# " + strings.Repeat("x", 40) + "\necho up " + version + "\ncat >/dev/null\n"
}

func TestTrials(t *testing.T) {
	p := Programs{Dir: t.TempDir()}
	current := func(want string) {
		t.Helper()
		path, ok := p.Current("1.0.0")
		text, _ := os.ReadFile(path)
		if ok != (want != "") || ok && string(text) != want {
			t.Errorf("the current program is %q, %v; want %q", text, ok, want)
		}
	}
	refuse := func(version, program, why string) {
		t.Helper()
		if err := stage(t, p, "1.0.0", version, program); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("version %s: %v, want %q", version, err, why)
		}
	}
	current("")
	if err := stage(t, p, "1.0.0", "1.1.0", works("1.1.0")); err != nil {
		t.Fatal(err)
	}
	current(works("1.1.0"))
	refuse("1.1.0", works("1.1.0")+"\n", "which was taken before")
	refuse("1.0.5", works("1.0.5"), "which was taken before")
	refuse("1.2.0", "#!/bin/sh\nexit 9\n", "exit status 9")
	current(works("1.1.0"))
	refuse("1.2.0", "#!/bin/sh\nexit 9\n", "did not come up")
	if err := p.Forgive(); err != nil {
		t.Fatal(err)
	}
	refuse("1.2.0", "#!/bin/sh\nexit 9\n", "exit status 9")
	refuse("1.3.0", "no program", "cannot be started")
	refuse("1.4.0", works("1.3.9"), "says that it is")
	current(works("1.1.0"))

	// The installed program is newer than what the daemon had.
	if path, ok := p.Current("1.5.0"); ok {
		t.Errorf("%s would serve instead of a newer one", path)
	}
	// Somebody has changed the file.
	if err := stage(t, p, "1.0.0", "1.6.0", works("1.6.0")); err != nil {
		t.Fatal(err)
	}
	path, _ := p.Current("1.0.0")
	if err := os.WriteFile(path, []byte(works("1.6.1")), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	current("")
	if err := stage(t, p, "1.0.0", "1.6.0", works("1.6.0")); err != nil {
		t.Errorf("staging a program that was changed again: %v", err)
	}
	current(works("1.6.0"))
}

// A trial that does not succeed ends with the database as it was, also if it ends
// with the process.
func TestTrialsRestoreTheDatabase(t *testing.T) {
	p := Programs{Dir: t.TempDir()}
	restored := func() (got string) {
		t.Helper()
		err := p.Restore(func(backup string) error {
			text, err := os.ReadFile(backup)
			got = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	try := func(version, program string) error {
		t.Helper()
		if err := p.Save(strings.NewReader("before " + version)); err != nil {
			t.Fatal(err)
		}
		return stage(t, p, "1.0.0", version, program)
	}
	if err := try("1.1.0", works("1.1.0")); err != nil {
		t.Fatal(err)
	}
	if got := restored(); got != "" {
		t.Errorf("after a trial that succeeded, %q is restored", got)
	}
	if err := try("1.2.0", "#!/bin/sh\nexit 9\n"); err == nil {
		t.Fatal("a program that fails comes up")
	}
	unable := errors.New("unable")
	if err := p.Restore(func(string) error { return unable }); !errors.Is(err, unable) {
		t.Errorf("the database is not restored, and the error is %v", err)
	}
	if err := p.Forgive(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before 1.2.0", ""} {
		if got := restored(); got != want {
			t.Errorf("%q is restored, want %q", got, want)
		}
	}
}

// A program that hangs is ended, and one whose trial is interrupted is not held
// against it.
func TestTrialsThatHang(t *testing.T) {
	p, hangs := Programs{Dir: t.TempDir()}, "#!/bin/sh\nexec sleep 1000\n"
	o := offer("1.1.0", hangs)
	if err := p.Stage(o, strings.NewReader(hangs)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Try(ctx, o, nil, time.Minute); err == nil {
		t.Error("a trial that was interrupted succeeds")
	}
	if err := p.Check(o, "1.0.0"); err != nil {
		t.Errorf("after a trial that was interrupted: %v", err)
	}
	if err := p.Try(t.Context(), o, nil, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not come up") {
		t.Errorf("a program that hangs: %v", err)
	}
	if err := p.Check(o, "1.0.0"); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("after it did not come up: %v, want %s", err, sandbox.CodeConflict)
	}
}
