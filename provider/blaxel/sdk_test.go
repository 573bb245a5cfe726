//go:build sdk

package blaxel_test

import (
	"testing"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/blaxel"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol. The SDK's host is hard-coded: the fake
// answers in its place, behind a proxy.
func TestSDK(t *testing.T) {
	w := suite.Serve(t)
	proxy, err := servicetest.Intercept(t.TempDir(), w.Fake, service.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	w.SDK(t, "HTTPS_PROXY="+proxy.URL, "SSL_CERT_FILE="+proxy.CA, "DO_NOT_TRACK=1")
}
