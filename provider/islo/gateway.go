package islo

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Gateway contains settings of every gateway profile that the provider makes.
type Gateway struct {
	// CloudRole is the public id of a role.
	CloudRole string `json:"cloudRole,omitempty"`
	// Integrations are the account's integrations with credentials that may be
	// added to requests.
	Integrations []string `json:"integrations,omitempty"`
	// Rules precede the rules of a sandbox, in this order, regardless of their
	// priority.
	Rules []Rule `json:"rules,omitempty"`
}

// Rule is a rule of the service's gateway, in the service's format.
type Rule struct {
	ID            string         `json:"id,omitempty"`
	Host          string         `json:"host_pattern"`
	Path          string         `json:"path_pattern,omitempty"`
	Methods       []string       `json:"methods,omitempty"`
	Action        string         `json:"action"`
	Priority      int            `json:"priority"`
	RateLimit     int            `json:"rate_limit_rpm,omitempty"`
	Provider      string         `json:"provider_key,omitempty"`
	AuthStrategy  *AuthStrategy  `json:"auth_strategy,omitempty"`
	ContentFilter *ContentFilter `json:"content_filter,omitempty"`
}

// AuthStrategy says how the credential of an integration is added.
type AuthStrategy struct {
	Mode     string `json:"mode"`
	Username string `json:"username,omitempty"`
	Name     string `json:"name,omitempty"`
	Format   string `json:"format,omitempty"`
}

// ContentFilter inspects the content of requests and answers.
type ContentFilter struct {
	Type      string `json:"filter_type"`
	Direction string `json:"direction"`
	Pattern   string `json:"pattern,omitempty"`
	// The remaining fields are for the type "judge".
	Name      string `json:"name,omitempty"`
	Provider  string `json:"provider_key,omitempty"`
	Model     string `json:"model,omitempty"`
	Prompt    string `json:"prompt,omitempty"`
	Fallback  string `json:"fallback,omitempty"`
	Timeout   int    `json:"timeout_seconds,omitempty"`
	MaxTokens int    `json:"max_tokens,omitempty"`
}

// profile is a gateway profile. The service returns the role as an object.
type profile struct {
	ID           string        `json:"id,omitempty"`
	Name         string        `json:"name"`
	Description  string        `json:"description,omitempty"`
	Default      string        `json:"default_action"`
	Internet     bool          `json:"internet_enabled"`
	IsDefault    bool          `json:"is_default"`
	Role         any           `json:"cloud_role,omitempty"`
	Integrations *integrations `json:"integration_policy,omitempty"`
	Rules        []Rule        `json:"rules,omitempty"`
}

type integrations struct {
	Mode string   `json:"mode"`
	Keys []string `json:"keys"`
}

// EgressAbility implements driver.EgressEnforcer.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{
		Kind: enforce.Full, NamePorts: []uint16{80, 443}, NamesOnly: true, Wildcards: true,
		Filters: []sandbox.FilterType{sandbox.FilterRegex, sandbox.FilterSize},
	}
}

// profileOf returns the gateway profile for rules, or nil if they allow nothing.
func (p *Provider) profileOf(name string, rules *sandbox.EgressRules) *profile {
	if rules == nil || !rules.Open && len(rules.Requests)+len(rules.Allow) == 0 {
		return nil
	}
	out := &profile{
		Name: name, Description: "made by Atoll for the sandbox of the same name", Default: "deny", Internet: true,
		Integrations: &integrations{Mode: "custom", Keys: append([]string{}, p.opts.Gateway.Integrations...)}, Rules: slices.Clone(p.opts.Gateway.Rules),
	}
	if p.opts.Gateway.CloudRole != "" {
		out.Role = p.opts.Gateway.CloudRole
	}
	switch {
	case rules.Open:
		out.Default = "allow"
	default:
		for _, r := range rules.Requests {
			out.Rules = append(out.Rules, Rule{
				Host: r.Host, Path: r.Path, Methods: r.Methods, Action: string(r.Action), RateLimit: r.PerMinute, ContentFilter: filterOf(r.Filter),
			})
		}
		for _, t := range rules.Allow {
			out.Rules = append(out.Rules, Rule{Host: t.Host, Action: "allow"})
		}
	}
	for i := range out.Rules {
		out.Rules[i].ID, out.Rules[i].Priority = "", (i+1)*10
		out.Rules[i].Action = cmp.Or(out.Rules[i].Action, "allow")
	}
	return out
}

func filterOf(f *sandbox.Filter) *ContentFilter {
	if f == nil {
		return nil
	}
	out := &ContentFilter{Type: "regex", Direction: cmp.Or(string(f.Direction), "both"), Pattern: f.Pattern}
	if f.Type == sandbox.FilterSize {
		out.Type, out.Pattern = "size_limit", strconv.FormatInt(f.Bytes, 10)
	}
	return out
}

// addProfile makes a gateway profile with its rules, and returns its id. An
// existing profile with this name is from an earlier attempt and is removed
// first. On an error nothing is left, unless the error says so.
func (a *api) addProfile(ctx context.Context, want *profile) (string, error) {
	if err := a.removeProfile(ctx, want.Name, false); err != nil {
		return "", err
	}
	head := *want
	head.Rules = nil
	var made profile
	err := a.Login.Call(ctx, http.MethodPost, "/gateway/profiles", &head, &made)
	if err == nil && (made.ID == "" || made.Name != want.Name) {
		err = a.ProtocolError("the service answers for another gateway profile")
	}
	path := "/gateway/profiles/" + made.ID
	for i := range want.Rules {
		if err == nil {
			err = a.Login.Call(ctx, http.MethodPost, path+"/rules", &want.Rules[i], nil)
		}
	}
	var now profile
	if err == nil {
		err = a.Login.Call(ctx, http.MethodGet, path, nil, &now)
	}
	if err == nil && !same(want, &now) {
		err = a.ProtocolError("the service does not confirm what the sandbox may reach")
	}
	return made.ID, err
}

// same reports whether the service's profile is as requested.
func same(want, got *profile) bool {
	slices.SortFunc(got.Rules, func(x, y Rule) int { return cmp.Compare(x.Priority, y.Priority) })
	for i := range got.Rules {
		got.Rules[i].ID = ""
	}
	return got.Name == want.Name && got.Default == want.Default && got.Internet == want.Internet && !got.IsDefault && roleOf(got) == roleOf(want) &&
		len(got.Rules) == len(want.Rules) && (len(want.Rules) == 0 || reflect.DeepEqual(got.Rules, want.Rules)) &&
		(got.Integrations == nil || got.Integrations.Mode == want.Integrations.Mode && slices.Equal(got.Integrations.Keys, want.Integrations.Keys))
}

// roleOf returns the id of a profile's role, from a request or an answer.
func roleOf(p *profile) string {
	if m, ok := p.Role.(map[string]any); ok {
		p.Role = m["id"]
	}
	id, _ := p.Role.(string)
	return id
}

// profiles lists the gateway profiles of the account.
func (a *api) profiles(ctx context.Context) (all []profile, err error) {
	err = a.Login.Call(ctx, http.MethodGet, "/gateway/profiles", nil, &all)
	return all, err
}

// removeProfile removes the gateway profiles with a name that only this
// provider uses. A missing profile is success. A profile that a sandbox uses is
// a conflict: immediately with once, otherwise after some retries.
func (a *api) removeProfile(ctx context.Context, name string, once bool) error {
	all, err := a.profiles(ctx)
	for _, p := range all {
		if err != nil || p.Name != name || p.ID == "" {
			continue
		}
		path := "/gateway/profiles/" + p.ID
		if once {
			err = a.Login.Call(ctx, http.MethodDelete, path, nil, nil)
		} else {
			err = a.Login.Remove(ctx, path)
		}
		if missing(err) {
			err = nil
		}
	}
	return err
}
