package islo

import (
	"cmp"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

// The actions of profiles and rules.
const (
	allow = "allow"
	deny  = "deny"
)

type authStrategy struct {
	Mode     string `json:"mode"`
	Username string `json:"username,omitempty"`
	Name     string `json:"name,omitempty"`
	Format   string `json:"format,omitempty"`
}

type contentFilter struct {
	Type      string `json:"filter_type"`
	Direction string `json:"direction"`
	Pattern   string `json:"pattern,omitempty"`
	Name      string `json:"name,omitempty"`
	Provider  string `json:"provider_key,omitempty"`
	Model     string `json:"model,omitempty"`
	Prompt    string `json:"prompt,omitempty"`
	Fallback  string `json:"fallback,omitempty"`
	Timeout   int    `json:"timeout_seconds,omitempty"`
	MaxTokens int    `json:"max_tokens,omitempty"`
}

// Rule is a rule of a gateway profile.
type Rule struct {
	ID        string         `json:"id"`
	Priority  int            `json:"priority"`
	Host      string         `json:"host_pattern"`
	Path      string         `json:"path_pattern,omitempty"`
	Methods   []string       `json:"methods,omitempty"`
	Action    string         `json:"action"`
	RateLimit int            `json:"rate_limit_rpm,omitempty"`
	Provider  string         `json:"provider_key,omitempty"`
	Auth      *authStrategy  `json:"auth_strategy,omitempty"`
	Filter    *contentFilter `json:"content_filter,omitempty"`
	Created   time.Time      `json:"created_at"`
}

type integrations struct {
	Mode string   `json:"mode"`
	Keys []string `json:"keys,omitempty"`
}

type role struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Provider string `json:"provider"`
	ARN      string `json:"role_arn"`
}

// profile is a gateway profile. Its fields are the server's, under its mutex.
type profile struct {
	ID           string        `json:"id"`
	Name         string        `json:"name"`
	Description  string        `json:"description,omitempty"`
	Default      string        `json:"default_action"`
	Internet     bool          `json:"internet_enabled"`
	IsDefault    bool          `json:"is_default"`
	Role         *role         `json:"cloud_role,omitempty"`
	Integrations *integrations `json:"integration_policy,omitempty"`
	RuleCount    int           `json:"rule_count"`
	Rules        []*Rule       `json:"rules,omitempty"`
	Created      time.Time     `json:"created_at"`
	tenant       string
	changes      int // how often it was changed after it was made
}

func (s *Server) controlPlane() {
	s.handle("GET /tenants/regions", func(r *http.Request, _ string) (int, any, error) {
		base := "http://" + r.Host
		return http.StatusOK, map[string]any{"regions": []any{map[string]any{
			"key": "ca", "label": "Canada", "api_url": base, "ws_url": "ws://" + r.Host, "is_default": true,
		}}}, nil
	})
	s.handle("GET /gateway/profiles", s.listProfiles)
	s.handle("POST /gateway/profiles", s.createProfile)
	s.handle("GET /gateway/profiles/{id}", s.withProfile(s.getProfile))
	s.handle("PATCH /gateway/profiles/{id}", s.withProfile(s.changeProfile))
	s.handle("DELETE /gateway/profiles/{id}", s.withProfile(s.deleteProfile))
	s.handle("POST /gateway/profiles/{id}/rules", s.withProfile(s.createRule))
	s.handle("PATCH /gateway/profiles/{id}/rules/{rule}", s.withProfile(s.changeRule))
	s.handle("DELETE /gateway/profiles/{id}/rules/{rule}", s.withProfile(s.deleteRule))
	s.handle("POST /gateway/profiles/{id}/rules/reorder", s.withProfile(s.reorder))
}

// withProfile is a call about one profile, with the mutex held.
func (s *Server) withProfile(f func(r *http.Request, p *profile) (int, any, error)) call {
	return func(r *http.Request, tenant string) (int, any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.profiles {
			if p.tenant == tenant && p.ID == r.PathValue("id") {
				return f(r, p)
			}
		}
		return 0, nil, fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "gateway profile not found")
	}
}

// head is a profile without its rules.
func (p *profile) head() profile {
	h := *p
	h.RuleCount, h.Rules = len(p.Rules), nil
	return h
}

func (s *Server) listProfiles(_ *http.Request, tenant string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []profile{}
	for _, p := range s.profiles {
		if p.tenant == tenant {
			list = append(list, p.head())
		}
	}
	return http.StatusOK, list, nil
}

// settings are what can be said about a profile.
type settings struct {
	Name         *string       `json:"name"`
	Description  *string       `json:"description"`
	Default      *string       `json:"default_action"`
	Internet     *bool         `json:"internet_enabled"`
	IsDefault    *bool         `json:"is_default"`
	Role         *string       `json:"cloud_role"`
	Integrations *integrations `json:"integration_policy"`
}

func (p *profile) apply(in settings) error {
	set(&p.Name, in.Name)
	set(&p.Description, in.Description)
	set(&p.Default, in.Default)
	set(&p.Internet, in.Internet)
	set(&p.IsDefault, in.IsDefault)
	if in.Role != nil {
		if p.Role = nil; *in.Role != "" {
			p.Role = &role{*in.Role, "role", "aws", "arn:aws:iam::0:role/role"}
		}
	}
	if in.Integrations != nil {
		p.Integrations = in.Integrations
	}
	if p.Name == "" || p.Default != allow && p.Default != deny {
		return invalid("name or default_action is invalid")
	}
	return nil
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func (s *Server) createProfile(r *http.Request, tenant string) (int, any, error) {
	var in settings
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	p := &profile{ID: newID(), Default: deny, Internet: true, Integrations: &integrations{Mode: "all"}, Created: time.Now().UTC(), tenant: tenant}
	if err := p.apply(in); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.profiles, func(o *profile) bool { return o.tenant == tenant && o.Name == p.Name }) {
		return 0, nil, fail(http.StatusConflict, "INVALID_REQUEST", "gateway profile %s already exists", p.Name)
	}
	s.profiles = append(s.profiles, p)
	return http.StatusCreated, p.head(), nil
}

func (s *Server) getProfile(_ *http.Request, p *profile) (int, any, error) {
	full := *p
	full.RuleCount = len(p.Rules)
	return http.StatusOK, full, nil
}

func (s *Server) changeProfile(r *http.Request, p *profile) (int, any, error) {
	var in settings
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	p.changes++
	return http.StatusOK, p.head(), p.apply(in)
}

// deleteProfile refuses to remove a profile that a sandbox has.
func (s *Server) deleteProfile(_ *http.Request, p *profile) (int, any, error) {
	for _, b := range s.boxes {
		if b.profile == p.ID && b.Status != Deleted {
			return 0, nil, fail(http.StatusConflict, "RESOURCE_UNAVAILABLE", "gateway profile is used by sandbox %s", b.Name)
		}
	}
	s.profiles = slices.DeleteFunc(s.profiles, func(o *profile) bool { return o == p })
	return http.StatusNoContent, nil, nil
}

// ruleSettings are what can be said about a rule.
type ruleSettings struct {
	Host      *string        `json:"host_pattern"`
	Path      *string        `json:"path_pattern"`
	Methods   *[]string      `json:"methods"`
	Action    *string        `json:"action"`
	Priority  *int           `json:"priority"`
	RateLimit *int           `json:"rate_limit_rpm"`
	Provider  *string        `json:"provider_key"`
	Auth      *authStrategy  `json:"auth_strategy"`
	Filter    *contentFilter `json:"content_filter"`
}

func (one *Rule) apply(in ruleSettings) error {
	set(&one.Host, in.Host)
	set(&one.Path, in.Path)
	set(&one.Methods, in.Methods)
	set(&one.Action, in.Action)
	set(&one.Priority, in.Priority)
	set(&one.RateLimit, in.RateLimit)
	set(&one.Provider, in.Provider)
	if in.Auth != nil {
		one.Auth = in.Auth
	}
	if in.Filter != nil {
		one.Filter = in.Filter
	}
	switch {
	case one.Host == "" || strings.ContainsAny(one.Host, ":/") || strings.Contains(strings.TrimPrefix(one.Host, "*."), "*"):
		return invalid("host_pattern is invalid")
	case one.Action != allow && one.Action != deny:
		return invalid("action is invalid")
	case one.Filter != nil && !slices.Contains([]string{"regex", "size_limit", "content_type", "judge"}, one.Filter.Type):
		return invalid("filter_type is invalid")
	case one.Filter != nil && !slices.Contains([]string{"request", "response", "both"}, one.Filter.Direction):
		return invalid("direction is invalid")
	case one.Auth != nil && !slices.Contains([]string{"bearer", "basic", "header"}, one.Auth.Mode):
		return invalid("auth_strategy is invalid")
	}
	return nil
}

func (s *Server) createRule(r *http.Request, p *profile) (int, any, error) {
	var in ruleSettings
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	one := &Rule{ID: newID(), Action: allow, Priority: 100, Created: time.Now().UTC()}
	if err := one.apply(in); err != nil {
		return 0, nil, err
	}
	p.Rules, p.changes = append(p.Rules, one), p.changes+1
	return http.StatusCreated, one, nil
}

func noRule() error { return fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "rule not found") }

func (s *Server) changeRule(r *http.Request, p *profile) (int, any, error) {
	var in ruleSettings
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	for _, one := range p.Rules {
		if one.ID == r.PathValue("rule") {
			p.changes++
			return http.StatusOK, one, one.apply(in)
		}
	}
	return 0, nil, noRule()
}

func (s *Server) deleteRule(r *http.Request, p *profile) (int, any, error) {
	n := len(p.Rules)
	p.Rules = slices.DeleteFunc(p.Rules, func(o *Rule) bool { return o.ID == r.PathValue("rule") })
	if len(p.Rules) == n {
		return 0, nil, noRule()
	}
	p.changes++
	return http.StatusNoContent, nil, nil
}

func (s *Server) reorder(r *http.Request, p *profile) (int, any, error) {
	var in struct {
		Rules []struct {
			ID       string `json:"rule_id"`
			Priority int    `json:"priority"`
		} `json:"rules"`
	}
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	for _, want := range in.Rules {
		for _, one := range p.Rules {
			if one.ID == want.ID {
				one.Priority = want.Priority
			}
		}
	}
	p.changes++
	return http.StatusOK, p.Rules, nil
}

// Profiles returns the names of the gateway profiles that there are.
func (s *Server) Profiles() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.profiles {
		names = append(names, p.Name)
	}
	return names
}

// Changes returns how often a profile was changed after it was made.
func (s *Server) Changes(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.profiles {
		if p.Name == name {
			return p.changes
		}
	}
	return 0
}

// Passes says whether the gateway lets a request of a sandbox pass, and by which
// rule: the first that matches, in the order of their priorities.
func (s *Server) Passes(name, method, host, file string) (bool, *Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if b.Name != name || b.Status == Deleted || !b.internet {
			continue
		}
		for _, p := range s.profiles {
			if p.ID == b.profile {
				return p.decide(method, host, file)
			}
		}
		return true, nil // no profile limits it
	}
	return false, nil
}

func (p *profile) decide(method, host, file string) (bool, *Rule) {
	if !p.Internet {
		return false, nil
	}
	rules := slices.Clone(p.Rules)
	slices.SortStableFunc(rules, func(x, y *Rule) int { return cmp.Compare(x.Priority, y.Priority) })
	for _, one := range rules {
		below, wild := strings.CutPrefix(one.Host, "*")
		above, deep := strings.CutSuffix(one.Path, "*")
		at := one.Path == "" || path.Clean(file) == one.Path || deep && strings.HasPrefix(file, above)
		if (one.Host == host || wild && strings.HasSuffix(host, below)) && at && (len(one.Methods) == 0 || slices.Contains(one.Methods, method)) {
			return one.Action == allow, one
		}
	}
	return p.Default == allow, nil
}

// AddProfile makes a gateway profile that allows everything, as another client.
func (s *Server) AddProfile(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profiles = append(s.profiles, &profile{ID: newID(), Name: name, Default: allow, Internet: true, Created: time.Now().UTC(), tenant: Tenant})
}
