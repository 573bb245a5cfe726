//go:build sdk

package boxlite_test

import (
	"testing"
	"time"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol.
func TestSDK(t *testing.T) {
	w := suite.Serve(t)
	w.Fake.Transitions(50 * time.Millisecond)
	w.SDK(t, "BOXLITE_HOME="+t.TempDir())
}
