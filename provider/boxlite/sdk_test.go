//go:build sdk

package boxlite_test

import (
	"testing"
	"time"

	service "github.com/atoll-run/atoll/internal/servicetest/boxlite"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol.
func TestSDK(t *testing.T) {
	w := serve(t)
	w.Transitions(50 * time.Millisecond)
	hostedtest.SDK(t, "BOXLITE_API_KEY="+service.Key, "BOXLITE_REST_URL="+w.url, "BOXLITE_HOME="+t.TempDir())
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}
