package sandboxes

import (
	"context"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/offline"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/eventtype"
)

// explainRefusal says, once a command has failed, what the gateway refused its
// sandbox meanwhile, and how to allow it. It reports whether there was anything.
func explainRefusal(ctx context.Context, a *target.Env, b target.Sandbox, since time.Time, exit sandbox.Exit) bool {
	r, ok := b.(target.RemoteSandbox)
	if !ok || exit.Code == 0 || a.Client == nil || a.Sessions {
		return false
	}
	refused := refusals(ctx, a, r.ID(), since)
	if len(refused) == 0 {
		return false
	}
	text := "the gateway refused " + term.OneLine(refused[0], 200)
	if len(refused) > 1 {
		text += fmt.Sprintf(", and %d more", len(refused)-1)
	}
	hint := "see what would allow it with: atoll egress --suggest"
	if flag := resource.OperatorFlag(refused[0]); flag != "" {
		hint = "the owner of the machine allows it with: " + flag
	}
	a.Say("note", text+"; "+hint)
	return true
}

// hasNetwork reports whether a sandbox has a network, and whether that is known.
func hasNetwork(ctx context.Context, b target.Sandbox) (has, known bool) {
	r, ok := b.(target.RemoteSandbox)
	if !ok {
		return false, false
	}
	n, err := r.Network(ctx)
	return n.Asked(), err == nil
}

// hintNetwork says how to allow hosts, after a command failed that said that it
// could not reach one.
func hintNetwork(a *target.Env, has, known bool) {
	switch {
	case known && has:
		a.Say("hint", offline.Hint(true, "--egress HOST of atoll update"))
	case known:
		a.Say("hint", offline.Hint(false, "--egress HOST of atoll run and create"))
	}
}

// refusalTime bounds the wait for what was refused. The daemon answers when the
// gateway has reported its last decision.
const refusalTime = 15 * time.Second

// refusals returns the refused destinations of a sandbox since a time, each once.
func refusals(ctx context.Context, a *target.Env, id sandbox.ID, since time.Time) (subjects []string) {
	ctx, cancel := context.WithTimeout(ctx, refusalTime)
	defer cancel()
	known := map[string]bool{}
	q := sandbox.EventQuery{Ops: []string{resource.OpFlow}, Types: []string{eventtype.EgressDenied}, Sandbox: id}
	for e, err := range a.Client.Events(ctx, q) {
		if err != nil {
			return subjects
		}
		if !e.Time.Before(since) && !known[e.Subject] {
			known[e.Subject] = true
			subjects = append(subjects, e.Subject)
		}
	}
	return subjects
}

// warnEgress says which variables of ours have no effect, because the daemon that
// makes the sandbox was started with other values.
func warnEgress(ctx context.Context, a *target.Env) {
	if a.Client == nil {
		return
	}
	var theirs map[string]string
	for _, name := range engine.EgressVariables() {
		value, _ := a.LookupEnv(name)
		if value == "" {
			continue
		}
		if theirs == nil {
			ctx, cancel := context.WithTimeout(ctx, target.PingTimeout)
			defer cancel()
			var err error
			if theirs, err = a.Client.Admin().EgressSettings(ctx); err != nil {
				return // only the machine's owner can read it
			}
		}
		switch theirs[name] {
		case engine.EgressFingerprint(name, value):
		case "":
			a.Say("warning", name+" has no effect: the daemon was started without it; restart the daemon with: atoll down, then atoll up -d")
		default:
			a.Say("warning", name+" has no effect: the daemon was started with another value; restart the daemon with: atoll down, then atoll up -d")
		}
	}
}
