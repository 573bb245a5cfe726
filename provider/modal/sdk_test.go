//go:build sdk

package modal_test

import (
	"testing"

	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol.
func TestSDK(t *testing.T) {
	w := serve(t)
	hostedtest.SDK(t, environment(w.URL)...)
	w.Empty(t)
}
