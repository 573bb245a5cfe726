package hostedtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// SDK runs testdata/sdk.py with the packages pinned in testdata/sdk.txt and
// additional environment variables. Its last line must confirm that it is
// complete. The test is skipped if the packages cannot be installed.
func SDK(t *testing.T, env ...string) {
	t.Helper()
	python, err := servicetest.Python(t.Context(), "testdata/sdk.txt")
	if errors.Is(err, servicetest.ErrUnavailable) {
		need.Thing(t, "a package index", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/sdk.py")
	cmd.Env = append(append(os.Environ(), "NO_PROXY=127.0.0.1"), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all of it was done\n") {
		t.Errorf("the SDK's program: %v\n%s", err, out)
	}
}
