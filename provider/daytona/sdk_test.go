//go:build sdk

package daytona_test

import (
	"testing"

	service "github.com/atoll-run/atoll/internal/servicetest/daytona"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol.
func TestSDK(t *testing.T) {
	w := serve(t)
	hostedtest.SDK(t, "DAYTONA_API_KEY="+service.Key, "DAYTONA_API_URL="+w.url)
	w.Empty(t)
}
