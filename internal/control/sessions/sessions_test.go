package sessions

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// memory keeps environments.
type memory map[sandbox.ID]map[string]string

func (m memory) Put(id sandbox.ID, env map[string]string) error {
	m[id] = env
	return nil
}
func (m memory) Get(id sandbox.ID) (map[string]string, error) { return m[id], nil }
func (m memory) Remove(id sandbox.ID) error {
	delete(m, id)
	return nil
}

// open returns the service of sessions without sandboxes: no session is acquired.
func open(t *testing.T) (*Service, memory) {
	t.Helper()
	m := memory{}
	return New(coretest.Open(t), Config{Environments: m}).Sessions, m
}

// Sessions for which a sandbox can never be made are refused, and nothing of them is
// kept.
func TestCreateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		verbs key.Verb
		n     durable.NewSession
		code  sandbox.Code
		words string
	}{
		{name: "a good one", verbs: key.Write, n: durable.NewSession{Name: "one", Spec: sandbox.Spec{Env: map[string]string{"A": "1"}}}},
		{name: "without the right", verbs: key.Read, n: durable.NewSession{Name: "one", Spec: sandbox.Spec{Env: map[string]string{"A": "1"}}}, code: sandbox.CodeDenied},
		{name: "an invalid name", verbs: key.Write, n: durable.NewSession{Name: "../one"}, code: sandbox.CodeInvalid},
		{name: "an invalid group", verbs: key.Write, n: durable.NewSession{Name: "one", Group: "a b"}, code: sandbox.CodeInvalid},
		{name: "published ports", verbs: key.Write, n: durable.NewSession{Name: "one", Spec: sandbox.Spec{Ports: []sandbox.PublishedPort{{Port: 80}}}}, code: sandbox.CodeUnsupported, words: "published ports"},
		{
			name: "the password of a proxy", verbs: key.Write, code: sandbox.CodeInvalid, words: "password",
			n: durable.NewSession{Name: "one", Spec: sandbox.Spec{Network: sandbox.Network{Inline: &sandbox.Profile{Proxy: &sandbox.UpstreamProxy{Address: "proxy.example.com:1080", Username: "u", Password: "x"}}}}},
		},
		{name: "a kind of recording", verbs: key.Write, n: durable.NewSession{Name: "one", Record: "always"}, code: sandbox.CodeInvalid, words: "manual or on-turn"},
		{name: "a label of Atoll", verbs: key.Write, n: durable.NewSession{Name: "one", Labels: map[string]string{"atoll.x": "1"}}, code: sandbox.CodeInvalid, words: "keeps for itself"},
		{name: "a label of Atoll, in its Spec", verbs: key.Write, n: durable.NewSession{Name: "one", Spec: sandbox.Spec{Labels: map[string]string{"atoll.x": "1"}}}, code: sandbox.CodeInvalid, words: "keeps for itself"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, kept := open(t)
			_, err := s.Create(coretest.As(t, coretest.Acme, tt.verbs), tt.n)
			coretest.WantCode(t, err, tt.code)
			if tt.words != "" && !strings.Contains(err.Error(), tt.words) {
				t.Errorf("the error is %v, want one with %q", err, tt.words)
			}
			all, err := s.List(coretest.As(t, coretest.Acme, key.Read), nil)
			coretest.OK(t, err)
			if want := map[bool]int{true: 1}[tt.code == ""]; len(all) != want || len(kept) != want {
				t.Errorf("%d sessions and %d environments are kept, want %d of each", len(all), len(kept), want)
			}
		})
	}
}

// Sessions of a group have one sandbox, so they agree about it: a new one gets what
// it leaves out, and is refused if it asks for something else.
func TestGroups(t *testing.T) {
	first := durable.NewSession{Name: "one", Group: "g", Spec: sandbox.Spec{Image: "debian:12", User: "app", Env: map[string]string{"A": "1", "B": "2"}}}
	for _, tt := range []struct {
		name  string
		spec  sandbox.Spec
		group string
		code  sandbox.Code
		words string
	}{
		{"leaves everything out", sandbox.Spec{}, "g", "", ""},
		{"asks for the same", first.Spec, "g", "", ""},
		{"asks for a part of it", sandbox.Spec{User: "app", Env: map[string]string{"B": "2"}}, "g", "", ""},
		{"another image", sandbox.Spec{Image: "alpine:3"}, "g", sandbox.CodeConflict, "image"},
		{"something that the first left out", sandbox.Spec{Workdir: "/x"}, "g", sandbox.CodeConflict, "workdir"},
		{"another network", sandbox.Spec{Network: sandbox.Network{Egress: []string{"example.com"}}}, "g", sandbox.CodeConflict, "network"},
		{"other workspaces", sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "other", Path: "/data"}}}, "g", sandbox.CodeConflict, "workspaces"},
		{"other limits", sandbox.Spec{Resources: sandbox.Resources{CPUs: 2}}, "g", sandbox.CodeConflict, "resources"},
		{"another user", sandbox.Spec{User: "nobody"}, "g", sandbox.CodeConflict, "user"},
		{"another value of a variable", sandbox.Spec{Env: map[string]string{"A": "9"}}, "g", sandbox.CodeConflict, "environment variable A"},
		{"a variable that the first lacks", sandbox.Spec{Env: map[string]string{"C": "3"}}, "g", sandbox.CodeConflict, "environment variable C"},
		{"another image, in a group of its own", sandbox.Spec{Image: "alpine:3"}, "h", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, kept := open(t)
			ctx := coretest.As(t, coretest.Acme, key.Write)
			_, err := s.Create(ctx, first)
			coretest.OK(t, err)
			got, err := s.Create(ctx, durable.NewSession{Name: "two", Group: tt.group, Spec: tt.spec})
			coretest.WantCode(t, err, tt.code)
			if tt.words != "" && (!strings.Contains(err.Error(), tt.words) || strings.Contains(err.Error(), "9")) {
				t.Errorf("the error is %v, want one that names the %s without a value", err, tt.words)
			}
			if err != nil || tt.group != "g" {
				return
			}
			if got.Session.Spec.Image != "debian:12" || got.Session.Spec.User != "app" || !maps.Equal(kept[sandbox.ID(got.Session.ID)], first.Spec.Env) {
				t.Errorf("it has the Spec %+v and the environment %v, want those of the group", got.Session.Spec, kept[sandbox.ID(got.Session.ID)])
			}
		})
	}
}

// A name is taken, unless the caller wants the session that has it. Other tenants
// have names of their own.
func TestNames(t *testing.T) {
	s, kept := open(t)
	ctx, rival := coretest.As(t, coretest.Acme, key.Write, key.Read), coretest.As(t, coretest.Rival, key.Write, key.Read)
	one, err := s.Create(ctx, durable.NewSession{Name: "one"})
	coretest.OK(t, err)
	_, err = s.Create(ctx, durable.NewSession{Name: "one", Spec: sandbox.Spec{Env: map[string]string{"TOKEN": "x"}}})
	coretest.WantCode(t, err, sandbox.CodeAlreadyExists)
	if len(kept) != 0 {
		t.Errorf("the environments %v are kept, want none of a session that was refused", kept)
	}
	again, err := s.Create(ctx, durable.NewSession{Name: "one", IfExists: durable.IfExistsAttach})
	coretest.OK(t, err)
	if !one.Created || again.Created || again.Session.ID != one.Session.ID {
		t.Errorf("the first is %s (created: %v) and the second %s (created: %v), want the same one, created once", one.Session.ID, one.Created, again.Session.ID, again.Created)
	}
	_, err = s.Get(rival, one.Session.ID)
	coretest.WantCode(t, err, sandbox.CodeNotFound)
	theirs, err := s.Create(rival, durable.NewSession{Name: "one", IfExists: durable.IfExistsAttach})
	coretest.OK(t, err)
	if !theirs.Created || theirs.Session.ID == one.Session.ID {
		t.Errorf("another tenant got %s (created: %v), want one of its own", theirs.Session.ID, theirs.Created)
	}
}

// Lists have the sessions of a tenant that have all of the labels.
func TestList(t *testing.T) {
	s, _ := open(t)
	ctx := coretest.As(t, coretest.Acme, key.Write, key.Read)
	for name, labels := range map[string]map[string]string{"a": {"team": "x", "kind": "ci"}, "b": {"team": "x"}, "c": nil} {
		_, err := s.Create(ctx, durable.NewSession{Name: name, Labels: labels})
		coretest.OK(t, err)
	}
	_, err := s.Create(coretest.As(t, coretest.Rival, key.Write), durable.NewSession{Name: "d", Labels: map[string]string{"team": "x"}})
	coretest.OK(t, err)
	_, err = s.Update(ctx, "c", durable.SessionChange{Labels: map[string]*string{"team": new("x")}})
	coretest.OK(t, err)
	_, err = s.Update(ctx, "b", durable.SessionChange{Labels: map[string]*string{"team": nil}})
	coretest.OK(t, err)
	_, err = s.Update(ctx, "b", durable.SessionChange{Labels: map[string]*string{"atoll.x": new("1")}})
	coretest.WantCode(t, err, sandbox.CodeInvalid)
	for _, tt := range []struct {
		labels map[string]string
		want   []string
	}{
		{nil, []string{"a", "b", "c"}},
		{map[string]string{"team": "x"}, []string{"a", "c"}},
		{map[string]string{"team": "x", "kind": "ci"}, []string{"a"}},
		{map[string]string{"team": "y"}, nil},
	} {
		all, err := s.List(ctx, tt.labels)
		coretest.OK(t, err)
		var names []string
		for _, one := range all {
			names = append(names, one.Name)
		}
		if !slices.Equal(names, tt.want) {
			t.Errorf("with %v there are %v, want %v", tt.labels, names, tt.want)
		}
	}
}
