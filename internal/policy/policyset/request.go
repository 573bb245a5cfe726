package policyset

import (
	"cmp"

	"github.com/atoll-run/atoll/sandbox"
)

// Of returns the policy request for a sandbox. images are the names of its
// image, and rules are its network rules.
func Of(tenant string, spec *sandbox.Spec, images []string, rules []sandbox.Rule) Request {
	r := Request{
		About:     About{Tenant: tenant, Labels: spec.Labels},
		Resources: spec.Resources, Lifetime: spec.Lifetime.Timeout, Isolation: spec.Isolation, Images: images, Mounts: spec.Mounts, Network: spec.Network.Asked(),
	}
	for _, ref := range spec.Secrets {
		r.Secrets = append(r.Secrets, Grant{ref.Name, ModeOf(ref)})
	}
	return r.add(rules)
}

// ModeOf returns how a sandbox gets a secret.
func ModeOf(ref sandbox.SecretRef) sandbox.SecretMode {
	if ref.Mode == "" {
		return sandbox.SecretGateway
	}
	return ref.Mode
}

// add adds the secrets that rules inject.
func (r Request) add(rules []sandbox.Rule) Request {
	for _, rule := range rules {
		for _, i := range rule.Inject {
			for _, name := range i.Secrets() {
				r.Secrets = append(r.Secrets, Grant{Name: name})
			}
		}
	}
	return r
}

// Complete sets the limits that a request leaves open, from the caps and the
// defaults.
func (r *Request) Complete(c Caps, defaults sandbox.Resources) {
	c.Fill(&r.Resources, defaults)
	fill(&r.Lifetime, c.Lifetime, 0)
	r.Isolation = cmp.Or(r.Isolation, c.Isolation)
	for v, otherwise := range map[*int64]int64{&r.Resources.Memory: defaults.Memory, &r.Resources.Disk: defaults.Disk, &r.Resources.PIDs: defaults.PIDs} {
		if *v == 0 {
			*v = otherwise
		}
	}
}
