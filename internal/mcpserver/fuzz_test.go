package mcpserver

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// FuzzResourceAddress: the URI of a resource has at most three parts, none of
// which can bypass the validation of names. Other URIs are refused.
func FuzzResourceAddress(f *testing.F) {
	for _, s := range []string{uriRoot, uriRoot + "/", uriRoot + "/box/files/etc%2fpasswd", uriRoot + "/%2e%2e/x", "file:///etc/passwd", uriRoot + "/a/b/c/../d", uriRoot + "/%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		parts, err := uriParts(uri)
		if err != nil {
			return
		}
		if len(parts) > 3 || !strings.HasPrefix(uri, uriRoot) {
			t.Errorf("%q is %q", uri, parts)
		}
		if len(parts) > 0 && sandbox.ValidateName(parts[0]) == nil && strings.ContainsAny(parts[0], "/%?#") {
			t.Errorf("%q names the sandbox %q", uri, parts[0])
		}
	})
}
