package gvisor_test

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// Wait on a sandbox that another process created returns when this process
// removes the sandbox.
func TestReattachedAndRemoved(t *testing.T) {
	state := t.TempDir()
	made := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	found := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	for _, id := range []sandbox.ID{"first", "second", "third"} {
		create(t, made, sandbox.Spec{ID: id, Image: "host"})
		in, err := found.Attach(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ended := make(chan error, 1)
		var exit sandbox.Exit
		go func() {
			var err error
			exit, err = in.Wait(ctx)
			ended <- err
		}()
		if err := in.Destroy(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil || exit.Reason != sandbox.ReasonKilled {
			t.Errorf("%s ended with %+v, %v", id, exit, err)
		}
		cancel()
	}
}
