package islo

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// The actions of profiles and rules.
const allow, deny = "allow", "deny"

// profile is a gateway profile. Its fields are the server's, under its mutex.
type profile struct {
	tenant, id, name string
	facts            facts
	rules            []facts
	changes          int // how often it was changed after it was made
}

// facts are what is known of a profile or a rule, as the service shows it.
type facts map[string]any

// Rule is what decides in a rule of a gateway profile.
type Rule struct {
	Priority int      `json:"priority"`
	Host     string   `json:"host_pattern"`
	Path     string   `json:"path_pattern"`
	Methods  []string `json:"methods"`
	Action   string   `json:"action"`
}

func (s *Server) gatewayRoutes() {
	s.Handle("GET /tenants/regions", func(r *http.Request, _ string) (any, error) {
		return facts{"regions": []any{facts{"key": "ca", "label": "Canada", "api_url": "http://" + r.Host, "ws_url": "ws://" + r.Host, "is_default": true}}}, nil
	})
	const one = "/gateway/profiles/{id}"
	s.Handle("GET /gateway/profiles", s.listProfiles)
	s.Handle("POST /gateway/profiles", s.createProfile)
	s.Handle("GET "+one, s.withProfile(func(_ *http.Request, p *profile) (any, error) { return p.full(), nil }))
	s.Handle("PATCH "+one, s.withProfile(func(r *http.Request, p *profile) (any, error) {
		p.changes++
		return p.head(), p.apply(r)
	}))
	s.Handle("DELETE "+one, s.withProfile(s.deleteProfile))
	s.Handle("POST "+one+"/rules", s.withProfile(func(r *http.Request, p *profile) (any, error) {
		rule := facts{"id": servicetest.UUID(), "action": allow, "priority": 100, "created_at": time.Now().UTC()}
		if err := rule.apply(r); err != nil {
			return nil, err
		}
		p.rules, p.changes = append(p.rules, rule), p.changes+1
		return servicetest.Reply{Status: http.StatusCreated, Body: maps.Clone(rule)}, nil
	}))
	s.Handle("PATCH "+one+"/rules/{rule}", s.withRule(func(r *http.Request, _ *profile, rule facts) (any, error) {
		err := rule.apply(r)
		return maps.Clone(rule), err
	}))
	s.Handle("DELETE "+one+"/rules/{rule}", s.withRule(func(_ *http.Request, p *profile, rule facts) (any, error) {
		p.rules = slices.DeleteFunc(p.rules, func(o facts) bool { return o["id"] == rule["id"] })
		return servicetest.Reply{Status: http.StatusNoContent}, nil
	}))
	s.Handle("POST "+one+"/rules/reorder", s.withProfile(reorder))
}

// withProfile is a call about one profile, with the mutex held.
func (s *Server) withProfile(f func(r *http.Request, p *profile) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, tenant string) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.profiles {
			if p.tenant == tenant && p.id == r.PathValue("id") {
				return f(r, p)
			}
		}
		return nil, notFound("gateway profile", r.PathValue("id"))
	}
}

// withRule is a call that changes one rule of a profile.
func (s *Server) withRule(f func(r *http.Request, p *profile, rule facts) (any, error)) func(*http.Request, string) (any, error) {
	return s.withProfile(func(r *http.Request, p *profile) (any, error) {
		for _, rule := range p.rules {
			if rule["id"] == r.PathValue("rule") {
				p.changes++
				return f(r, p, rule)
			}
		}
		return nil, notFound("rule", r.PathValue("rule"))
	})
}

// given reads the fields that a client may set.
func given(r *http.Request, fields string) (facts, error) {
	in := facts{}
	err := read(r, &in)
	for name := range in {
		if !slices.Contains(strings.Fields(fields), name) {
			err = errors.Join(err, invalid(name))
		}
	}
	return in, err
}

// head is a profile without its rules.
func (p *profile) head() facts {
	h := maps.Clone(p.facts)
	h["id"], h["rule_count"] = p.id, len(p.rules)
	return h
}

// full is a profile with its rules.
func (p *profile) full() facts {
	h, rules := p.head(), []facts{}
	for _, rule := range p.rules {
		rules = append(rules, maps.Clone(rule))
	}
	h["rules"] = rules
	return h
}

// apply changes a profile as a request says.
func (p *profile) apply(r *http.Request) error {
	in, err := given(r, "name description default_action internet_enabled is_default cloud_role integration_policy")
	if role := in["cloud_role"]; role != nil {
		in["cloud_role"] = facts{"id": role, "name": "role", "provider": "aws", "role_arn": "arn:aws:iam::0:role/role"}
	}
	maps.Copy(p.facts, in)
	p.name, _ = p.facts["name"].(string)
	if action := p.facts["default_action"]; err == nil && (p.name == "" || action != allow && action != deny) {
		err = invalid("name or default_action")
	}
	return err
}

// apply changes a rule as a request says.
func (f facts) apply(r *http.Request) error {
	in, err := given(r, "host_pattern path_pattern methods action priority rate_limit_rpm provider_key auth_strategy content_filter")
	if err != nil {
		return err
	}
	maps.Copy(f, in)
	switch rule := f.rule(); {
	case rule.Host == "" || strings.ContainsAny(rule.Host, ":/") || strings.Contains(strings.TrimPrefix(rule.Host, "*."), "*"):
		return invalid("host_pattern")
	case rule.Action != allow && rule.Action != deny:
		return invalid("action")
	}
	return nil
}

// rule returns what decides in a rule.
func (f facts) rule() (rule Rule) {
	text, _ := json.Marshal(f)
	_ = json.Unmarshal(text, &rule) // what is invalid stays empty, and is refused
	return rule
}

func newProfile(tenant string) *profile {
	return &profile{tenant: tenant, id: servicetest.UUID(), facts: facts{
		"default_action": deny, "internet_enabled": true, "is_default": false, "integration_policy": facts{"mode": "all"}, "created_at": time.Now().UTC(),
	}}
}

func (s *Server) listProfiles(_ *http.Request, tenant string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []facts{}
	for _, p := range s.profiles {
		if p.tenant == tenant {
			list = append(list, p.head())
		}
	}
	return list, nil
}

func (s *Server) createProfile(r *http.Request, tenant string) (any, error) {
	p := newProfile(tenant)
	if err := p.apply(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.profiles, func(o *profile) bool { return o.tenant == tenant && o.name == p.name }) {
		return nil, servicetest.FailAs(http.StatusConflict, "INVALID_REQUEST", "gateway profile %s already exists", p.name)
	}
	s.profiles = append(s.profiles, p)
	return servicetest.Reply{Status: http.StatusCreated, Body: p.head()}, nil
}

// deleteProfile refuses to remove a profile that a sandbox has.
func (s *Server) deleteProfile(_ *http.Request, p *profile) (any, error) {
	for _, b := range s.List(p.tenant, nil) {
		if c, _ := b.Request.(creation); c.Profile == p.id {
			return nil, servicetest.FailAs(http.StatusConflict, "RESOURCE_UNAVAILABLE", "gateway profile is used by sandbox %s", b.Name)
		}
	}
	s.profiles = slices.DeleteFunc(s.profiles, func(o *profile) bool { return o == p })
	return servicetest.Reply{Status: http.StatusNoContent}, nil
}

func reorder(r *http.Request, p *profile) (any, error) {
	var in struct {
		Rules []facts `json:"rules"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	for _, want := range in.Rules {
		for _, rule := range p.rules {
			if rule["id"] == want["rule_id"] {
				rule["priority"] = want["priority"]
			}
		}
	}
	p.changes++
	return p.full()["rules"], nil
}

// profileID returns the ID of a profile with a name or an ID, or of the default
// one, or nothing.
func (s *Server) profileID(tenant, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.profiles {
		if p.tenant == tenant && (p.id == name || p.name == name || name == "" && p.facts["is_default"] == true) {
			return p.id
		}
	}
	return ""
}

// Profiles returns the names of the gateway profiles that there are.
func (s *Server) Profiles() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.profiles {
		names = append(names, p.name)
	}
	return names
}

// Changes returns how often a profile was changed.
func (s *Server) Changes(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.profiles {
		if p.name == name {
			return p.changes
		}
	}
	return 0
}

// AddProfile makes a gateway profile that allows everything, as another client.
func (s *Server) AddProfile(name string) {
	p := newProfile(Tenant)
	p.name, p.facts["name"], p.facts["default_action"] = name, name, allow
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profiles = append(s.profiles, p)
}

// Passes says whether the gateway lets a request of a sandbox pass, and by which
// rule: the first that matches, in the order of their priorities.
func (s *Server) Passes(name, method, host, file string) (bool, *Rule) {
	b, err := s.Find(Tenant, name)
	if err != nil {
		return false, nil
	}
	c, _ := s.Show(b).Request.(creation)
	if c.Internet != nil && !*c.Internet {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.profiles {
		if p.id == c.Profile {
			return p.decide(method, host, file)
		}
	}
	return true, nil // no profile limits it
}

func (p *profile) decide(method, host, file string) (bool, *Rule) {
	if p.facts["internet_enabled"] != true {
		return false, nil
	}
	var rules []Rule
	for _, f := range p.rules {
		rules = append(rules, f.rule())
	}
	slices.SortStableFunc(rules, func(x, y Rule) int { return cmp.Compare(x.Priority, y.Priority) })
	for _, one := range rules {
		below, wild := strings.CutPrefix(one.Host, "*")
		above, deep := strings.CutSuffix(one.Path, "*")
		at := one.Path == "" || path.Clean(file) == one.Path || deep && strings.HasPrefix(file, above)
		if (one.Host == host || wild && strings.HasSuffix(host, below)) && at && (len(one.Methods) == 0 || slices.Contains(one.Methods, method)) {
			return one.Action == allow, &one
		}
	}
	return p.facts["default_action"] == allow, nil
}
