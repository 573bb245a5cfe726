package snapshots

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Environments stores the environment variables of sandboxes and snapshots.
// Values may be secret.
type Environments interface {
	Put(id sandbox.ID, env map[string]string) error
	Get(id sandbox.ID) (map[string]string, error)
	Remove(id sandbox.ID) error
	List() ([]sandbox.ID, error)
}

// PutEnvironment stores the environment of a sandbox.
func (svc *Service) PutEnvironment(id sandbox.ID, env map[string]string) error {
	if svc.cfg.Environments == nil {
		return nil
	}
	return svc.cfg.Environments.Put(id, env)
}

// Environment returns the environment that a sandbox was created with.
func (svc *Service) Environment(b *store.Sandbox) (map[string]string, error) {
	if len(b.Spec.Env) == 0 || svc.cfg.Environments == nil {
		return nil, nil
	}
	env, err := svc.cfg.Environments.Get(b.ID)
	if err == nil && env == nil {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: b.Name, Message: "the environment of the sandbox is lost"}
	}
	return env, err
}

// ForgetEnvironment removes the environment of a sandbox or a snapshot. If that
// fails, SweepEnvironments removes it later.
func (svc *Service) ForgetEnvironment(ctx context.Context, id sandbox.ID) {
	if svc.cfg.Environments != nil {
		svc.Report(ctx, svc.cfg.Environments.Remove(id))
	}
}

// keepEnvironment stores a copy of the environment of a sandbox for its
// snapshot.
func (svc *Service) keepEnvironment(b *store.Sandbox, id string) error {
	env, err := svc.Environment(b)
	if err != nil || len(env) == 0 {
		return err
	}
	return svc.cfg.Environments.Put(sandbox.ID(id), env)
}

// SweepEnvironments removes the environments of sandboxes and snapshots that
// are gone.
func (svc *Service) SweepEnvironments(ctx context.Context) error {
	if svc.cfg.Environments == nil {
		return nil
	}
	there, err := svc.cfg.Environments.List()
	if err != nil {
		return err
	}
	var failed []error
	for _, id := range there {
		b, err := store.Read(ctx, svc.Store, func(tx *store.Tx) (store.Sandbox, error) {
			b, err := tx.Operator().Sandbox(ctx, id)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				_, err = tx.Operator().Snapshot(ctx, string(id))
			}
			return b, err
		})
		switch {
		case err == nil && b.State == sandbox.Gone, sandbox.CodeOf(err) == sandbox.CodeNotFound:
			failed = append(failed, svc.cfg.Environments.Remove(id))
		case err != nil:
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
