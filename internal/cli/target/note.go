package target

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// NoteReason explains a sandbox's state, if necessary.
func NoteReason(a *Env, info sandbox.Sandbox) {
	if info.Reason != "" {
		a.Say("note", info.Name+": "+info.Reason)
	}
}

// Missing reports whether an error says that a thing does not exist, or no longer.
func Missing(err error) bool {
	return errors.Is(err, &sandbox.Error{Code: sandbox.CodeNotFound}) || errors.Is(err, &sandbox.Error{Code: sandbox.CodeGone})
}

// sweep removes leftovers of a killed atoll. A failure is not fatal.
func sweep(ctx context.Context, a *Env, c *engine.Engine) {
	if _, err := c.Sweep(ctx); err != nil && ctx.Err() == nil {
		text, _ := term.Explain(err)
		a.Say("warning", "could not remove what an earlier run left behind: "+text)
	}
}

// Progress returns a function that shows the progress of a pull, and one that
// clears it, which may be called again. It shows progress only on a terminal.
func Progress(a *Env, quiet bool) (show func(engine.Progress), done func()) {
	if quiet || !term.IsTerminal(a.Stderr) {
		return nil, func() {}
	}
	b := term.NewBar(a.Stderr)
	return func(p engine.Progress) { b.Show(p.Phase, p.Done, p.Total) }, b.Clear
}
