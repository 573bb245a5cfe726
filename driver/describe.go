package driver

import (
	"reflect"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Describe fills in what the facts say about a provider.
func (f Facts) Describe(p *sandbox.Provider) {
	p.Version, p.Available, p.Isolates, p.SharesFiles = f.Version, f.Available, f.Isolates, f.SharesFiles
	p.Capabilities = f.Capabilities.Map()
	for name, l := range f.Limits {
		if p.Limits == nil {
			p.Limits = map[string]sandbox.Enforcement{}
		}
		p.Limits[name] = sandbox.Enforcement{Enforced: l.Holds, Why: l.Why}
	}
	for _, found := range f.Findings {
		if !f.Available && found.Severity == Blocker && p.Problem == "" {
			p.Problem = found.Message
		}
	}
}

// Map returns the capabilities by their names in JSON.
func (c Capabilities) Map() map[string]bool {
	out := map[string]bool{}
	for v, i := reflect.ValueOf(c), 0; i < v.NumField(); i++ {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		out[name] = v.Field(i).Bool()
	}
	return out
}
