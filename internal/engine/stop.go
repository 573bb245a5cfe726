package engine

import (
	"context"
	"time"
)

const (
	sigTerm = 15
	// calmPoll is the interval at which Calm checks whether commands have ended.
	calmPoll = 25 * time.Millisecond
)

// Calm sends SIGTERM to the commands of the sandbox and waits until they have
// ended, or until grace or ctx is over. It ignores a sandbox that does not
// respond.
func (s *Sandbox) Calm(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	all, err := s.Processes(ctx)
	if err != nil {
		return
	}
	for _, c := range all {
		if c.Running {
			_ = s.Kill(ctx, c.ID, sigTerm) // it may have ended
		}
	}
	tick := time.NewTicker(calmPoll)
	defer tick.Stop()
	for s.busy(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Sandbox) busy(ctx context.Context) bool {
	all, err := s.Processes(ctx)
	if err != nil {
		return false
	}
	for _, c := range all {
		if c.Running {
			return true
		}
	}
	return false
}

// Stop sends SIGTERM to the commands of the sandbox, waits up to grace, and
// destroys the sandbox.
func (s *Sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		s.Calm(ctx, grace)
	}
	return s.Destroy(ctx)
}
