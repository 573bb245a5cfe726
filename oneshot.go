package atoll

import (
	"context"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	// oneShotTimeout bounds a one-shot that names no bound.
	oneShotTimeout = 10 * time.Minute
	// oneShotSpare is how much longer than its command the sandbox of a
	// one-shot may live: should this program die, the sandbox dies too.
	oneShotSpare = time.Minute
	// teardown bounds the removal of the sandbox.
	teardown = 30 * time.Second
)

// OneShot says where and how a one-shot runs. The zero value is usable.
type OneShot struct {
	Spec    sandbox.Spec  // of the sandbox
	Timeout time.Duration // of the command; zero: 10 minutes
	RunOptions
}

// RunShell runs a script for /bin/sh in a sandbox of its own, which is gone
// when it returns, whatever happens. No daemon to run it is CodeUnavailable.
func (c *Client) RunShell(ctx context.Context, script string, opts OneShot) (Result, error) {
	return c.runOnce(ctx, opts, func(ctx context.Context, s *Sandbox, timeout time.Duration) (Result, error) {
		return s.Run(ctx, sandbox.Command{Shell: script, Timeout: timeout}, opts.RunOptions)
	})
}

// RunPython runs a Python 3 program as RunShell runs a script.
func (c *Client) RunPython(ctx context.Context, program string, opts OneShot) (Result, error) {
	const file = "/tmp/main.py"
	return c.runOnce(ctx, opts, func(ctx context.Context, s *Sandbox, timeout time.Duration) (Result, error) {
		if _, err := s.Files().Write(ctx, file, strings.NewReader(program), WriteOptions{}); err != nil {
			return Result{}, err
		}
		return s.Run(ctx, sandbox.Command{Args: []string{"python3", file}, Timeout: timeout}, opts.RunOptions)
	})
}

// runOnce makes a sandbox, uses it, and removes it even when ctx has ended.
func (c *Client) runOnce(ctx context.Context, opts OneShot, use func(context.Context, *Sandbox, time.Duration) (Result, error)) (res Result, err error) {
	timeout := opts.Timeout
	if timeout <= 0 {
		timeout = oneShotTimeout
	}
	spec := opts.Spec
	if spec.Lifetime.Timeout == 0 {
		spec.Lifetime.Timeout = timeout + oneShotSpare
	}
	s, err := c.Create(ctx, spec, CreateOptions{})
	if err != nil {
		return Result{}, err
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
		defer cancel()
		if failed := s.Destroy(late); failed != nil && err == nil {
			err = failed
		}
	}()
	return use(ctx, s, timeout)
}
