package egress

import (
	"net/netip"
	"sync"

	"golang.org/x/time/rate"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/secret/inject"
	"github.com/atoll-run/atoll/sandbox"
)

// activePolicy is a policy in force, with the use of its limits.
type activePolicy struct {
	*policy.Policy
	secrets  map[string]stored
	swapper  *inject.Swapper
	scrubber *secret.Scrubber // nil: the policy uses no secrets
	usage    sync.Map         // rule number → *usage

	proxyPassword secret.Value // for the profile's proxy
}

// stored is a secret value.
type stored struct {
	value   secret.Value
	version int
}

// usage counts the use of one rule by one sandbox.
type usage struct {
	limits sandbox.RuleLimits
	rate   *rate.Limiter // nil: no limit

	mu   sync.Mutex
	open int
}

func newActivePolicy(p messages.Policy, operator policy.Operator) (*activePolicy, error) {
	opts := policy.Options{Operator: operator, Secrets: map[string][]string{}}
	r := &activePolicy{secrets: map[string]stored{}, proxyPassword: secret.NewValue(p.ProxyPassword)}
	var values []secret.Value
	for _, s := range p.Secrets {
		v := secret.NewValue(s.Value)
		values = append(values, v)
		r.secrets[s.Name] = stored{v, s.Version}
		opts.Secrets[s.Name] = s.Hosts
		if s.Placeholder != "" {
			opts.Swaps = append(opts.Swaps, policy.Swap{Secret: s.Name, Placeholder: s.Placeholder, Hosts: s.SwapHosts, In: s.In})
		}
	}
	for _, c := range p.EgressLimits {
		opts.EgressLimits = append(opts.EgressLimits, policy.EgressLimit(c))
	}
	var err error
	if r.Policy, err = policy.Compile(p.Profile, opts); err != nil {
		return nil, err
	}
	r.swapper = inject.NewSwapper(r.Placeholders())
	if len(values) > 0 {
		r.scrubber = secret.NewScrubber(values...)
	}
	return r, nil
}

// verdict is a decision about a connection.
type verdict struct{ policy.Decision }

func (v verdict) allowed() bool  { return v.Allow }
func (v verdict) reason() string { return v.Message() }

// decide decides about a connection. Its address may be unknown.
func (r *activePolicy) decide(t target, a netip.Addr) verdict {
	f := t.flow()
	if a.IsValid() {
		f.Addr = a
	}
	return verdict{r.Connect(f)}
}

// used returns the usage of the rule that decided. A new policy starts with new
// counters.
func (r *activePolicy) used(d policy.Decision) *usage {
	if d.Number == 0 || d.Limits == (sandbox.RuleLimits{}) {
		return nil
	}
	if u, ok := r.usage.Load(d.Number); ok {
		return u.(*usage)
	}
	u := &usage{limits: d.Limits}
	if l := d.Limits; l.PerMinute > 0 {
		u.rate = rate.NewLimiter(rate.Limit(float64(l.PerMinute)/60), max(1, l.Burst))
	}
	actual, _ := r.usage.LoadOrStore(d.Number, u)
	return actual.(*usage)
}

// take counts a connection or request, and reports whether it is within the
// rate limit. A nil usage has no limits.
func (u *usage) take() bool { return u == nil || u.rate == nil || u.rate.Allow() }

// enter counts an open connection; leave ends it.
func (u *usage) enter() bool {
	if u == nil || u.limits.Connections == 0 {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open >= u.limits.Connections {
		return false
	}
	u.open++
	return true
}

func (u *usage) leave() {
	if u == nil || u.limits.Connections == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open--
}
