package e2bapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/routes"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// iam lists identity tokens of a sandbox, which transforms add to requests.
type iam struct {
	Tokens map[string]struct {
		Audience  string `json:"audience"`
		TokenType string `json:"tokenType"`
	} `json:"tokens"`
}

// labelToken is the prefix of a label with the audience of a token. The rest of
// the label is the token's name.
const labelToken = labelPrefix + "token."

// E2B's limits of tokens, and its only type.
const (
	maxTokens = 5
	tokenType = "JWT-SVID"
)

// label adds labels for the tokens.
func (i *iam) label(labels map[string]string) error {
	if i == nil {
		return nil
	}
	if len(i.Tokens) > maxTokens {
		return invalid("iam.tokens", "%d tokens, at most %d", len(i.Tokens), maxTokens)
	}
	control := func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }
	for name, t := range i.Tokens {
		switch {
		case name == "" || len(labelToken+name) > bounds.MaxLabelLen || strings.ContainsAny(name, "{}") || strings.ContainsFunc(name, control):
			return invalid("iam.tokens", "%.80q cannot be the name of a token", name)
		case t.TokenType != tokenType:
			return invalid("iam.tokens."+name, "%.80q is not a type of tokens; %s is", t.TokenType, tokenType)
		case t.Audience == "" || len(t.Audience) > bounds.MaxLabelLen || strings.ContainsFunc(t.Audience, control):
			return invalid("iam.tokens."+name, "the audience is empty, or has more than %d bytes, or a control character", bounds.MaxLabelLen)
		}
		labels[labelToken+name] = t.Audience
	}
	return nil
}

// audiences returns the audiences of a sandbox's tokens, by token name.
func audiences(labels map[string]string) map[string]string {
	all := map[string]string{}
	for k, v := range labels {
		if name, ok := strings.CutPrefix(k, labelToken); ok {
			all[name] = v
		}
	}
	return all
}

// tokenFor returns the name of the first token for an audience.
func tokenFor(labels map[string]string, audience string) (found string) {
	for name, a := range audiences(labels) {
		if a == audience && (found == "" || name < found) {
			found = name
		}
	}
	return found
}

// identityRoutes publishes the keys that verify tokens. They need no credential.
func (h *Handler) identityRoutes(mux *routes.Mux, issuer Identity) {
	if issuer == nil {
		return
	}
	published := issuer.Published()
	for _, path := range slices.Sorted(maps.Keys(published)) {
		read := published[path]
		mux.Handle(ops.Route{Name: "GET " + path, Open: true}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := read()
			if err != nil {
				h.fail(w, r, err)
				return
			}
			writeJSON(w, http.StatusOK, body)
		}))
	}
}
