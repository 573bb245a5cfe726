package hosted

import (
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// TemplateScheme begins an image that is a template of a service.
const TemplateScheme = "template:"

// Template returns the template that an image names, or the usual one.
func Template(image, usual string) (template string, ok bool) {
	if image == "" || image == "host" {
		return usual, true
	}
	name, ok := strings.CutPrefix(image, TemplateScheme)
	return name, ok && name != ""
}

// CheckTemplate refuses an image that names no template.
func (c *Core) CheckTemplate(image string) error {
	if _, ok := Template(image, ""); ok {
		return nil
	}
	return c.Unsupported(image, "this provider makes sandboxes from the service's templates, not from images", "leave the image out, or use "+TemplateScheme+"NAME")
}

// CheckFetched refuses an image in files of this machine, for services that fetch
// images themselves.
func (c *Core) CheckFetched(image string) error {
	for _, scheme := range []string{"dir:", "tar:", "oci:"} {
		if strings.HasPrefix(image, scheme) {
			return c.Unsupported(image, "the service cannot read images of this machine", "use an image from a registry")
		}
	}
	return nil
}

// Unsupported returns the error for a part of a spec that the service does not
// support.
func (c *Core) Unsupported(subject, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: c.Name + ".create", Subject: subject, Message: message, Hint: hint}
}

// Check refuses what no service supports.
func (c *Core) Check(spec *sandbox.Spec) error {
	switch {
	case len(spec.Mounts) > 0:
		return c.Unsupported("mounts", "directories of this machine are not where the sandbox is", "")
	case spec.Network.Asked() && spec.Network.Plain == nil:
		return c.Unsupported("network", "the rules were not translated into what the service enforces", "leave the network out: the sandbox has none")
	}
	return nil
}

// Seconds rounds a duration up to whole seconds, at least one.
func Seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }
