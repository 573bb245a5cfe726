package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// neighbours is a daemon with two tenants. Tenant acme has the templates web and
// hidden, which have snapshots, and locked, which may not be shared.
type neighbours struct {
	*testing.T
	d     *daemon.Daemon
	db    *store.Store
	e2b   e2bClient
	acme  *atoll.Client // with an admin key
	rival *atoll.Client // with a normal key
	// The same keys for E2B.
	acmeKey, rivalKey string
	memory            map[string]string // ids of snapshots, by template
}

func newNeighbours(t *testing.T, change func(*daemon.Options)) *neighbours {
	t.Helper()
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) {
		o.E2B.Listen = "127.0.0.1:0"
		if change != nil {
			change(o)
		}
	})
	s := &neighbours{T: t, d: d, db: m.Store(t), e2b: e2bClient{t, d.E2B().String()}, memory: map[string]string{}}
	s.acme, s.acmeKey = s.key("acme", "admin")
	s.rival, s.rivalKey = s.key("rival", "read", "exec", "write")
	sb := create(t, s.acme, sandbox.Spec{Name: "build"})
	for _, name := range []string{"web", "hidden"} {
		snap, err := sb.Snapshot(t.Context(), durable.SnapshotRequest{Labels: map[string]string{durable.LabelTemplate: name}})
		ok(t, err)
		s.memory[name] = snap.ID
		s.template("acme", name, "latest", snap.ID, "")
	}
	s.template("acme", "web", "v1", "", "")
	s.template("acme", "locked", "latest", "", store.WithheldLogin)
	return s
}

func (s *neighbours) key(tenant string, verbs ...string) (*atoll.Client, string) {
	s.Helper()
	k, err := daemontest.Client(s, s.d).Admin().CreateKey(s.Context(), operator.NewKey{Tenant: tenant, Verbs: verbs})
	ok(s.T, err)
	return daemontest.Bearer(s, s.d, k.Token), envd.Key(k.Token)
}

// template records a template without a build.
func (s *neighbours) template(tenant, name, tag, snapshot, withheld string) {
	s.Helper()
	ok(s.T, s.db.Update(s.Context(), func(tx *store.Tx) error {
		_, err := tx.Templates().Set(s.Context(), store.Template{
			Template: durable.Template{
				Name: name, Tag: tag, Image: "host", Base: "sha256:base", Snapshot: snapshot, Created: tx.Now(), Steps: 3,
				Build: "build-of-" + name, Memory: 64 << 20,
			},
			Tenant: tenant, Withheld: withheld,
		})
		return err
	}))
}

func (s *neighbours) make(c *atoll.Client, spec sandbox.Spec) (*atoll.Sandbox, error) {
	return c.Create(s.Context(), spec, atoll.CreateOptions{})
}

func (s *neighbours) publish() {
	s.Helper()
	v, err := s.acme.PublishTemplate(s.Context(), "web")
	ok(s.T, err)
	if v.Name != "acme/web" || !v.Public || strings.Join(v.Tags, " ") != "latest v1" {
		s.Errorf("published: %+v", v)
	}
}

// Another tenant uses a public template by its full name only. The sandbox is
// its own, and outlives the template.
func TestPublicTemplate(t *testing.T) {
	s := newNeighbours(t, nil)
	ctx := t.Context()
	s.publish()
	s.template("rival", "web", "latest", "", "") // which does not shadow it, nor is shadowed

	sb, err := s.make(s.rival, sandbox.Spec{Name: "theirs", Image: "template:acme/web"})
	ok(t, err)
	got := sb.Info()
	if got.Image != "template:acme/web" || got.Origin != s.memory["web"] || got.Resources.Memory != 64<<20 {
		t.Errorf("the sandbox: %+v", got)
	}
	if _, err := sb.Run(ctx, sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Error(err)
	}
	for tenant, c := range map[string]*atoll.Client{"acme": s.acme, "rival": s.rival} {
		u, err := c.Admin().Tenant(ctx)
		if err != nil || u.Usage.Sandboxes != 1 {
			t.Errorf("%s uses %+v, %v; want 1 sandbox", tenant, u.Usage, err)
		}
	}
	own, err := s.make(s.rival, sandbox.Spec{Name: "own", Image: "template:web"})
	ok(t, err)
	if got := own.Info(); got.Origin != "" || got.Image != "template:web" {
		t.Errorf("its own template of that name: %+v", got)
	}
	if _, err := s.make(s.acme, sandbox.Spec{Image: "template:acme/web:v1"}); err != nil {
		t.Error("by the full name of one's own:", err)
	}
	_, err = s.make(s.rival, sandbox.Spec{Image: "template:v1"})
	wantCode(t, err, sandbox.CodeNotFound)

	seen, err := s.rival.Template(ctx, "acme/web")
	ok(t, err)
	if !seen.Public || seen.Name != "acme/web" || seen.Snapshot+seen.Base+seen.Build+seen.Start != "" || seen.Steps != 0 {
		t.Errorf("another tenant sees %+v", seen)
	}
	all, err := s.rival.Templates(ctx)
	if err != nil || len(all) != 1 || all[0].Public {
		t.Errorf("another tenant's list: %+v, %v", all, err)
	}

	_, err = s.acme.UnpublishTemplate(ctx, "web")
	ok(t, err)
	_, err = s.make(s.rival, sandbox.Spec{Image: "template:acme/web"})
	wantCode(t, err, sandbox.CodeNotFound)
	s.publish()
	for _, tag := range []string{"latest", "v1"} {
		ok(t, s.acme.RemoveTemplate(ctx, "web:"+tag))
	}
	_, err = s.make(s.rival, sandbox.Spec{Image: "template:acme/web"})
	wantCode(t, err, sandbox.CodeNotFound)
	if _, err := sb.Run(ctx, sandbox.Command{Shell: "true"}, atoll.RunOptions{}); err != nil {
		t.Error("the sandbox of a template that is gone:", err)
	}
	s.template("acme", "web", "latest", "", "")
	_, err = s.rival.Template(ctx, "acme/web")
	wantCode(t, err, sandbox.CodeNotFound)
}

// TestAttackPublishing: what tenants share is up to admins, and what needs a
// password is not shared.
func TestAttackPublishing(t *testing.T) {
	s := newNeighbours(t, nil)
	ctx := t.Context()
	normal, normalKey := s.key("acme", "read", "exec", "write")
	_, err := normal.PublishTemplate(ctx, "web")
	e := new(sandbox.Error)
	if !errors.As(err, &e) || e.Code != sandbox.CodeDenied || !strings.Contains(e.Hint, "atoll e2b env --admin") {
		t.Errorf("a normal key: %+v", err)
	}
	a := s.e2b.want(403, s.e2b.call("PATCH", "/v2/templates/web", `{"public":true}`, "X-API-Key", normalKey))
	if !strings.Contains(string(a.body), "atoll e2b env --admin") {
		t.Errorf("%s", a.body)
	}
	_, err = s.acme.PublishTemplate(ctx, "locked")
	if !errors.As(err, &e) || e.Code != sandbox.CodeDenied || !strings.Contains(e.Message, "needs a password") {
		t.Errorf("with a password: %+v", err)
	}
	_, err = s.acme.PublishTemplate(ctx, "web:v1")
	wantCode(t, err, sandbox.CodeInvalid)
	s.publish()
	// A public name does not get a tag that may not be shared.
	_, err = normal.TagTemplate(ctx, "locked", "web:v2")
	wantCode(t, err, sandbox.CodeDenied)
	_, err = s.rival.Template(ctx, "acme/web:v2")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = normal.UnpublishTemplate(ctx, "acme/web")
	ok(t, err)
	reader, _ := s.key("acme", "read")
	_, err = reader.UnpublishTemplate(ctx, "web")
	wantCode(t, err, sandbox.CodeDenied)
	records := map[string]int{}
	for one, err := range s.acme.Events(ctx, sandbox.EventQuery{Ops: []string{"template.publish", "template.unpublish"}}) {
		ok(t, err)
		records[one.Op+" "+one.Type]++
	}
	for _, want := range []string{"template.publish denied", "template.publish done", "template.publish failed", "template.unpublish done", "template.unpublish denied"} {
		if records[want] == 0 {
			t.Errorf("%q is not on record: %v", want, records)
		}
	}
}

// TestAttackTemplatesOfOthers tries all ways to another tenant's templates,
// while one of them is public: a private one does not exist for others.
func TestAttackTemplatesOfOthers(t *testing.T) {
	s := newNeighbours(t, nil)
	ctx := t.Context()
	s.publish()
	never := "hiddex" // as long as hidden
	wants := func(what string, f func(name string) error) {
		t.Helper()
		a, b := f("hidden"), f(never)
		wantCode(t, a, sandbox.CodeNotFound)
		if a == nil || b == nil || strings.ReplaceAll(a.Error(), "hidden", never) != b.Error() {
			t.Errorf("%s: a private one gives %v, and none %v", what, a, b)
		}
	}
	wants("create", func(n string) error {
		_, err := s.make(s.rival, sandbox.Spec{Image: "template:acme/" + n})
		return err
	})
	wants("get", func(n string) error { _, err := s.rival.Template(ctx, "acme/"+n+":latest"); return err })
	wants("tag", func(n string) error { _, err := s.rival.TagTemplate(ctx, "acme/"+n, "mine"); return err })
	wants("remove", func(n string) error { return s.rival.RemoveTemplate(ctx, "acme/"+n) })
	wants("unpublish", func(n string) error { _, err := s.rival.UnpublishTemplate(ctx, "acme/"+n); return err })

	// A public one may be used and not more.
	for what, err := range map[string]error{
		"tag":       second(s.rival.TagTemplate(ctx, "acme/web", "mine")),
		"move":      second(s.rival.TagTemplate(ctx, "acme/web:v1", "acme/web:latest")),
		"remove":    s.rival.RemoveTemplate(ctx, "acme/web"),
		"unpublish": second(s.rival.UnpublishTemplate(ctx, "acme/web")),
		"snapshot":  second(s.rival.GetSnapshot(ctx, s.memory["web"])),
	} {
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The memory is reached through the template only.
	for _, id := range s.memory {
		for _, spec := range []sandbox.Spec{{Snapshot: id}, {Snapshot: id, Image: "template:acme/web"}, {Image: "template:" + id}, {Image: "template:acme/" + id}} {
			if _, err := s.make(s.rival, spec); err == nil {
				t.Errorf("made from %+v", spec)
			}
		}
	}
	for _, name := range []string{
		"acme/../acme/hidden", "acme//hidden", "/acme/hidden", "acme/web/../hidden", "rival/acme/hidden", "acme/acme/hidden", "acme/hidden:latest:v1",
		"acme/web:../hidden", "ACME/hidden", "acme%2fhidden", "acme/hidden/", "./acme/hidden", "acme\x00/hidden", "*/hidden", "%/hidden", "acme/%", "acme/hid_en",
	} {
		if _, err := s.make(s.rival, sandbox.Spec{Image: "template:" + name}); sandbox.CodeOf(err) != sandbox.CodeNotFound && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("made from %q: %v", name, err)
		}
		if got, err := s.rival.Template(ctx, name); err == nil && got.Name != "acme/web" {
			t.Errorf("%q is %+v", name, got)
		}
	}
	if all, err := s.rival.Templates(ctx); err != nil || len(all) != 0 {
		t.Errorf("the tenant has %v, %v", all, err)
	}
	if all, err := s.acme.Templates(ctx); err != nil || len(all) != 4 {
		t.Errorf("the owner has %v, %v", all, err)
	}
	ok(t, second(daemontest.Client(t, s.d).Admin().UpdateTenant(ctx, "acme", operator.TenantChange{Disabled: new(true)})))
	_, err := s.make(s.rival, sandbox.Spec{Image: "template:acme/web"})
	wantCode(t, err, sandbox.CodeNotFound)
}

func second[T any](_ T, err error) error { return err }

// TestAttackE2BTemplatesOfOthers does the same through E2B's API.
func TestAttackE2BTemplatesOfOthers(t *testing.T) {
	s := newNeighbours(t, nil)
	do := func(status int, key, method, path, body string) answer {
		t.Helper()
		return s.e2b.want(status, s.e2b.call(method, path, body, "X-API-Key", key))
	}
	do(404, s.rivalKey, "POST", "/v2/sandboxes", `{"templateID":"acme/web"}`)
	if a := do(200, s.acmeKey, "PATCH", "/v2/templates/web", `{"public":true}`); a.fields["names"].([]any)[0] != "acme/web" {
		t.Errorf("%s", a.body)
	}
	a := do(200, s.acmeKey, "GET", "/templates/web", "")
	if a.fields["public"] != true {
		t.Errorf("%s", a.body)
	}
	for ref, id := range map[string]string{"acme/web": "acme/web", "acme/web:v1": "acme/web", "ACME/Web:default": "acme/web"} {
		a := do(200, s.rivalKey, "GET", "/templates/aliases/"+strings.ReplaceAll(ref, "/", "%2F"), "")
		if a.fields["public"] != true || a.fields["templateID"] != id {
			t.Errorf("%s: %s", ref, a.body)
		}
		a = do(201, s.rivalKey, "POST", "/v2/sandboxes", `{"templateID":"`+ref+`"}`)
		if a.fields["templateID"] != strings.ToLower(ref) {
			t.Errorf("%s", a.body)
		}
	}
	do(200, s.rivalKey, "GET", "/templates/aliases/acme/web", "") // as old SDKs spell it
	do(404, s.rivalKey, "GET", "/templates/aliases/acme/hidden", "")
	do(404, s.rivalKey, "GET", "/templates/web/tags/x", "")
	do(201, s.acmeKey, "POST", "/v2/sandboxes", `{"templateID":"acme/web"}`)
	for _, ref := range []string{"web", "hidden", "acme/hidden", "acme/none", "rival/web", "acme/acme/web", "rival/acme/web", s.memory["web"], "acme/" + s.memory["web"], "build-of-web", "acme/build-of-web"} {
		do(404, s.rivalKey, "POST", "/v2/sandboxes", `{"templateID":"`+ref+`"}`)
		do(404, s.rivalKey, "GET", "/templates/aliases/"+strings.ReplaceAll(ref, "/", "%2F"), "")
	}
	for _, name := range []string{"web", "hidden", "none"} {
		path := "/templates/acme%2F" + name
		do(404, s.rivalKey, "GET", path, "")
		do(404, s.rivalKey, "GET", path+"/tags", "")
		do(404, s.rivalKey, "DELETE", path, "")
		do(404, s.rivalKey, "PATCH", "/v2"+path, `{"public":false}`)
		do(404, s.rivalKey, "POST", "/templates/tags", `{"target":"acme/`+name+`","tags":["mine"]}`)
		do(404, s.rivalKey, "DELETE", "/templates/tags", `{"name":"acme/`+name+`","tags":["default"]}`)
		do(404, s.rivalKey, "GET", path+"/builds/build-of-"+name+"/status", "")
		do(404, s.rivalKey, "GET", path+"/builds/build-of-"+name+"/logs", "")
		do(400, s.rivalKey, "POST", "/v3/templates", `{"name":"acme/`+name+`"}`)
	}
	if a := do(200, s.rivalKey, "GET", "/templates", ""); strings.TrimSpace(string(a.body)) != "[]" {
		t.Errorf("another tenant's list: %s", a.body)
	}
	// A build may begin with a public one, and with no other.
	a = do(202, s.rivalKey, "POST", "/v3/templates", `{"name":"rival/site"}`)
	build := "/v2/templates/site/builds/" + a.fields["buildID"].(string)
	for _, from := range []string{"acme/hidden", "acme/none", "web"} {
		do(404, s.rivalKey, "POST", build, `{"fromTemplate":"`+from+`"}`)
	}
	do(202, s.rivalKey, "POST", build, `{"fromTemplate":"acme/web"}`)
	do(200, s.acmeKey, "PATCH", "/templates/acme%2Fweb", `{"public":false}`)
	do(404, s.rivalKey, "POST", "/v2/sandboxes", `{"templateID":"acme/web"}`)
	do(400, s.acmeKey, "PATCH", "/templates/web", `{}`)
}

// TestAttackUnpublishRace: as soon as a template is not public, no sandbox is
// made from it; those that were made before run.
func TestAttackUnpublishRace(t *testing.T) {
	s := newNeighbours(t, nil)
	ctx := t.Context()
	for range 5 {
		s.publish()
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				sb, err := s.make(s.rival, sandbox.Spec{Image: "template:acme/web"})
				if err == nil {
					_, err = sb.Run(ctx, sandbox.Command{Shell: "true"}, atoll.RunOptions{})
				} else if sandbox.CodeOf(err) == sandbox.CodeNotFound {
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		_, err := s.acme.UnpublishTemplate(ctx, "web")
		ok(t, err)
		_, err = s.make(s.rival, sandbox.Spec{Image: "template:acme/web"})
		wantCode(t, err, sandbox.CodeNotFound)
		work.Wait()
	}
}

// TestAttackPoliciesAndPublicTemplates: the policies of the tenant that uses a
// template apply. A pattern that was written for its own templates does not
// cover those of others.
func TestAttackPoliciesAndPublicTemplates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(images, memory string) {
		t.Helper()
		text := "policies:\n  - name: rival\n    tenants: [rival]\n    images: [" + images + "]\n" + memory
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`"template:*"`, "")
	s := newNeighbours(t, func(o *daemon.Options) { o.Policies = file })
	s.publish()
	s.template("rival", "web", "latest", "", "")
	try := func(want sandbox.Code, image string) {
		t.Helper()
		_, err := s.make(s.rival, sandbox.Spec{Image: image, Lifetime: sandbox.Lifetime{Timeout: time.Hour}})
		if sandbox.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", image, err, want)
		}
	}
	try("", "template:web")
	try("", "template:rival/web")
	try(sandbox.CodeDenied, "template:acme/web")
	for _, c := range []struct {
		images, memory string
		others, own    sandbox.Code
	}{
		{`"template:acme/*"`, "", "", sandbox.CodeDenied},
		{`"template:*/web:latest"`, "", "", sandbox.CodeDenied},
		{`"template:acme/web:v1"`, "", sandbox.CodeDenied, sandbox.CodeDenied},
		{`"template:rival/web"`, "", sandbox.CodeDenied, sandbox.CodeDenied},
		{`"*"`, "", "", ""},
		{`"*"`, "    memory: 32m\n", sandbox.CodeDenied, sandbox.CodeDenied},
	} {
		write(c.images, c.memory)
		ok(t, s.d.Reload(t.Context()))
		try(c.others, "template:acme/web")
		try(c.own, "template:web")
		try(c.own, "template:rival/web")
		if _, err := s.make(s.rival, sandbox.Spec{Image: "template:rival/rival/web"}); err == nil {
			t.Error("a name with two tenants was accepted")
		}
	}
}
