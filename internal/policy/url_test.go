package policy

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// People paste URLs where hosts belong. The error says so, rather than
// something about a port.
func TestURLsAreNoHosts(t *testing.T) {
	for _, host := range []string{"https://example.com", "https://example.com/", "http://example.com:8080/x", "https://[::1]/"} {
		_, err := Compile(sandbox.Profile{Name: "p", Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{host}}}}, Options{})
		if err == nil || !strings.Contains(err.Error(), "it is a URL: write the host alone") {
			t.Errorf("%s: %v", host, err)
		}
	}
}
