//go:build sdk

package microsandbox_test

import (
	"testing"

	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol. The package has the program msb, too,
// which uses the fake as its cloud.
func TestSDK(t *testing.T) {
	w := serve(t)
	hostedtest.SDK(t, append(environment(w.url), "MSB_BACKEND=cloud", "MSB_HOME="+t.TempDir())...)
	w.Empty(t)
}
