//go:build sdk

package islo_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/islo"
)

// TestSDK has the service's official SDK for Python use the fake, so that the
// fake is not only our reading of the protocol.
func TestSDK(t *testing.T) {
	python, err := servicetest.Python(t.Context(), "testdata/sdk.txt")
	if errors.Is(err, servicetest.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/sdk.py")
	cmd.Env = append(os.Environ(), "ISLO_API_KEY="+service.Key, "ISLO_BASE_URL="+w.url, "ISLO_COMPUTE_URL="+w.url, "NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all of it was done\n") {
		t.Errorf("the SDK's program: %v\n%s", err, out)
	}
	w.empty(t)
}
