package services_test

import (
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// printed runs a background command that prints text and what it was, and returns
// all that its caller sees of it: live, connected again, and from its log.
func (r *rig) printed(t *testing.T, name, script string) map[string]string {
	t.Helper()
	sb, err := r.Exec.Open(r.owner, name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Exec(r.owner, sandbox.Command{Shell: script, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	all := map[string]string{}
	read := func(where string, from io.Reader) {
		t.Helper()
		out, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		all[where] = string(out)
	}
	read("output", p.Stdout())
	read("errors", p.Stderr())
	again, err := sb.Reconnect(r.owner, p.Info().ID)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	read("output again", again.Stdout())
	logs, err := sb.Logs(r.owner, p.Info().ID, driver.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	for {
		c, err := logs.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all["log"] += string(c.Data)
	}
	return all
}

// Secrets in the output of commands are redacted if the creator or a policy
// requests it, and shown otherwise.
func TestRedact(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "open", func(n *durable.NewSecret) { n.AllowEnv = true })
	make := func(name string, redact bool, labels map[string]string) {
		t.Helper()
		_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
			Name: name, Redact: redact, Labels: labels, Secrets: []sandbox.SecretRef{{Name: "open", Env: "TOKEN", Mode: sandbox.SecretEnv}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	make("asked", true, nil)
	make("open", false, nil)
	make("ruled", false, map[string]string{"tier": "free"})
	r.rules = "policies: [{name: quiet, labels: {tier: [free]}, redact: true}]"
	if _, err := r.Policies.Reload(r.operator); err != nil {
		t.Fatal(err)
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(canary))
	script := `echo "a $TOKEN b"; echo "c $TOKEN" >&2; echo "` + encoded + `"`
	for _, name := range []string{"asked", "ruled"} {
		all := r.printed(t, name, script)
		for where, text := range all {
			if strings.Contains(text, canary[4:]) || strings.Contains(text, encoded[:20]) || !strings.Contains(text, "******") {
				t.Errorf("%s, %s: %q", name, where, text)
			}
		}
		if all["output"] != all["output again"] || !strings.HasPrefix(all["output"], "a "+strings.Repeat("*", len(canary))+" b\n") {
			t.Errorf("%s: %q", name, all)
		}
	}
	if all := r.printed(t, "open", script); !strings.Contains(all["output"], canary) || !strings.Contains(all["log"], canary) {
		t.Errorf("it was hidden although nobody asked: %q", all)
	}

	// Sandboxes that ran before a rotation have the old value; new sandboxes have
	// the new one.
	if _, err := r.Secrets.Rotate(r.owner, "open", durable.SecretValue{Value: []byte("another-canary-value")}); err != nil {
		t.Fatal(err)
	}
	for where, text := range r.printed(t, "asked", script+"; echo another-canary-value") {
		if strings.Contains(text, canary[4:]) || strings.Contains(text, "another-canary") {
			t.Errorf("after the rotation, %s: %q", where, text)
		}
	}
}

// A value that cannot be read is not shown for that.
func TestRedactFailsClosed(t *testing.T) {
	r := newRig(t, nil)
	r.secret(t, "outside", func(n *durable.NewSecret) {
		n.AllowEnv, n.Source = true, "env:DAEMON_TOKEN"
	})
	_, err := r.Sandboxes.Creator.Create(r.writer, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: sandbox.Spec{
		Name: "box", Redact: true, Secrets: []sandbox.SecretRef{{Name: "outside", Mode: sandbox.SecretEnv}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if out := r.env(t, "box"); strings.Contains(out, "from-the-environment") {
		t.Errorf("%q", out)
	}
	r.lost = true
	if _, err := r.Secrets.Rotate(r.owner, "outside", durable.SecretValue{}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Exec.Open(r.owner, "box")
	wants(t, "a source that is gone", err, sandbox.CodeUnavailable)
}
