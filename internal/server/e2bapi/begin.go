package e2bapi

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// Bounds of the wait for a start command to be ready.
const (
	readyPause   = 100 * time.Millisecond
	readyTimeout = 60 * time.Second
)

// begin starts what is to run in every sandbox of a template, and waits until it
// is ready. A sandbox that does not become ready is of no use, and is removed.
func (h *Handler) begin(ctx context.Context, s *Sandbox) error {
	start, ready, err := h.service.Commands(ctx, s.ID)
	if err != nil || start == "" && ready == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	box, err := h.service.Open(ctx, s.ID)
	if err == nil {
		err = h.ready(ctx, box, s, start, ready)
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
		defer cancel()
		if err := h.service.Destroy(late, s.ID); err != nil {
			h.opts.Logger.ErrorContext(ctx, "a sandbox that did not become ready is left", "sandbox", s.ID, "error", err)
		}
	}
	return err
}

func (h *Handler) ready(ctx context.Context, box Box, s *Sandbox, start, ready string) error {
	user, err := h.accounts.find(ctx, box, "")
	if err != nil {
		return err
	}
	command := func(script string) sandbox.Command {
		return sandbox.Command{
			Args: []string{"/bin/bash", "-l", "-c", script}, User: user.name, Dir: user.home,
			Env: map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": publicID(s.ID), "E2B_TEMPLATE_ID": template(s)},
		}
	}
	if start != "" {
		cmd := command(start)
		cmd.Background = true
		p, err := box.Exec(ctx, cmd)
		if err != nil {
			return err
		}
		c, f := h.commands.add(s.ID, p, &envd.StartRequest{Process: &envd.ProcessConfig{Cmd: cmd.Args[0], Args: cmd.Args[1:]}})
		c.leave(f) // nobody follows it yet
	}
	if ready == "" {
		return nil
	}
	pause := time.NewTicker(readyPause)
	defer pause.Stop()
	for {
		_, err := h.output(ctx, box, command(ready))
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return &sandbox.Error{
				Code: sandbox.CodeTimeout, Subject: template(s), Message: "the ready command of the template did not succeed", Cause: err,
				Hint: "run it in a sandbox of the template it was built from",
			}
		}
	}
}
