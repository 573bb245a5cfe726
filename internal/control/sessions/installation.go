package sessions

import (
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// installation names the daemons that share a store: what they made belongs to it.
type installation string

// binding names what a sandbox belongs to: the installation that has a record of
// it, and what its provider works on.
func (i installation) binding(provider string) string {
	if provider == "" {
		return string(i)
	}
	return string(i) + "/" + provider
}

// has refuses what belongs to another installation or account: that it is not
// found says nothing about it.
func (i installation) has(what, binding string) error {
	if binding == string(i) || strings.HasPrefix(binding, string(i)+"/") {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "session.resume", Subject: what, Message: "it belongs to " + binding + ", which this daemon cannot reach",
		Hint: "resume the session where it was",
	}
}

// elsewhere returns what the provider of another installation's sandbox works on,
// which a provider of this one may work on too.
func (i installation) elsewhere(binding string) (provider string, other bool) {
	installation, provider, _ := strings.Cut(binding, "/")
	return provider, provider != "" && installation != string(i)
}
