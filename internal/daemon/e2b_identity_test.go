package daemon_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/idtoken"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const wantsToken = `{"templateID":"base","iam":{"tokens":{"aws":{"audience":"sts.example.com","tokenType":"JWT-SVID"}}}}`

// TestAttackE2BIdentity: the key that verifies tokens is public. Tokens and the
// signing key are not.
func TestAttackE2BIdentity(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen, o.E2B.Domain = "127.0.0.1:0", "box.test" })
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	c := e2bByName{t, byNameClient(t, m, d, true), envd.Key(k.Token)}
	resp := c.do("GET", "api", idtoken.DiscoveryPath, "")
	told := decoded(t, resp.Body)
	issuer, _ := told["issuer"].(string)
	if !strings.HasPrefix(issuer, "https://api.box.test:") || told["jwks_uri"] != issuer+idtoken.KeysPath {
		t.Errorf("%d %v", resp.StatusCode, told)
	}
	keys := decoded(t, c.do("GET", "api", idtoken.KeysPath, "").Body)["keys"].([]any)
	if len(keys) != 1 || keys[0].(map[string]any)["d"] != nil {
		t.Errorf("published: %v", keys)
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		resp := c.do(method, "api", idtoken.KeysPath, "{}")
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("%s of the keys: %d", method, resp.StatusCode)
		}
	}

	made := c.do("POST", "api", "/v2/sandboxes", wantsToken, "X-API-Key", c.key)
	text := decoded(t, made.Body)
	id := text["sandboxID"].(string)
	shown := decoded(t, c.do("GET", "api", "/sandboxes/"+id, "", "X-API-Key", c.key).Body)
	for _, fields := range []map[string]any{text, shown} {
		for name, v := range fields {
			if s, _ := v.(string); strings.HasPrefix(s, "eyJ") {
				t.Errorf("%s shows a token", name)
			}
		}
	}
	for _, bad := range []string{
		`{"templateID":"base","iam":{"tokens":{"aws":{"audience":"a","tokenType":"X509-SVID"}}}}`,
		`{"templateID":"base","metadata":{"e2b.token.x":"a"}}`,
		`{"templateID":"base","network":{"allowOut":["a.test"],"rules":{"a.test":[{"transform":{"headers":{"A":"${e2b.identity.tokens.aws}"}}}]}}}`,
	} {
		resp := c.do("POST", "api", "/v2/sandboxes", bad, "X-API-Key", c.key)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, resp.StatusCode)
		}
	}
	gone := c.do("DELETE", "api", "/sandboxes/"+id, "", "X-API-Key", c.key)
	gone.Body.Close()
}

// Without a domain to publish the keys there are no tokens.
func TestE2BIdentityWantsADomain(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	a := c.want(501, c.call("POST", "/v2/sandboxes", wantsToken, "X-API-Key", mine))
	if a.fields["error_code"] != "atoll_unsupported" {
		t.Errorf("%s", a.body)
	}
	c.want(501, c.call("GET", idtoken.DiscoveryPath, ""))
}
