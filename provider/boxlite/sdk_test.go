//go:build sdk

package boxlite_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/boxlite"
)

// TestSDK has the official SDK for Python use the fake, so that the fake is not
// only our reading of the protocol.
func TestSDK(t *testing.T) {
	python, err := servicetest.Python(t.Context(), "testdata/sdk.txt")
	if errors.Is(err, servicetest.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := serve(t)
	w.Transitions(50 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/sdk.py")
	cmd.Env = append(os.Environ(), "BOXLITE_API_KEY="+service.Key, "BOXLITE_REST_URL="+w.url, "BOXLITE_HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all of it was done\n") {
		t.Errorf("the SDK's program: %v\n%s", err, out)
	}
	if n := len(w.IDs()); n > 0 {
		t.Errorf("%d boxes are left", n)
	}
}
