//go:build sdk

package superserve_test

import (
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol. The SDK's data host is hard-coded: the
// fake answers in its place, behind a proxy.
func TestSDK(t *testing.T) {
	w := serve(t)
	w.Transitions(100 * time.Millisecond)
	proxy, err := servicetest.Intercept(t.TempDir(), w.Server, service.Host, "*."+service.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	hostedtest.SDK(t, "SUPERSERVE_API_KEY="+service.Key, "SUPERSERVE_BASE_URL="+w.url, "HTTPS_PROXY="+proxy.URL, "SSL_CERT_FILE="+proxy.CA)
	w.Empty(t)
}
