package image

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// A pinned image is not removed: not on request, not to free space, and not
// when its name moves.
func TestProtect(t *testing.T) {
	reg, s, ctx := newRegistry(t), open(t, Options{}), context.Background()
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "1")))
	old := mustGet(t, s, ref, linux)
	var pins []Pin
	var broken error
	s.Protect(func(context.Context) ([]Pin, error) { return pins, broken })
	pins = []Pin{{"host", "the sandbox other"}, {"nothing:1", "the sandbox strange"}, {old.Digest, "the sandbox one, which is stopped"}}
	err := s.Remove(ctx, ref)
	wantCode(t, err, sandbox.CodeConflict)
	if !strings.Contains(err.Error(), "needed by the sandbox one, which is stopped") {
		t.Error(err)
	}
	if report, err := s.Prune(ctx, PruneOptions{All: true}); err != nil || len(report.Images) != 0 {
		t.Errorf("%+v %v", report, err)
	}
	reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "f", "2")))
	fresh := mustGet(t, s, ref, GetOptions{Platform: "linux/amd64", Policy: PolicyAlways})
	if fresh.Digest == old.Digest {
		t.Fatal("nothing moved")
	}
	if _, err := s.Inspect(ctx, old.Digest); err != nil {
		t.Errorf("the old one went with its name: %v", err)
	}
	broken = errors.New("the store is away")
	for _, err := range []error{s.Remove(ctx, ref), func() error { _, err := s.Prune(ctx, PruneOptions{All: true}); return err }()} {
		if err == nil {
			t.Error("removed without knowing who needs it")
		}
	}
	pins, broken = nil, nil
	if report, err := s.Prune(ctx, PruneOptions{}); err != nil || len(report.Images) != 1 || report.Images[0] != old.Digest {
		t.Errorf("%+v %v", report, err)
	}
	if err := s.Remove(ctx, ref); err != nil {
		t.Error(err)
	}
}
