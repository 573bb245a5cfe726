package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Binding implements driver.Binder. The API tells a key nothing about its
// account, so the account is known by a keyed hash of the key.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	scope, err := p.boxes.Scope()
	if err != nil {
		return "", err
	}
	return p.api.binding(scope), nil
}

func (a *api) binding(scope string) string {
	address := strings.TrimSuffix(a.base.String(), "/")
	mac := hmac.New(sha256.New, []byte(scope))
	mac.Write([]byte(address + "\n" + a.key))
	return address + "#" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// absent is why the service does not list a sandbox. That is no evidence when
// the sandbox was made with another key or at another address.
func (p *Provider) absent(id sandbox.ID, scope string) error {
	r, ok := p.boxes.Get(string(id))
	if !ok || r.Binding == "" || r.Binding == p.api.binding(scope) {
		return guestkit.Gone(id)
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Subject: string(id), Message: "the sandbox was made with another API key or at another address (" + r.Binding + ")",
		Hint: "use the E2B_API_KEY and the E2B_API_URL or E2B_DOMAIN that it was made with",
	}
}
