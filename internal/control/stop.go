package control

import (
	"context"
	"time"
)

const (
	sigTerm = 15
	// calmPoll is how often it is looked whether commands have ended.
	calmPoll = 25 * time.Millisecond
)

// Calm asks the commands of the sandbox to end and waits until they have, or
// grace or ctx is over. A sandbox that cannot be asked is calm.
func (s *Sandbox) Calm(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	all, err := s.Processes(ctx)
	if err != nil {
		return
	}
	for _, c := range all {
		if c.Running {
			_ = s.Kill(ctx, c.ID, sigTerm) // it may just have ended
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

// Stop asks the commands of the sandbox to end, gives them grace, and destroys
// it.
func (s *Sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		s.Calm(ctx, grace)
	}
	return s.Destroy(ctx)
}
