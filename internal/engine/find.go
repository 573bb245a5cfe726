package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

func nameOf(f driver.Found) string {
	return cmp.Or(f.Labels[LabelName], string(f.ID))
}

func summarize(f driver.Found) sandbox.Sandbox {
	own := maps.Clone(f.Labels)
	maps.DeleteFunc(own, func(k, _ string) bool { return strings.HasPrefix(k, ReservedPrefix) })
	return sandbox.Sandbox{
		ID: f.ID, Name: nameOf(f), State: f.State, Image: f.Labels[LabelImage],
		Created: f.Created, Labels: own, Exit: f.Exit, Bound: f.Labels[LabelOwner] != "",
	}
}

// List returns the sandboxes that exist, oldest first.
func (e *Engine) List(ctx context.Context) ([]sandbox.Sandbox, error) {
	var out []sandbox.Sandbox
	err := e.do(ctx, Action{Op: ops.SandboxList}, func(ctx context.Context) error {
		for found, err := range e.cfg.Provider.List(ctx) {
			if err != nil {
				return err
			}
			out = append(out, summarize(found))
		}
		return nil
	})
	slices.SortFunc(out, func(a, b sandbox.Sandbox) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return out, err
}

// Find returns the sandbox with that name or id. It returns CodeNotFound only
// after searching all sandboxes.
func (e *Engine) Find(ctx context.Context, ref string) (*Sandbox, error) {
	var sb *Sandbox
	err := e.do(ctx, Action{Op: ops.SandboxFind, Name: ref, Subject: ref}, func(ctx context.Context) error {
		if err := sandbox.ValidateName(ref); err != nil {
			return err
		}
		found, err := e.look(ctx, ref)
		if err != nil {
			return err
		}
		inst, err := e.cfg.Provider.Attach(ctx, found.ID)
		if err != nil {
			return err
		}
		sb = &Sandbox{e: e, inst: inst, name: nameOf(found)}
		return nil
	})
	return sb, err
}

// Attach returns a handle on the sandbox with that id. name is its name.
// CodeGone is proof that the sandbox is gone.
func (e *Engine) Attach(ctx context.Context, id sandbox.ID, name string) (*Sandbox, error) {
	var sb *Sandbox
	err := e.do(ctx, Action{Op: ops.SandboxFind, Sandbox: id, Name: name, Subject: name}, func(ctx context.Context) error {
		inst, err := e.cfg.Provider.Attach(ctx, id)
		if err != nil {
			return err
		}
		sb = &Sandbox{e: e, inst: inst, name: name}
		return nil
	})
	return sb, err
}

// look finds the sandbox with that name or id. A name takes precedence; an id
// equal to another sandbox's name cannot be created.
func (e *Engine) look(ctx context.Context, ref string) (driver.Found, error) {
	var byID *driver.Found
	for found, err := range e.cfg.Provider.List(ctx) {
		switch {
		case err != nil:
			return driver.Found{}, err
		case nameOf(found) == ref:
			return found, nil
		case string(found.ID) == ref:
			byID = &found
		}
	}
	if byID != nil {
		return *byID, nil
	}
	return driver.Found{}, &sandbox.Error{
		Code: sandbox.CodeNotFound, Subject: ref, Message: "no sandbox has that name",
		Hint: "see what exists with: atoll ls",
	}
}

// Sweep destroys sandboxes whose owner process is gone, and returns their
// names. It continues after a failure, and destroys only sandboxes that are
// proved to be orphans.
func (e *Engine) Sweep(ctx context.Context) ([]string, error) {
	var swept []string
	err := e.do(ctx, Action{Op: ops.SandboxSweep}, func(ctx context.Context) error {
		var failed []error
		for found, err := range e.cfg.Provider.List(ctx) {
			if err != nil {
				failed = append(failed, err)
				break
			}
			if !e.Orphaned(found) {
				continue
			}
			if err := e.destroyFound(ctx, found); err != nil {
				failed = append(failed, err)
				continue
			}
			swept = append(swept, nameOf(found))
		}
		return errors.Join(failed...)
	})
	return swept, err
}

// Orphaned reports whether a sandbox is an orphan: its owner is dead or, if
// that cannot be determined here, the sandbox itself is dead.
func (e *Engine) Orphaned(f driver.Found) bool {
	owner := f.Labels[LabelOwner]
	if owner == "" {
		return false
	}
	ended := f.State == sandbox.Stopped || f.State == sandbox.Failed
	return e.cfg.Owner.Dead(owner) || ended && e.cfg.Owner.Foreign(owner)
}

func (e *Engine) destroyFound(ctx context.Context, f driver.Found) error {
	inst, err := e.cfg.Provider.Attach(ctx, f.ID)
	if err == nil {
		err = inst.Destroy(ctx)
	}
	if err != nil && e.codeOf(err) == sandbox.CodeGone {
		return nil // another caller was faster
	}
	return err
}
