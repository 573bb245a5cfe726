package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// policyCommands are atoll policy.
type policyCommands struct{ *target.Env }

func (a policyCommands) policyCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "policy", Short: "Say what sandboxes may be", GroupID: resource.GroupDaemon,
		Long: `Policies limit the sandboxes of a tenant: resources, lifetime, images, mounts,
secrets, and the hosts they may reach. Policies are files that you keep under
version control; tell the daemon where they are with: atoll up --policy DIR.
See docs/operate/policies.md for every field:

  policies:
    - name: agents
      tenants: [acme, "team-*"]
      memory: 4g
      lifetime: 1h
      images: [host, "debian:*"]
      egress:
        rules: [{action: allow, hosts: ["*.example.com"]}]`,
		Example: `  atoll policy show`,
	}, a.policyValidateCmd(), a.policyTestCmd(), a.policyShowCmd(), a.policyExplainCmd(), a.policyReloadCmd())
}

func (a policyCommands) policyValidateCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "validate PATH", Short: "Check a file of policies, or a directory of them", Args: cobra.ExactArgs(1),
		Long: `Validate reads a file of policies, or every .yaml, .yml and .json of a directory,
and says in which line something is wrong. It needs no daemon.`,
		Example: `  atoll policy validate policies.yaml`,
	}
	cmd.RunE = resource.Interruptible(func(_ context.Context, args []string) error {
		b, err := policyset.Open(args[0])
		if err != nil {
			return err
		}
		return a.Printf("%d policies are sound\n", len(b.Policies()))
	})
	return cmd
}

func (a policyCommands) policyTestCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "test PATH", Short: "Run the tests that stand beside policies", Args: cobra.ExactArgs(1),
		Long: `Test runs the requests under "tests" against the policies of a file or directory
and compares the results with the expected ones. It needs no daemon. The exit code is
0 if there are tests and all of them pass, else 1.`,
		Example: `  atoll policy test policies.yaml`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(_ context.Context, args []string) error {
		b, err := policyset.Open(args[0])
		if err != nil {
			return err
		}
		results := b.Run()
		failed := slices.ContainsFunc(results, func(r policyset.Result) bool { return !r.Passed })
		if asJSON {
			err = a.PrintJSON(results)
		} else {
			err = a.showResults(results)
		}
		if err == nil && (failed || len(results) == 0) {
			return term.ExitCode(term.ExitFailure)
		}
		return err
	})
	return cmd
}

func (a policyCommands) showResults(results []policyset.Result) error {
	passed := 0
	for _, r := range results {
		word := "FAIL"
		if r.Passed {
			word = "ok"
			passed++
		}
		if err := a.Printf("%-4s  %s (%s:%d): %s\n", word, r.Name, r.File, r.Line, r.Got); err != nil {
			return err
		}
	}
	return a.Printf("%d of %d tests pass\n", passed, len(results))
}

func (a policyCommands) policyShowCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show", Short: "List the policies in force", Args: cobra.NoArgs,
		Long: `Show lists the policies that apply to your sandboxes, and reports if the current
files could not be used.`,
		Example: `  atoll policy show`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		p, err := c.Admin().Policies(ctx)
		return a.wrotePolicies(p, err, asJSON)
	})
	return cmd
}

func (a policyCommands) policyReloadCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "reload", Short: "Have the daemon read its policies anew", Args: cobra.NoArgs,
		Long: `Reload makes the daemon read its policies again. It also does so by itself when the
files change. The new policies apply at once. If one of them is invalid, the old ones
stay in force. Connections that are no longer allowed are cut immediately.`,
		Example: `  atoll policy reload`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		p, err := c.Admin().ReloadPolicies(ctx)
		return a.wrotePolicies(p, err, asJSON)
	})
	return cmd
}

func (a policyCommands) wrotePolicies(p operator.Policies, err error, asJSON bool) error {
	if err != nil {
		return err
	}
	if p.Problem != "" {
		a.SayLines("warning", "the files cannot be used as they are now: "+p.Problem)
	}
	if asJSON {
		return a.PrintJSON(p)
	}
	rows := make([][]string, 0, len(p.Policies))
	for _, one := range p.Policies {
		rows = append(rows, []string{one.Name, aboutWhom(&one), said(&one), fmt.Sprintf("%s:%d", one.File, one.Lines["name"])})
	}
	return a.Table("NAME ABOUT SAYS FILE", rows)
}

// aboutWhom says about which sandboxes a policy is.
func aboutWhom(p *operator.Policy) string {
	about := cmp.Or(strings.Join(p.Tenants, ","), "*")
	for _, label := range slices.Sorted(maps.Keys(p.Labels)) {
		about += fmt.Sprintf(" %s=%s", label, strings.Join(p.Labels[label], "|"))
	}
	return about
}

// said lists the limits of a policy.
func said(p *operator.Policy) string {
	var out []string
	for _, field := range slices.Sorted(maps.Keys(p.Lines)) {
		if !slices.Contains([]string{"name", "description", "tenants", "labels"}, field) {
			out = append(out, field)
		}
	}
	return strings.Join(out, ",")
}

func (a policyCommands) policyExplainCmd() *cobra.Command {
	var sandboxFlags request.SandboxFlags
	var how request.CommandFlags
	var file, tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "explain [flags of create]", Short: "Show what the policies say about a sandbox, without making it", Args: cobra.NoArgs,
		Long: `Explain takes the flags of atoll create and shows what each rule of the policies
says about that sandbox, without creating it. With --policy it reads the policies
from there and needs no daemon. The exit code is 0 if the sandbox is allowed, else 1.`,
		Example: `  atoll policy explain --memory 8g --image debian:12
  atoll policy explain --policy policies.yaml --tenant acme --cpus 1`,
	}
	flags := cmd.Flags()
	sandboxFlags.Register(cmd)
	for _, name := range []string{"rm", "keep", "entrypoint", "quiet", "pull"} { // nothing is made
		_ = flags.MarkHidden(name)
	}
	flags.StringVar(&file, "policy", "", "read the policies from this file or directory")
	flags.StringVar(&tenant, "tenant", "", "with --policy: whose sandbox it would be (default \"default\")")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if tenant != "" && file == "" {
			return term.BadFlag("tenant", "needs --policy: the daemon answers for your own tenant")
		}
		how.Detach = true
		req, err := request.Build(a.Env, cmd, &sandboxFlags, &how, nil)
		if err != nil {
			return err
		}
		answer, err := a.explainPolicies(cmd.Context(), file, cmp.Or(tenant, "default"), &req)
		if err != nil {
			return err
		}
		if asJSON {
			err = a.PrintJSON(answer)
		} else {
			err = a.showAnswer(answer)
		}
		if err == nil && !answer.Allow {
			return term.ExitCode(term.ExitFailure)
		}
		return err
	}
	return cmd
}

// explainPolicies asks the daemon, or policies in files.
func (a policyCommands) explainPolicies(ctx context.Context, file, tenant string, req *engine.RunRequest) (out operator.PolicyAnswer, err error) {
	if file == "" {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return out, err
		}
		return c.Admin().ExplainPolicies(ctx, req.Spec)
	}
	b, err := policyset.Open(file)
	if err != nil {
		return out, err
	}
	if err := req.Spec.Validate(); err != nil {
		return out, err
	}
	local, _ := req.Spec.Network.Local()
	r := policyset.Of(tenant, &req.Spec, []string{req.Spec.Image}, local.Rules)
	r.Unfetched = true // the daemon knows signatures
	r.Complete(b.Caps(r.About), sandbox.Resources{})
	return b.Answer(r), nil
}

func (a policyCommands) showAnswer(p operator.PolicyAnswer) error {
	rows := make([][]string, 0, len(p.Findings))
	for _, f := range p.Findings {
		word := "ok"
		if !f.OK {
			word = "no"
		}
		rows = append(rows, []string{word, f.Rule, term.OneLine(f.Asked, 40), term.OneLine(f.Limit, 50), f.File + ":" + strconv.Itoa(f.Line)})
	}
	if len(rows) > 0 {
		if err := a.Table("OK RULE ASKED ALLOWED FILE", rows); err != nil {
			return err
		}
	}
	var notes []string
	for _, c := range p.Ceilings {
		notes = append(notes, fmt.Sprintf("note: what it reaches is bounded by %d rules of the policy %s", len(c.Profile.Rules), c.Policy))
	}
	if p.Lifetime > 0 {
		notes = append(notes, "note: it lives at most "+p.Lifetime.String())
	}
	if p.Isolation != "" {
		notes = append(notes, "note: its isolation is at least "+string(p.Isolation))
	}
	if p.Limits.Memory > 0 {
		notes = append(notes, "note: it gets at most "+units.BytesSize(float64(p.Limits.Memory))+" of memory")
	}
	verdict := "allowed"
	if !p.Allow {
		verdict = "denied: " + p.Message
	}
	for _, text := range append(notes, verdict) {
		if err := a.Println(text); err != nil {
			return err
		}
	}
	return nil
}
