//go:build sdk

package runloop_test

import (
	"testing"
)

// TestSDK uses the fake with the official SDK for Python, so that the fake is
// more than our reading of the protocol.
func TestSDK(t *testing.T) {
	suite.Serve(t).SDK(t)
}
