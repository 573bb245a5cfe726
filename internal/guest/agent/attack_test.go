package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// TestAttackDeepNames sends an archive with names so deep that creating their
// directories would keep the guest busy for a long time.
func TestAttackDeepNames(t *testing.T) {
	for name, tt := range map[string]struct {
		name string
		ok   bool
	}{
		"deep":           {strings.Repeat("x/", 800), false},
		"one too many":   {strings.Repeat("x/", maxDepth+1), false},
		"as deep as may": {strings.Repeat("x/", maxDepth), true},
		"only looks it":  {strings.Repeat("./", 800) + "x", true},
	} {
		rel, err := memberName(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		err = checkDepth(rel)
		var e *wire.RemoteError
		if (err == nil) != tt.ok || err != nil && (!errors.As(err, &e) || e.Code != sandbox.CodeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
