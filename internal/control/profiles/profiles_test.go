package profiles

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// surroundings are the gateway, the secrets, the sandboxes and the policies of a
// Service.
type surroundings struct {
	set     *policyset.Set
	records []store.Sandbox
	told    []sandbox.ID          // whose rules were replaced
	fails   map[sandbox.ID]error  // of the gateway
	without map[sandbox.ID]bool   // sandboxes that no gateway serves
	rules   map[sandbox.ID]Egress // what they got
}

func (s *surroundings) Set() *policyset.Set { return s.set }

func (s *surroundings) SetEgress(_ context.Context, id sandbox.ID, e Egress) error {
	if err := s.fails[id]; err != nil {
		return err
	}
	s.told, s.rules[id] = append(s.told, id), e
	return nil
}

func (s *surroundings) Open(context.Context, *store.Secret) (v secret.Value, err error) {
	return v, nil
}

func (s *surroundings) SealProfile(_ string, p sandbox.Profile) (sandbox.Profile, error) {
	return p, nil
}

func (s *surroundings) OpenProxy(string, *sandbox.UpstreamProxy) (v secret.Value, err error) {
	return v, nil
}

func (s *surroundings) Recorded(context.Context) ([]store.Sandbox, error) { return s.records, nil }

func (s *surroundings) HasGateway(_ context.Context, b *store.Sandbox) (bool, error) {
	return !s.without[b.ID], nil
}

func open(t *testing.T) (*Service, *surroundings) {
	t.Helper()
	around := &surroundings{fails: map[sandbox.ID]error{}, without: map[sandbox.ID]bool{}, rules: map[sandbox.ID]Egress{}}
	return New(coretest.Open(t), Config{Gateway: around, Policies: around, Secrets: around, Sandboxes: around}), around
}

// to is a profile that allows hosts.
func to(name string, hosts ...string) sandbox.Profile {
	p := sandbox.Profile{Name: name}
	for _, h := range hosts {
		p.Rules = append(p.Rules, sandbox.Rule{Action: sandbox.Allow, Hosts: []string{h}})
	}
	return p
}

// uses records a sandbox of acme that uses a profile.
func uses(t *testing.T, s *Service, id sandbox.ID, profile string, change func(*store.Sandbox)) store.Sandbox {
	t.Helper()
	var b store.Sandbox
	b.ID, b.Spec.ID, b.Spec.Network.Profile = id, id, profile
	if change != nil {
		change(&b)
	}
	b = coretest.Add(t, s.Core, coretest.Acme, b)
	coretest.OK(t, s.Store.Update(t.Context(), func(tx *store.Tx) error { return tx.Profiles().Use(t.Context(), coretest.Acme, id, profile) }))
	return b
}

// A new version of a profile reaches exactly the sandboxes that have it and that the
// gateway serves. If it does not reach one, the version is stored, and the error
// says of whom it does not hold.
func TestApply(t *testing.T) {
	s, around := open(t)
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	first, err := s.Create(ctx, to("ci", "a.example.com"))
	coretest.OK(t, err)
	_, err = s.Create(ctx, to("other", "a.example.com"))
	coretest.OK(t, err)
	uses(t, s, "sb-1", "ci", nil)
	uses(t, s, "sb-2", "other", nil)
	uses(t, s, "sb-3", "ci", func(b *store.Sandbox) { b.State, b.Rest.Kept = sandbox.Stopped, "sn-1" })
	uses(t, s, "sb-4", "ci", func(b *store.Sandbox) { b.Node = "there" })
	uses(t, s, "sb-5", "ci", func(b *store.Sandbox) { b.State, b.Rest.Pause = sandbox.Paused, sandbox.PauseMemory })

	second, err := s.Apply(ctx, first.Version, to("ci", "b.example.com"))
	coretest.OK(t, err)
	slices.Sort(around.told)
	if !slices.Equal(around.told, []sandbox.ID{"sb-1", "sb-5"}) {
		t.Errorf("the rules of %v were replaced, want those of sb-1 and of sb-5, which is paused in memory", around.told)
	}
	if got := around.rules["sb-1"].Profile.Rules; len(got) != 1 || got[0].Hosts[0] != "b.example.com" {
		t.Errorf("sb-1 has the rules %+v, want the new ones", got)
	}

	_, err = s.Apply(ctx, first.Version, to("ci", "c.example.com")) // somebody else was faster
	coretest.WantCode(t, err, sandbox.CodeConflict)

	around.fails["sb-5"] = errors.New("the gateway is away")
	third, err := s.Apply(ctx, 0, to("ci", "d.example.com"))
	coretest.WantCode(t, err, sandbox.CodeUnavailable)
	if err == nil || !strings.Contains(err.Error(), "sb-5") || strings.Contains(err.Error(), "sb-1") {
		t.Errorf("the error is %v, want one that names sb-5 alone", err)
	}
	if now, err := s.Get(ctx, "ci", 0); err != nil || now.Version != third.Version || third.Version <= second.Version {
		t.Errorf("the present version is %d, %v; want %d, after %d", now.Version, err, third.Version, second.Version)
	}
	if old, err := s.Get(ctx, "ci", first.Version); err != nil || old.Profile.Rules[0].Hosts[0] != "a.example.com" {
		t.Errorf("the first version is %+v, %v; want what it was", old.Profile, err)
	}
}

// What is not stored, and who may not.
func TestCreateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		verbs key.Verb
		doc   sandbox.Profile
		caps  string
		code  sandbox.Code
	}{
		{name: "a good one", verbs: key.Admin, doc: to("ci", "a.example.com")},
		{name: "without the right", verbs: key.Write, doc: to("ci", "a.example.com"), code: sandbox.CodeDenied},
		{name: "without a name", verbs: key.Admin, doc: to("", "a.example.com"), code: sandbox.CodeInvalid},
		{name: "with a host that is none", verbs: key.Admin, doc: to("ci", "a b"), code: sandbox.CodeInvalid},
		{
			name: "with a secret that policies forbid", verbs: key.Admin, code: sandbox.CodeDenied, caps: "policies:\n  - name: few\n    secrets: [github]\n",
			doc: sandbox.Profile{Name: "ci", Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"a.example.com"}, Inject: []sandbox.Injection{{Secret: "other", Mode: sandbox.InjectBearer}}}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, around := open(t)
			if tt.caps != "" {
				set, err := policyset.Parse(map[string][]byte{"caps.yaml": []byte(tt.caps)})
				coretest.OK(t, err)
				around.set = set
			}
			_, err := s.Create(coretest.As(t, coretest.Acme, tt.verbs), tt.doc)
			coretest.WantCode(t, err, tt.code)
			all, err := s.List(coretest.As(t, coretest.Acme, key.Read))
			coretest.OK(t, err)
			if want := map[bool]int{true: 1}[tt.code == ""]; len(all) != want {
				t.Errorf("%d profiles are stored, want %d", len(all), want)
			}
		})
	}
}

// A profile is its tenant's alone, and stays while a sandbox uses it.
func TestRemove(t *testing.T) {
	s, _ := open(t)
	ctx, rival := coretest.As(t, coretest.Acme, key.Admin), coretest.As(t, coretest.Rival, key.Admin)
	_, err := s.Create(ctx, to("ci", "a.example.com"))
	coretest.OK(t, err)
	_, err = s.Get(rival, "ci", 0)
	coretest.WantCode(t, err, sandbox.CodeNotFound)
	coretest.WantCode(t, s.Remove(rival, "ci"), sandbox.CodeNotFound)
	uses(t, s, "sb-1", "ci", nil)
	coretest.WantCode(t, s.Remove(ctx, "ci"), sandbox.CodeConflict)
}

// A sandbox that no gateway serves is an error, and one that has ended meanwhile is
// none. One failure does not keep the others from getting their rules.
func TestEnforce(t *testing.T) {
	s, around := open(t)
	_, err := s.Create(coretest.As(t, coretest.Acme, key.Admin), to("ci", "a.example.com"))
	coretest.OK(t, err)
	var all []store.Sandbox
	for _, id := range []sandbox.ID{"sb-1", "sb-2", "sb-3", "sb-4"} {
		all = append(all, uses(t, s, id, "ci", nil))
	}
	around.fails["sb-1"] = &sandbox.Error{Code: sandbox.CodeNotFound}
	around.fails["sb-2"] = &sandbox.Error{Code: sandbox.CodeGone}
	coretest.OK(t, s.Enforce(t.Context(), all))
	around.fails["sb-1"], around.without["sb-3"], around.told = errors.New("broken"), true, nil
	err = s.Enforce(t.Context(), all)
	coretest.WantCode(t, err, sandbox.CodeUnavailable)
	if !strings.Contains(err.Error(), "sb-1, sb-3") || !slices.Equal(around.told, []sandbox.ID{"sb-4"}) {
		t.Errorf("the error is %v, and the rules of %v were replaced; want that sb-1 and sb-3 are named, and sb-4 has its rules", err, around.told)
	}
}
