package driver

import (
	"reflect"
	"strings"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Describe fills in what the facts say about a provider. See also [Describe].
func (f Facts) Describe(p *catalog.Provider) {
	p.Version, p.Available, p.Isolates, p.SharesFiles = f.Version, f.Available, f.Isolates, f.SharesFiles
	p.Descriptor.Isolation = f.Isolation
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

// anyImage is a reference that every provider accepts that fetches images.
const anyImage = "docker.io/library/alpine:3"

// Describe returns the catalog.Provider for a provider and its facts.
func Describe(from Provider, f Facts, p *catalog.Provider) {
	f.Describe(p)
	p.Descriptor.Permanent = IsPermanent(from)
	if user, ok := As[GatewayUser](from); ok && user.CanUseGateway() {
		p.Descriptor.Egress = enforce.Full
	}
	p.Images = CheckImage(from, f, anyImage) == nil
}

// CheckImage returns CodeUnsupported if the provider cannot make sandboxes from
// the image. It makes no network call.
func CheckImage(p Provider, f Facts, image string) error {
	if own, ok := As[ImageChecker](p); ok {
		return own.CheckImage(image)
	}
	if image == "" || image == "host" || f.Capabilities.Images {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: image, Message: "the provider " + f.Provider + " runs no images",
		Hint: "leave the image out, or choose another provider; see: atoll provider ls",
	}
}

// Map returns the capabilities by their JSON names.
func (c Capabilities) Map() map[string]bool {
	out := map[string]bool{}
	for v, i := reflect.ValueOf(c), 0; i < v.NumField(); i++ {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		out[name] = v.Field(i).Bool()
	}
	return out
}
