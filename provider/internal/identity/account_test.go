package identity_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/identity"
)

func TestAccount(t *testing.T) {
	at := func(address, key string) string {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return identity.Account(u, key)
	}
	const key = "key_1111111111111111"
	one := at("https://api.example.com/v1", key)
	if one != at("https://api.example.com/v1/", key) {
		t.Error("a trailing slash changes the account")
	}
	if !strings.HasPrefix(one, "https://api.example.com/v1#") || strings.Contains(one, key) {
		t.Errorf("the account is %q, want the address and a fingerprint", one)
	}
	for name, other := range map[string]string{
		"another key":     at("https://api.example.com/v1", key+"2"),
		"another address": at("https://api.example.com/v2", key),
		"another service": at("https://api.example.org/v1", key),
	} {
		if other == one {
			t.Errorf("%s is the same account %q", name, one)
		}
	}
	scopes := map[string]bool{}
	u := &url.URL{Scheme: "https", Host: "api.example.com"}
	for _, scope := range []string{"a", "b"} {
		scopes[identity.Local(u, scope, key)] = true
	}
	if len(scopes) != 2 {
		t.Error("a local account is the same in another directory")
	}
}
