//go:build sdk

package islo_test

import (
	"testing"

	service "github.com/atoll-run/atoll/internal/testing/servicetest/islo"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol.
func TestSDK(t *testing.T) {
	w := serve(t)
	hostedtest.SDK(t, "ISLO_API_KEY="+service.Key, "ISLO_BASE_URL="+w.url, "ISLO_COMPUTE_URL="+w.url)
	w.Empty(t)
}
