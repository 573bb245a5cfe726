package servicetest

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/driver"
)

// PauseWords are a service's words for the statuses of a sandbox that pauses.
type PauseWords struct{ Pausing, Paused, Resuming string }

// Pause keeps a sandbox with what runs in it.
func (c *Cloud) Pause(b *CloudSandbox) error {
	if err := c.move(b, c.Pauses.Pausing, c.statuses.Running); err != nil {
		return err
	}
	return c.slowly(b, func() error {
		b.sleep()
		return c.paused(b, func(p driver.Pauser) error { return p.Pause(context.Background()) }, func() { b.sandbox.Status = c.Pauses.Paused })
	})
}

// Resume continues a paused sandbox.
func (c *Cloud) Resume(b *CloudSandbox) error {
	if err := c.move(b, c.Pauses.Resuming, c.Pauses.Paused); err != nil {
		return err
	}
	return c.slowly(b, func() error {
		return c.paused(b, func(p driver.Pauser) error { return p.Resume(context.Background()) }, func() { c.run(b) })
	})
}

// paused pauses or resumes a sandbox, and notes that, unless it was deleted
// meanwhile. done is called with the mutex held.
func (c *Cloud) paused(b *CloudSandbox, f func(driver.Pauser) error, done func()) error {
	pauser, ok := driver.As[driver.Pauser](b.in)
	if !ok {
		return errors.New("the fake cannot pause sandboxes")
	}
	err := f(pauser)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case b.sandbox.Status == c.statuses.Deleted:
	case err != nil:
		b.sandbox.Status = c.statuses.Failed
	default:
		done()
	}
	return err
}
