//go:build sdk

package superserve_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/superserve"
)

// TestSDK has the service's official SDK for Python use the fake, so that the
// fake is not only our reading of the protocol. The SDK's data host is
// hard-coded: the fake answers in its place, behind a proxy.
func TestSDK(t *testing.T) {
	python, err := servicetest.Python(t.Context(), "testdata/sdk.txt")
	if errors.Is(err, servicetest.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := serve(t)
	w.Transitions(100 * time.Millisecond)
	proxy, err := servicetest.Intercept(t.TempDir(), w.Server, service.Host, "*."+service.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/sdk.py")
	cmd.Env = append(os.Environ(), "SUPERSERVE_API_KEY="+service.Key, "SUPERSERVE_BASE_URL="+w.url, "HTTPS_PROXY="+proxy.URL, "SSL_CERT_FILE="+proxy.CA, "NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all of it was done\n") {
		t.Errorf("the SDK's program: %v\n%s", err, out)
	}
	if n := len(w.IDs()) + w.Snapshots(); n > 0 {
		t.Errorf("%d sandboxes and snapshots are left", n)
	}
}
