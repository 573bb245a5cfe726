package sessions

import (
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// installation names the daemons that share a store. Their sandboxes belong to
// the installation.
type installation string

// binding names the owner of a sandbox: the installation with a record of it,
// and the provider's binding.
func (i installation) binding(provider string) string {
	if provider == "" {
		return string(i)
	}
	return string(i) + "/" + provider
}

// has refuses sandboxes of another installation or account, because not finding
// them does not show that they are gone.
func (i installation) has(what, binding string) error {
	if binding == string(i) || strings.HasPrefix(binding, string(i)+"/") {
		return nil
	}
	message := "it belongs to " + binding + ", which this daemon cannot reach"
	if binding == "" {
		message = "nothing says to which installation it belongs"
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: what, Message: message,
		Hint: "resume the session where it was",
	}
}

// elsewhere returns the provider binding of another installation's sandbox. A
// provider of this installation may have the same one.
func (i installation) elsewhere(binding string) (provider string, other bool) {
	installation, provider, _ := strings.Cut(binding, "/")
	return provider, provider != "" && installation != string(i)
}
