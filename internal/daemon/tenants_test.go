package daemon_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) {
	controlProcess()
	os.Exit(storetest.Main(m))
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if err == nil || sandbox.CodeOf(err) != code {
		t.Errorf("got %v (%s), want %s", err, sandbox.CodeOf(err), code)
	}
}

func create(t *testing.T, c *atoll.Client, spec sandbox.Spec) *atoll.Sandbox {
	t.Helper()
	s, err := c.Create(t.Context(), spec, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bearer makes a key of a tenant and returns a client with it.
func bearer(t *testing.T, d *daemon.Daemon, tenant string, verbs ...string) *atoll.Client {
	t.Helper()
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: verbs})
	if err != nil {
		t.Fatal(err)
	}
	return daemontest.Bearer(t, d, k.Token)
}

// attempts is everything that one can try to do to a sandbox.
func attempts(ctx context.Context, c *atoll.Client, ref string, id sandbox.ID) map[string]error {
	_, err := c.Get(ctx, ref)
	out := map[string]error{"get": err, "remove": c.Remove(ctx, ref)}
	// A handle from a guessed id, as an attacker could make.
	s := atoll.Handle(c, id)
	_, out["run"] = s.Run(ctx, sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	_, out["exec"] = s.Exec(ctx, sandbox.Command{Shell: "true"})
	_, out["attach"] = s.Reconnect(ctx, "p1")
	_, out["logs"] = s.Logs(ctx, "p1", atoll.LogOptions{})
	_, out["processes"] = s.Processes(ctx)
	_, out["wait"] = s.Wait(ctx)
	_, out["read"] = s.Files().Read(ctx, "/secret", atoll.ReadOptions{})
	_, out["write"] = s.Files().Write(ctx, "/x", strings.NewReader(""), atoll.WriteOptions{})
	_, out["watch"] = s.Files().Watch(ctx, "/", false)
	_, out["dial"] = s.Dial(ctx, 8000)
	_, out["port token"] = s.PortToken(ctx, atoll.PortTokenOptions{})
	_, out["usage"] = s.Usage(ctx)
	out["kill"] = s.Kill(ctx, "p1", 9)
	out["export"] = s.Files().Export(ctx, "/", io.Discard)
	_, out["stop"] = s.Stop(ctx, 0)
	_, out["start"] = s.Start(ctx)
	_, out["pause"] = s.Pause(ctx, sandbox.PauseMemory)
	_, out["sleep"] = s.Pause(ctx, sandbox.PauseDisk)
	_, out["resume"] = s.Resume(ctx)
	_, out["update"] = s.Update(ctx, sandbox.Change{Resources: sandbox.Resources{CPUs: 1}})
	_, out["snapshot"] = s.Snapshot(ctx, durable.SnapshotRequest{Name: "theft"})
	_, out["fork"] = s.Fork(ctx, durable.ForkRequest{})
	out["destroy"] = s.Destroy(ctx)
	return out
}

// Objects of one tenant do not exist for another: every attempt gets exactly
// the same answer as for a missing sandbox.
func TestAttackTenantsDoNotMeet(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, other := daemontest.Client(t, d), bearer(t, d, "other", "admin")
	sb := create(t, owner, sandbox.Spec{Name: "mine", Labels: map[string]string{"a": "b"}})
	if _, err := sb.Files().Write(t.Context(), "/secret", strings.NewReader("x"), atoll.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	never := attempts(t.Context(), other, "never-was", "sb-neverwas00000")
	for _, ref := range []string{"mine", string(sb.ID())} {
		for what, err := range attempts(t.Context(), other, ref, sb.ID()) {
			wantCode(t, err, sandbox.CodeNotFound)
			hide := strings.NewReplacer("mine", "REF", string(sb.ID()), "REF", "never-was", "REF", "sb-neverwas00000", "REF")
			if got, want := hide.Replace(err.Error()), hide.Replace(never[what].Error()); got != want {
				t.Errorf("%s tells them apart: %q, %q", what, got, want)
			}
		}
	}
	if again, err := owner.Get(t.Context(), "mine"); err != nil || again.Info().State != sandbox.Running {
		t.Errorf("%+v %v", again.Info(), err)
	}
	// The same name is free for everybody else.
	create(t, other, sandbox.Spec{Name: "mine"})
	for s, err := range other.List(t.Context(), atoll.ListOptions{}) {
		if err != nil || s.ID == sb.ID() {
			t.Errorf("%+v %v", s, err)
		}
	}
	for e, err := range other.Events(t.Context(), sandbox.EventQuery{}) {
		if err != nil || e.Sandbox == sb.ID() {
			t.Errorf("an event of another tenant: %+v %v", e, err)
		}
	}
	keys, err := other.Admin().Keys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Errorf("%+v %v", keys, err)
	}
}

func TestKeysAllowWhatTheySay(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, ctx := daemontest.Client(t, d), t.Context()
	sb := create(t, owner, sandbox.Spec{Name: "one"})
	reader := bearer(t, d, "", "read")
	if _, err := reader.Get(ctx, "one"); err != nil {
		t.Error(err)
	}
	s := atoll.Handle(reader, sb.ID())
	_, runErr := s.Run(ctx, sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	_, execErr := s.Exec(ctx, sandbox.Command{Shell: "true"})
	_, createErr := reader.Create(ctx, sandbox.Spec{}, atoll.CreateOptions{})
	_, writeErr := s.Files().Write(ctx, "/x", strings.NewReader(""), atoll.WriteOptions{})
	_, keyErr := reader.Admin().CreateKey(ctx, operator.NewKey{Verbs: []string{"read"}})
	_, auditErr := reader.Admin().VerifyAudit(ctx)
	_, stopErr := s.Stop(ctx, 1)
	_, pauseErr := s.Pause(ctx, sandbox.PauseMemory)
	_, snapErr := s.Snapshot(ctx, durable.SnapshotRequest{})
	_, forkErr := s.Fork(ctx, durable.ForkRequest{})
	for _, err := range []error{runErr, execErr, createErr, writeErr, keyErr, auditErr, stopErr, pauseErr, snapErr, forkErr, s.Destroy(ctx), s.Kill(ctx, "p1", 9), reader.Admin().RevokeKey(ctx, "x")} {
		wantCode(t, err, sandbox.CodeDenied)
	}
	denied := 0
	for e := range owner.Events(ctx, sandbox.EventQuery{Types: []string{"denied"}}) {
		if e.Key == "" || e.Code != sandbox.CodeDenied {
			t.Errorf("%+v", e)
		}
		denied++
	}
	if denied < 9 {
		t.Errorf("only %d refusals were recorded", denied)
	}
}

// A key holder reaches no file of the machine, and no other tenant.
func TestAttackKeysDoNotReachTheMachine(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	admin, ctx := bearer(t, d, "", "admin"), t.Context()
	for _, spec := range []sandbox.Spec{
		{Mounts: []sandbox.Mount{{Source: "/etc", Target: "/mnt"}}},
		{Image: "dir:/etc"},
		{Image: "tar:/etc/passwd"},
		{Image: "oci:/var"},
		{Image: "docker-archive:/x"},
	} {
		_, err := admin.Create(ctx, spec, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeDenied)
	}
	_, err := admin.Admin().CreateKey(ctx, operator.NewKey{Tenant: "other", Verbs: []string{"admin"}})
	wantCode(t, err, sandbox.CodeDenied)
	_, err = admin.Create(ctx, sandbox.Spec{ID: "sb-chosen"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = admin.Create(ctx, sandbox.Spec{Labels: map[string]string{"atoll.tenant": "other"}}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
}

func TestBadKeys(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, ctx := daemontest.Client(t, d), t.Context()
	k, err := owner.Admin().CreateKey(ctx, operator.NewKey{Name: "x", Verbs: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	good := daemontest.Bearer(t, d, k.Token)
	if _, err := good.Admin().Keys(ctx); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("got %v", err) // known, and may not
	}
	if err := owner.Admin().RevokeKey(ctx, k.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, owner.Admin().RevokeKey(ctx, "nope"), sandbox.CodeNotFound)
	var texts []string
	for _, token := range []string{k.Token, "nonsense", strings.Repeat("x", 1000), k.Token[:len(k.Token)-1] + "x"} {
		for _, err := range daemontest.Bearer(t, d, token).List(ctx, atoll.ListOptions{}) {
			wantCode(t, err, sandbox.CodeUnauthorized)
			texts = append(texts, err.Error())
			if strings.Contains(err.Error(), token) {
				t.Errorf("the error contains the key: %v", err)
			}
		}
	}
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("%q and %q tell bad keys apart", text, texts[0])
		}
	}
}
