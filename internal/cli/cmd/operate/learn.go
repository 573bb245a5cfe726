package operate

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// The subject of an event about traffic: the protocol, the destination and, for
// a request, its method and path. None contains a space.
var (
	requestRE = regexp.MustCompile(`^http ([A-Z]+) ([^ /]+):([0-9]+)(/[^ ]*) `)
	flowRE    = regexp.MustCompile(`^(?:tcp|tls|http) ([^ /]+):([0-9]+)(?: |$)`)
	nameRE    = regexp.MustCompile(`^dns ([^ /:]+)(?: |$)`)
)

// seen reads what a sandbox sent, or tried to, from the record of a decision.
func seen(e *sandbox.Event) (s policy.Seen, ok bool) {
	var port string
	switch {
	case requestRE.MatchString(e.Subject):
		m := requestRE.FindStringSubmatch(e.Subject)
		s.Method, s.Host, port, s.Path = m[1], m[2], m[3], m[4]
	case flowRE.MatchString(e.Subject):
		m := flowRE.FindStringSubmatch(e.Subject)
		s.Host, port = m[1], m[2]
	case nameRE.MatchString(e.Subject) && e.Type == "egress.denied":
		s.Host, port = nameRE.FindStringSubmatch(e.Subject)[1], "443" // the requests are unknown
	default:
		return s, false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	s.Port = uint16(n)
	return s, err == nil
}

// learn writes the smallest profile that allows what a sandbox did, and tried
// to, as far as types of events say.
func (a profileCommands) learn(ctx context.Context, c *atoll.Client, sb sandbox.ID, name string, types []string) (sandbox.Profile, error) {
	var all []policy.Seen
	known, flags := map[policy.Seen]bool{}, map[string]bool{}
	for e, err := range c.Events(ctx, sandbox.EventQuery{Ops: []string{resource.OpFlow}, Sandbox: sb, Types: types}) {
		if err != nil {
			return sandbox.Profile{}, err
		}
		if flag := resource.OperatorFlag(e.Subject); flag != "" && !flags[flag] {
			flags[flag] = true
			a.Say("note", "a rule is not enough for one of the addresses; the owner of the machine allows it with: "+flag)
		}
		if s, ok := seen(&e); ok && !known[s] {
			known[s] = true
			all = append(all, s)
		}
	}
	profile, left := policy.Learn(name, all)
	for _, s := range left {
		a.Say("note", "skipped, because no rule can allow it: "+term.OneLine(strings.TrimSpace(s.Method+" "+s.Host+s.Path), 100))
	}
	if len(profile.Rules) > 0 {
		a.Say("note", "review it before you use it: it also allows what the sandbox should not have tried")
	}
	return profile, nil
}

func (a profileCommands) profileLearnCmd() *cobra.Command {
	var save string
	var allowed, asJSON bool
	cmd := &cobra.Command{
		Use: "learn SANDBOX", Short: "Write a profile that allows what a sandbox did and tried", Args: cobra.ExactArgs(1),
		ValidArgsFunction: resource.CompleteSandbox(a.Env),
		Long: `Learn writes the smallest profile that allows everything a sandbox sent or tried to
send: exact hosts and ports and, where the gateway saw requests, exact methods and
paths. For a name that was not resolved it assumes port 443.

The result is a draft: it also allows things that the sandbox should not have tried.
With --save it is stored and applied at once to the sandboxes that use it.`,
		Example: `  atoll profile learn demo
  atoll profile learn demo --save learned`,
	}
	cmd.Flags().StringVar(&save, "save", "", "store it under this name")
	cmd.Flags().BoolVar(&allowed, "allowed", false, "only allowed traffic")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		sb, err := c.Get(ctx, args[0])
		if err != nil {
			return err
		}
		types := []string{"egress.allowed", "egress.denied"}
		if allowed {
			types = types[:1]
		}
		p, err := a.learn(ctx, c, sb.ID(), save, types)
		switch {
		case err != nil:
			return err
		case save != "":
			stored, err := c.ApplyProfile(ctx, p, 0)
			if err != nil {
				return err
			}
			if asJSON {
				return a.PrintJSON(stored)
			}
			return a.Printf("%s is at version %d\n", stored.Name, stored.Version)
		case asJSON:
			return a.PrintJSON(p)
		}
		return a.printYAML(p)
	})
	return cmd
}
