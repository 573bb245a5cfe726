//go:build sdk

package microsandbox_test

import (
	"testing"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol. The package has the program msb, too,
// which uses the fake as its cloud.
func TestSDK(t *testing.T) {
	suite.Serve(t).SDK(t, "MSB_BACKEND=cloud", "MSB_HOME="+t.TempDir())
}
