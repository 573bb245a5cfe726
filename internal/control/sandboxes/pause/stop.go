package pause

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Stop signals the commands of a sandbox, waits up to grace, and ends the
// sandbox. It keeps the files for Start. If the provider cannot keep them, Stop
// returns CodeUnsupported and changes nothing.
func (s *Pauser) Stop(ctx context.Context, ref string, grace time.Duration) (_ store.Sandbox, err error) {
	defer core.Name(opStop, &err)
	if grace > 0 {
		proceed, err := s.calmDown(ctx, ref, grace)
		if err != nil {
			return store.Sandbox{}, err
		}
		defer proceed()
	}
	t, err := s.Records.Lock(ctx, ref, opStop, lifecycle.Stop)
	if err != nil {
		return s.stopUnusable(ctx, ref, err)
	}
	defer t.Release()
	if t.Verdict == lifecycle.Done {
		return t.Sandbox, nil
	}
	return s.StopLocked(ctx, t)
}

// calmDown signals the commands of a sandbox and waits for them to end. It also
// succeeds if there are no commands or the sandbox does not respond. The main
// command is not restarted before done is called.
func (s *Pauser) calmDown(ctx context.Context, ref string, grace time.Duration) (done func(), err error) {
	done = func() {}
	who, _, err := s.Core.Admit(ctx, opStop, guard.Subject{Subject: ref})
	if err != nil {
		return done, err
	}
	b, err := s.Records.Find(ctx, who.Tenant, ref)
	if err != nil || b.State != sandbox.Running {
		return done, err
	}
	sb, err := s.Records.AttachSettled(ctx, &b)
	if err != nil || sb == nil {
		return done, records.IgnoreGone(err)
	}
	if !s.Keeps(&b, sb) {
		return done, s.cannotStop(&b)
	}
	done = s.Mains.Hold(b.ID)
	sb.Calm(ctx, grace)
	return done, nil
}

// stopUnusable ends a failed sandbox, which cannot be stopped normally.
func (s *Pauser) stopUnusable(ctx context.Context, ref string, why error) (store.Sandbox, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return store.Sandbox{}, err
	}
	b, err := s.Records.Find(ctx, who.Tenant, ref)
	if err != nil || b.State != sandbox.Gone && b.State != sandbox.Failed {
		return store.Sandbox{}, why
	}
	if err := s.Remover.DestroyAs(ctx, ref, opStop, records.ReasonStopped); err != nil {
		return b, err
	}
	return s.Records.Record(ctx, who.Tenant, b.ID)
}

// StopLocked stops a sandbox that the caller has locked, if its files can be kept.
func (s *Pauser) StopLocked(ctx context.Context, t *records.Operation) (store.Sandbox, error) {
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return t.Sandbox, err
	}
	if s.Keeps(&t.Sandbox, sb) {
		return s.putAway(ctx, t, away{step: records.StepStop, to: records.Resting{State: sandbox.Stopped}})
	}
	return t.Sandbox, s.cannotStop(&t.Sandbox)
}

// cannotStop returns the error for a sandbox whose files cannot be kept.
func (s *Pauser) cannotStop(b *store.Sandbox) error {
	message := "the sandbox would lose its files: this provider cannot keep them"
	if b.Spec.ID == "" {
		message = "the sandbox would lose its files: it was created without a daemon, so its configuration for a restart is unknown"
	}
	return records.Unsupported(b, message, "to end it and lose its files, remove it with: atoll rm --force "+b.Name)
}
