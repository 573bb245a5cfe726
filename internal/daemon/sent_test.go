package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// packed makes a session with files, and writes its envelope and archive.
func packed(t *testing.T, c *atoll.Client) (s *atoll.Session, e durable.Envelope, file []byte) {
	t.Helper()
	s = openSession(t, c, sandbox.Spec{Env: map[string]string{"TOKEN": "sesame"}}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace/sub; echo kept > /workspace/sub/note; echo other > /outside")
	var out bytes.Buffer
	e, err := s.Archive(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(e); strings.Contains(string(text), "sesame") || e.Files == nil || e.Files.Size != int64(out.Len()) {
		t.Errorf("the envelope: %s", text)
	}
	return s, e, out.Bytes()
}

// RB-37, RB-39: an envelope and its archive are enough for another installation,
// whether the first sandbox is gone or cannot be reached. RB-37.
func TestArchivesGoAlongWithEnvelopes(t *testing.T) {
	t.Parallel()
	first := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	second := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	s, e, file := packed(t, first)

	_, err := second.Sessions().Resume(t.Context(), e, atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	var refused *sandbox.Error
	if !errors.As(err, &refused) || !strings.Contains(refused.Hint, "--archive") {
		t.Errorf("the error gives no hint: %v", err)
	}
	_, err = second.Sessions().ResumeFrom(t.Context(), e, bytes.NewReader(append(slices.Clone(file), 0)), atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	if all := sandboxes(t, second); len(all) != 0 {
		t.Errorf("sandboxes were made: %+v", all)
	}

	// Where it lives, the archive is not needed.
	same, err := first.Sessions().ResumeFrom(t.Context(), e, bytes.NewReader(file), atoll.SessionOptions{})
	if err != nil || same.ID() != s.ID() || same.Receipt().Outcome != durable.OutcomeAttached {
		t.Fatalf("resumed where it lives: %+v, %v", same, err)
	}
	_ = same.Close()

	rebuilt := func(name string) *atoll.Session {
		t.Helper()
		got, err := second.Sessions().ResumeFrom(t.Context(), e, bytes.NewReader(file), atoll.SessionOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = got.Close() })
		r := got.Receipt()
		if r.Outcome != durable.OutcomeRebuilt || !slices.Contains(r.Lost, durable.LostFiles) || !slices.Contains(r.Lost, durable.LostProcesses) {
			t.Errorf("the receipt: %+v", r)
		}
		if said := runShell(t, got, "cat /workspace/sub/note; echo $TOKEN; ls /outside || true"); said != "kept" {
			t.Errorf("it has %q", said)
		}
		return got
	}
	rebuilt("while-the-first-lives")

	// A provider that this daemon does not have matters only if no other is named.
	foreign := e
	foreign.Backend = "theirs"
	_, err = second.Sessions().ResumeFrom(t.Context(), foreign, bytes.NewReader(file), atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	moved, err := second.Sessions().ResumeFrom(t.Context(), foreign, bytes.NewReader(file), atoll.SessionOptions{Provider: "fake"})
	if err != nil {
		t.Fatal(err)
	}
	_ = moved.Close()
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	rebuilt("when-the-first-is-gone")
}

// A session with workspaces has nothing that could go along.
func TestArchiveOfWorkspacesIsRefused(t *testing.T) {
	t.Parallel()
	c := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	if _, err := c.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "notes"}); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, c, sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Path: "/workspace"}}}, atoll.SessionOptions{Name: "agent"})
	var out bytes.Buffer
	_, err := s.Archive(t.Context(), &out)
	wantCode(t, err, sandbox.CodeUnsupported)
	if out.Len() > 0 {
		t.Error("something was written")
	}
}

// Who knows an envelope, and so the digest of an archive that another tenant has
// sent, gets none of its files.
func TestAttackDigestOfAnotherTenant(t *testing.T) {
	t.Parallel()
	first := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	_, e, file := packed(t, first)
	d := daemontest.New(t).Start(t, nil)
	victim, attacker := bearer(t, d, "acme", "admin"), bearer(t, d, "evil", "admin")
	s, err := victim.Sessions().ResumeFrom(t.Context(), e, bytes.NewReader(file), atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	owned, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from := s.Receipt().From.Archive
	for name, change := range map[string]func(*durable.Envelope){
		"as it is":                  func(*durable.Envelope) {},
		"without a sandbox":         func(e *durable.Envelope) { e.Sandbox, e.State, e.Binding = "", nil, "" },
		"without anything else":     func(e *durable.Envelope) { e.Sandbox, e.State, e.Binding, e.Archive = "", nil, "", nil },
		"with the victim's archive": func(e *durable.Envelope) { e.Sandbox, e.Archive = "", from },
		"with an archive that he says is another installation's": func(e *durable.Envelope) {
			a := *from
			a.Binding = "0123456789abcdef"
			e.Sandbox, e.Archive = "", &a
		},
		"the victim's own": func(e *durable.Envelope) { *e = owned; e.Archive = from },
	} {
		forged := e
		change(&forged)
		got, err := attacker.Sessions().Resume(t.Context(), forged, atoll.SessionOptions{})
		if err == nil {
			t.Errorf("%s: he got %+v", name, got.Receipt())
			_ = got.Close()
		}
	}
	if all := sandboxes(t, attacker); len(all) != 0 {
		t.Errorf("he got %+v", all)
	}
	// With the file itself he gets a session of his own.
	got, err := attacker.Sessions().ResumeFrom(t.Context(), e, bytes.NewReader(file), atoll.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

// Unused uploads of a tenant are limited.
func TestSentArchivesAreBounded(t *testing.T) {
	t.Parallel()
	first := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	_, e, _ := packed(t, first)
	c := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	for n := 0; ; n++ {
		_, err := c.Sessions().ResumeFrom(t.Context(), e, strings.NewReader(strings.Repeat("x", n+1)), atoll.SessionOptions{})
		if sandbox.CodeOf(err) == sandbox.CodeExhausted {
			return
		}
		wantCode(t, err, sandbox.CodeInvalid)
		if n > 32 {
			t.Fatal("it takes any number")
		}
	}
}

// Installations that share a blob store and its key need no file: the envelope
// names the archive there. Only the owner of the machine can use that.
func TestArchivesInASharedBucket(t *testing.T) {
	t.Parallel()
	shared := "dir:" + t.TempDir()
	m, n := daemontest.New(t), daemontest.New(t)
	start := func(m *daemontest.Machine) *daemon.Daemon {
		return m.Start(t, func(o *daemon.Options) { withoutSnapshots(m, o); shortGrace(o); o.Blobs = shared })
	}
	first := daemontest.Client(t, start(m))
	s := openSession(t, first, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "mkdir -p /workspace; echo kept > /workspace/note")
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilCold(t, first, "agent")
	e, err := s.Envelope(t.Context())
	if err != nil || e.Sandbox != "" || e.Archive == nil || e.Archive.Kind != "tar" {
		t.Fatalf("%+v, %v; want an archive alone", e, err)
	}
	key, err := os.ReadFile(filepath.Join(m.Dir, "workspace.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(n.Dir, "workspace.key"), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := start(n)
	tenant, second := bearer(t, d, "acme", "admin"), daemontest.Client(t, d)
	if _, err := tenant.Sessions().Resume(t.Context(), e, atoll.SessionOptions{}); err == nil || len(sandboxes(t, tenant)) > 0 {
		t.Errorf("a tenant read an archive of another installation: %v", err)
	}
	got, err := second.Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "taken"})
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Receipt(); r.Outcome != durable.OutcomeRebuilt {
		t.Errorf("the receipt: %+v", r)
	}
	if said := runShell(t, got, "cat /workspace/note"); said != "kept" {
		t.Errorf("it has %q", said)
	}
	// The data of the first installation is kept, whatever the second one does.
	if err := got.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err = first.Sessions().Attach(t.Context(), "agent", atoll.SessionOptions{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if said := runShell(t, s, "cat /workspace/note"); said != "kept" {
		t.Errorf("the first installation has %q", said)
	}
}
