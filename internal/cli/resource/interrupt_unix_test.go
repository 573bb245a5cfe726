//go:build unix

package resource

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// A command that Ctrl-C ended has the exit code that shells expect, whatever it
// makes of the canceled context. One that ended in order, or by a fault of its
// own, has its own.
func TestInterrupted(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	disk := errors.New("the disk is gone")
	for _, c := range []struct {
		signal bool
		fails  error
		want   bool
	}{
		{true, context.Canceled, true},
		{true, &sandbox.Error{Code: sandbox.CodeCanceled, Message: "canceled"}, true},
		{true, nil, false},
		{true, disk, false},
		{false, context.Canceled, false},
	} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		err := Interruptible(func(ctx context.Context, _ []string) error {
			if c.signal {
				if err := self.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
				<-ctx.Done()
			}
			return c.fails
		})(cmd, nil)
		var i *term.Interrupted
		if errors.As(err, &i) != c.want || !errors.Is(err, c.fails) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
