package request

import (
	"strings"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// secretRef reads the value of --secret: NAME and then env=, host=, in= and
// mode=, each behind a comma.
func secretRef(text string) (r sandbox.SecretRef, err error) {
	name, rest, more := strings.Cut(text, ",")
	r.Name = name
	for more {
		var field string
		field, rest, more = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(field, "=")
		switch {
		case ok && key == "env":
			r.Env = value
		case ok && key == "host":
			r.Hosts = append(r.Hosts, value)
		case ok && key == "in":
			r.In = append(r.In, value)
		case ok && key == "mode":
			r.Mode = sandbox.SecretMode(value)
		default:
			return r, term.BadFlag("secret", "%q is not one of env=, host=, in= and mode=", field)
		}
	}
	return r, sandbox.ValidateSecretName(r.Name)
}
