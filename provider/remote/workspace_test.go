package remote_test

import (
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/remote"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// A workspace of this daemon moves with a session to another daemon and back:
// the sandbox there works on a copy, which is saved here.
func TestWorkspacesAreCopied(t *testing.T) {
	o, dir := serve(t, daemontest.New(t)), openDir(t)
	c := daemontest.Client(t, daemontest.New(t).Start(t, func(opts *daemon.Options) {
		opts.Providers = append(opts.Providers, providerset.Entry{Name: remote.Name, Open: func(providerset.Host) (driver.Provider, error) {
			return remote.New(o.options(dir))
		}})
	}))
	s, err := c.Sessions().Create(t.Context(), sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Create: true}}}, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	shell := func(script, want string) {
		t.Helper()
		res, err := s.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
		if err != nil || res.Exit.Code != 0 || string(res.Stdout) != want {
			t.Fatalf("%s: %q, %+v, %v; want %q", script, res.Stdout, res.Exit, err, want)
		}
	}
	move := func(to string) {
		t.Helper()
		out, err := s.Swap(t.Context(), to)
		if err != nil || !out.Swapped || out.Receipt.Provider != to {
			t.Fatalf("swap to %s: %+v, %v", to, out, err)
		}
	}
	shell("echo here > note", "")
	move(remote.Name)
	shell("cat note; echo there > note", "here\n")
	saved, err := s.Save(t.Context())
	if err != nil || len(saved.Workspaces) != 1 {
		t.Fatalf("save: %+v, %v", saved, err)
	}
	shell("echo more >> note", "")
	move("fake")
	shell("cat note", "there\nmore\n")
	if all, err := c.WorkspaceVersions(t.Context(), "notes"); err != nil || len(all) != 3 {
		t.Errorf("%d versions, %v; want one of each state that was saved", len(all), err)
	}
}

// RB-36: with an envelope, another installation that uses the same daemon with
// the same key reaches the same sandbox. With another tenant's key it does not.
func TestEnvelopesLeaveTheInstallation(t *testing.T) {
	m := daemontest.New(t)
	o := serve(t, m)
	installed := func(o *other) *atoll.Client {
		dir := openDir(t)
		return daemontest.Client(t, daemontest.New(t).Start(t, func(opts *daemon.Options) {
			opts.Providers = append(opts.Providers, providerset.Entry{Name: remote.Name, Open: func(providerset.Host) (driver.Provider, error) {
				return remote.New(o.options(dir))
			}})
		}))
	}
	s, err := installed(o).Sessions().Create(t.Context(), sandbox.Spec{Provider: remote.Name}, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if res, err := s.Run(t.Context(), sandbox.Command{Shell: "echo kept > /note"}, atoll.RunOptions{}); err != nil || res.Exit.Code != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	e, err := s.Envelope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken, err := installed(o).Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"})
	if err != nil || taken.Receipt().Outcome != durable.OutcomeAttached {
		t.Fatalf("%+v, %v", taken, err)
	}
	defer taken.Close()
	if res, err := taken.Run(t.Context(), sandbox.Command{Shell: "cat /note"}, atoll.RunOptions{}); err != nil || string(res.Stdout) != "kept\n" {
		t.Errorf("%+v, %v", res, err)
	}

	k, err := daemontest.Client(t, o.daemon).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := installed(&other{o.daemon, k.Token}).Sessions().Resume(t.Context(), e, atoll.SessionOptions{Name: "agent"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("with the key of another tenant: %v, want unavailable", err)
	}
	all := 0
	for _, err := range daemontest.Client(t, o.daemon).List(t.Context(), atoll.ListOptions{}) {
		if all++; err != nil {
			t.Fatal(err)
		}
	}
	if all != 1 {
		t.Errorf("there are %d sandboxes, want one", all)
	}
}
