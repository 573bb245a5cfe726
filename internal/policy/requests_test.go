package policy

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

var seesRequests = enforce.Ability{
	Kind: enforce.Full, NamePorts: []uint16{80, 443}, NamesOnly: true, Wildcards: true,
	Filters: []sandbox.FilterType{sandbox.FilterRegex, sandbox.FilterSize},
}

func TestTranslateRequests(t *testing.T) {
	off := false
	filter := sandbox.Filter{Type: sandbox.FilterSize, Direction: sandbox.DirRequest, Bytes: 1000}
	for name, tt := range map[string]struct {
		profile sandbox.Profile
		want    []sandbox.EgressRequest
		lost    string // the rule that is refused
	}{
		"everything it can": {
			sandbox.Profile{Rules: []sandbox.Rule{
				{Name: "no admin", Action: sandbox.Deny, Hosts: []string{"admin.a.test"}, Methods: []string{"POST"}},
				{Name: "api", Action: sandbox.Allow, Hosts: []string{"api.a.test"}, Paths: []string{"/v1/**", "/health"}, Methods: []string{"GET"}, Filters: []sandbox.Filter{filter}},
				{Action: sandbox.Allow, Hosts: []string{"*.a.test"}, Limits: &sandbox.RuleLimits{PerMinute: 60}},
			}},
			[]sandbox.EgressRequest{
				{Rule: "no admin", Action: sandbox.Deny, Host: "admin.a.test", Methods: []string{"POST"}},
				{Rule: "api", Action: sandbox.Allow, Host: "api.a.test", Path: "/v1/*", Methods: []string{"GET"}, Filter: &filter},
				{Rule: "api", Action: sandbox.Allow, Host: "api.a.test", Path: "/health", Methods: []string{"GET"}, Filter: &filter},
				{Rule: "rule 3", Action: sandbox.Allow, Host: "*.a.test", PerMinute: 60},
			},
			"",
		},
		"switched off": {sandbox.Profile{Internet: &off, Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"a.test"}}}}, nil, ""},
		"addresses":    {one(sandbox.Rule{Hosts: []string{"192.0.2.0/24"}}), nil, "it"},
		"every name":   {one(sandbox.Rule{Hosts: []string{"*"}}), nil, "it"},
		"ports":        {one(sandbox.Rule{Hosts: []string{"a.test:8443"}}), nil, "it"},
		"pattern":      {one(sandbox.Rule{Hosts: []string{"a.test"}, Paths: []string{"/*/x"}}), nil, "it"},
		"credential":   {one(sandbox.Rule{Hosts: []string{"a.test"}, Inject: []sandbox.Injection{{Secret: "s", Mode: sandbox.InjectBearer}}}), nil, "it"},
		"passthrough":  {one(sandbox.Rule{Hosts: []string{"a.test"}, TLS: sandbox.Passthrough}), nil, "it"},
		"two filters":  {one(sandbox.Rule{Hosts: []string{"a.test"}, Filters: []sandbox.Filter{filter, filter}}), nil, "it"},
		"types":        {one(sandbox.Rule{Hosts: []string{"a.test"}, Filters: []sandbox.Filter{{Type: sandbox.FilterContentType, Types: []string{"text/*"}}}}), nil, "it"},
		"bytes":        {one(sandbox.Rule{Hosts: []string{"a.test"}, Limits: &sandbox.RuleLimits{RequestBytes: 5}}), nil, "it"},
		"burst":        {one(sandbox.Rule{Hosts: []string{"a.test"}, Limits: &sandbox.RuleLimits{PerMinute: 5, Burst: 5}}), nil, "it"},
		"counted":      {one(sandbox.Rule{Hosts: []string{"a.test", "b.test"}, Limits: &sandbox.RuleLimits{PerMinute: 5}}), nil, "it"},
		"denied path":  {sandbox.Profile{Rules: []sandbox.Rule{{Name: "it", Action: sandbox.Deny, Hosts: []string{"a.test"}, Paths: []string{"/x"}}}}, nil, "it"},
		"default":      {sandbox.Profile{Default: sandbox.Allow}, nil, "default"},
	} {
		t.Run(name, func(t *testing.T) {
			rules, lost, err := compile(t, tt.profile, Options{}).Translate(seesRequests, Refuse)
			if tt.lost != "" {
				if sandbox.CodeOf(err) != sandbox.CodeUnsupported || len(lost) != 1 || lost[0].Rule != tt.lost || !strings.Contains(err.Error(), tt.lost) {
					t.Errorf("%+v, %v; want %s refused", lost, err, tt.lost)
				}
				return
			}
			if err != nil || len(lost) > 0 || rules.Open || !reflect.DeepEqual(rules.Requests, tt.want) {
				t.Errorf("%+v, %v, %v; want %+v", rules, lost, err, tt.want)
			}
		})
	}
}

// one is a profile of a rule that allows, called "it".
func one(r sandbox.Rule) sandbox.Profile {
	r.Name, r.Action = "it", sandbox.Allow
	return sandbox.Profile{Rules: []sandbox.Rule{r}}
}

// decides is what a provider that sees requests does with rules.
func decides(rules sandbox.EgressRules, f Flow, method, path string) bool {
	if rules.Open {
		return true
	}
	if f.Name == "" || f.Port != 80 && f.Port != 443 {
		return false
	}
	host := func(pattern string) bool {
		suffix, wild := strings.CutPrefix(pattern, "*")
		return f.Name == pattern || wild && strings.HasSuffix(f.Name, suffix)
	}
	for _, r := range rules.Requests {
		above, below := strings.CutSuffix(r.Path, "*")
		if !host(r.Host) || r.Methods != nil && !slices.Contains(r.Methods, method) ||
			r.Path != "" && path != r.Path && (!below || !strings.HasPrefix(path, above)) {
			continue
		}
		return r.Action == sandbox.Allow
	}
	return slices.ContainsFunc(rules.Allow, func(t sandbox.EgressTarget) bool { return host(t.Host) })
}

// For any profile and limits: unless rules are let pass, no request is
// allowed that the profile denies.
func TestTranslateRequestsNeverWidens(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 8))
	passed, refused, exact := 0, 0, 0
	for range 4000 {
		random := func() sandbox.Profile {
			p := sandbox.Profile{Rules: randomRules(r), Default: pick(r, []sandbox.Action{sandbox.Deny, sandbox.Deny, sandbox.Allow})}
			for i := range p.Rules {
				p.Rules[i].Hosts = []string{pick(r, append([]string{"a.example", "*.a.example", "b.example", "*.example"}, someHosts...))}
				if r.IntN(2) == 0 {
					p.Rules[i].Paths = []string{pick(r, []string{"/a", "/a/**", "/**"})}
				}
			}
			return p
		}
		var limits []EgressLimit
		if r.IntN(4) == 0 {
			limits = append(limits, EgressLimit{"c", random()})
		}
		p := compile(t, random(), Options{EgressLimits: limits})
		rules, lost, err := p.Translate(seesRequests, pick(r, []Unenforceable{Refuse, Narrow}))
		if err != nil {
			refused++
			continue
		}
		if len(lost) == 0 {
			exact++
		}
		for range 40 {
			f := flow(pick(r, someNames), somewhere, pick(r, somePorts))
			method, path := pick(r, []string{"GET", "POST", "PUT"}), pick(r, somePaths)
			if !decides(rules, f, method, path) {
				continue
			}
			passed++
			if d := p.Request(f, Request{Method: method, TLS: f.Port == 443, Host: f.Name, Path: path}); !d.Allow {
				t.Fatalf("%s %s of %+v passes by %+v, and is denied: %+v", method, path, f, rules, d)
			}
		}
	}
	if passed < 1000 || refused < 500 || exact < 200 {
		t.Errorf("%d requests passed, %d profiles refused, %d translated exactly", passed, refused, exact)
	}
}
