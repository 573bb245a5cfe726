package hosted

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// keyed is a service that only returns its credential.
type keyed struct {
	Service
	credential Credential
}

func (k keyed) Credential() Credential { return k.credential }

// Records of earlier versions, whose bindings contained the directory, belong
// to the same account.
func TestFormerBinding(t *testing.T) {
	base, err := url.Parse("https://api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	c := &Core{Records: Open(t.TempDir()), Service: keyed{credential: Credential{Name: "key", Key: "key"}}, API: &rest.Client{Base: base}}
	scope, err := c.Scope()
	if err != nil {
		t.Fatal(err)
	}
	for id, binding := range map[string]string{"old": identity.Local(base, scope, "key"), "new": identity.Account(base, "key"), "other": identity.Local(base, scope, "other")} {
		l, err := c.Lock(t.Context(), id)
		if err == nil {
			err = l.Write(Record{ServiceID: "box-" + id, Binding: binding})
		}
		if err != nil {
			t.Fatal(err)
		}
		l.Unlock()
	}
	ours, err := c.Ours(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]sandbox.Code{"old": sandbox.CodeGone, "new": sandbox.CodeGone, "other": sandbox.CodeUnauthorized} {
		if err := c.Absent(sandbox.ID(id), ours, "", ""); sandbox.CodeOf(err) != want {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
	}
	// The account has the same name in another directory, unless its key can
	// change.
	second := &Core{Records: Open(t.TempDir()), Service: c.Service, API: c.API}
	one, err1 := c.Binding(t.Context())
	two, err2 := second.Binding(t.Context())
	if err1 != nil || err2 != nil || one != two {
		t.Errorf("the bindings are %q and %q, %v, %v; want the same", one, two, err1, err2)
	}
	c.Service, second.Service = keyed{credential: Credential{Name: "file /key"}}, keyed{credential: Credential{Name: "file /key"}}
	one, _ = c.Binding(t.Context())
	if two, _ = second.Binding(t.Context()); one == two {
		t.Errorf("with keys from different files, both have the binding %q", one)
	}
}

// listing is a service with one sandbox.
type listing struct {
	keyed
	only  Sandbox
	ended bool
}

func (l *listing) List(context.Context, string, sandbox.ID) ([]Sandbox, error) {
	if l.ended {
		return nil, nil
	}
	return []Sandbox{l.only}, nil
}

func (l *listing) End(context.Context, sandbox.ID, string) error { l.ended = true; return nil }

// A sandbox whose creation was given up is not listed while it is being removed,
// which may take longer than its caller waits.
func TestListDuringUndo(t *testing.T) {
	base, err := url.Parse("https://api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	service := &listing{keyed: keyed{credential: Credential{Name: "key", Key: "key"}}}
	c := &Core{Records: Open(t.TempDir()), Service: service, API: &rest.Client{Base: base}}
	scope, err := c.Scope()
	if err != nil {
		t.Fatal(err)
	}
	service.only = Sandbox{ID: "one", Sandbox: "sb", Scope: scope, State: sandbox.Running}
	l, err := c.Lock(t.Context(), "sb")
	if err == nil {
		err = l.Write(Record{Asked: time.Now(), Binding: identity.Account(base, "key")})
	}
	if err != nil {
		t.Fatal(err)
	}
	for found, err := range c.List(t.Context()) {
		t.Errorf("while it is being removed, List: %+v, %v", found, err)
	}
	if service.ended {
		t.Error("List has removed what another caller removes")
	}
	l.Unlock()
	for found, err := range c.List(t.Context()) {
		t.Errorf("after that, List: %+v, %v", found, err)
	}
	if !service.ended {
		t.Error("List has not removed it")
	}
}
