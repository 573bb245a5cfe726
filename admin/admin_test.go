package admin_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/admin"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func owner(t *testing.T) (*admin.Client, func(key string) *atoll.Client) {
	t.Helper()
	d := daemontest.New(t).Start(t, nil)
	return daemontest.Client(t, d).Admin(), func(key string) *atoll.Client { return daemontest.Bearer(t, d, key) }
}

func TestTenantsAndKeys(t *testing.T) {
	a, bearer := owner(t)
	ctx := t.Context()
	made, err := a.CreateTenant(ctx, "acme", operator.Limits{Sandboxes: 1})
	if err != nil || made.ID != "acme" || made.Limits.Sandboxes != 1 {
		t.Fatalf("made %+v, %v", made, err)
	}
	if _, err := a.CreateTenant(ctx, "acme", operator.Limits{}); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		t.Errorf("a second acme: %v", err)
	}
	k, err := a.CreateKey(ctx, operator.NewKey{Tenant: "acme", Name: "ci", Verbs: []string{"read", "write", "exec"}})
	if err != nil || k.Token == "" {
		t.Fatalf("made %+v, %v", k, err)
	}
	c := bearer(k.Token)
	if _, err := c.Create(ctx, sandbox.Spec{Name: "one"}, atoll.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, sandbox.Spec{Name: "two"}, atoll.CreateOptions{}); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("beyond its quota: %v", err)
	}
	if own, err := c.Admin().Tenant(ctx); err != nil || own.ID != "acme" || own.Usage.Sandboxes != 1 {
		t.Errorf("its own tenant: %+v, %v", own, err)
	}
	if found, err := a.TenantByID(ctx, "acme"); err != nil || found.Usage.Sandboxes != 1 {
		t.Errorf("found %+v, %v", found, err)
	}
	if all, err := a.Tenants(ctx); err != nil || len(all) != 2 {
		t.Errorf("listed %+v, %v", all, err)
	}
	if keys, err := c.Admin().Keys(ctx); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("a key that may not administer lists %+v, %v", keys, err)
	}
	disabled := true
	if _, err := a.UpdateTenant(ctx, "acme", operator.TenantChange{Disabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "one"); sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
		t.Errorf("of a disabled tenant: %v", err)
	}
}

// Operations of the machine's owner are denied to a tenant's administrator.
// The owner of the machine may name a tenant to act in, and nobody else.
func TestAttackByNamingATenant(t *testing.T) {
	a, bearer := owner(t)
	ctx := t.Context()
	for _, name := range []string{"acme", "other"} {
		if _, err := a.CreateTenant(ctx, name, operator.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tenant := range []string{"acme", "default"} { // also an administrator of the owner's own tenant
		k, err := a.CreateKey(ctx, operator.NewKey{Tenant: tenant, Verbs: []string{"admin"}})
		if err != nil {
			t.Fatal(err)
		}
		c := bearer(k.Token)
		for _, named := range []string{"other", "nobody", "%2e"} {
			if _, err := c.WithTenant(named).Get(ctx, "any"); sandbox.CodeOf(err) != sandbox.CodeDenied {
				t.Errorf("a key of %s in the tenant %q: %v, want denied", tenant, named, err)
			}
		}
		if _, err := c.WithTenant(tenant).Get(ctx, "any"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("a key of %s in its own tenant: %v, want not_found", tenant, err)
		}
	}
}

func TestAttackByAdministratorOfTenant(t *testing.T) {
	a, bearer := owner(t)
	ctx := t.Context()
	if _, err := a.CreateTenant(ctx, "acme", operator.Limits{}); err != nil {
		t.Fatal(err)
	}
	k, err := a.CreateKey(ctx, operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	theirs := bearer(k.Token).Admin()
	for name, try := range map[string]func() error{
		"list tenants":  func() error { _, err := theirs.Tenants(ctx); return err },
		"read a tenant": func() error { _, err := theirs.TenantByID(ctx, "default"); return err },
		"make a tenant": func() error { _, err := theirs.CreateTenant(ctx, "other", operator.Limits{}); return err },
		"make their key": func() error {
			_, err := theirs.CreateKey(ctx, operator.NewKey{Tenant: "default", Verbs: []string{"admin"}})
			return err
		},
		"copy the store":  func() error { _, err := theirs.Backup(ctx); return err },
		"diagnose":        func() error { _, err := theirs.Diagnose(ctx); return err },
		"reload policies": func() error { _, err := theirs.ReloadPolicies(ctx); return err },
		"uses of images":  func() error { _, err := theirs.ImageUses(ctx); return err },
		"raise a limit":   func() error { _, err := theirs.UpdateTenant(ctx, "acme", operator.TenantChange{}); return err },
	} {
		if err := try(); sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("%s: got %v, want denied", name, err)
		}
	}
}

func TestKeyIsRevoked(t *testing.T) {
	a, bearer := owner(t)
	ctx := t.Context()
	k, err := a.CreateKey(ctx, operator.NewKey{Verbs: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	c := bearer(k.Token)
	for range c.List(ctx, atoll.ListOptions{}) {
		t.Error("there are sandboxes")
	}
	if err := a.RevokeKey(ctx, k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "any"); sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
		t.Errorf("with a revoked key: %v", err)
	}
	keys, err := a.Keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range keys {
		if one.Token != "" {
			t.Errorf("the list has the token of %s", one.ID)
		}
	}
}

func TestAuditAndBackup(t *testing.T) {
	a, _ := owner(t)
	ctx := t.Context()
	if _, err := a.CreateTenant(ctx, "acme", operator.Limits{}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := a.ExportAudit(ctx, admin.AuditChained, sandbox.EventQuery{}, &out); err != nil || !strings.Contains(out.String(), `"acme"`) {
		t.Errorf("exported %q, %v", out.String(), err)
	}
	report, err := a.VerifyAudit(ctx)
	if err != nil || !report.Sound || report.Records == 0 {
		t.Errorf("verified %+v, %v", report, err)
	}
	copied, err := a.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	head := make([]byte, 15)
	if _, err := io.ReadFull(copied, head); err != nil || string(head) != "SQLite format 3" {
		t.Errorf("the copy begins with %q, %v", head, err)
	}
	answer, err := a.ExplainPolicies(ctx, sandbox.Spec{Image: "host"})
	if err != nil || !answer.Allow {
		t.Errorf("explained %+v, %v", answer, err)
	}
}
