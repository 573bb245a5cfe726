package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// profileCommands are atoll profile and atoll egress.
type profileCommands struct{ *target.Env }

func (a profileCommands) profileCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "profile", Short: "Say what sandboxes may reach on the network", GroupID: resource.GroupDaemon,
		Long: `A profile is a list of rules about hosts, paths and methods. The first rule that
matches decides; if none matches, the default (deny) applies. Profiles are YAML or
JSON; see docs/reference/profiles.md for every field:

  name: docs
  rules:
    - action: allow
      hosts: [api.example.com]
      methods: [GET]
      paths: [/v1/**]`,
		Example: `  atoll profile ls`,
	}, a.profileCreateCmd(), a.profileApplyCmd(), a.profileListCmd(), a.profileShowCmd(), a.profileEditCmd(), a.profileTestCmd(), a.profileLearnCmd(), a.profileRemoveCmd())
}

// maxProfileFile limits the size of a file with a profile.
const maxProfileFile = 16 << 20

// readProfile reads a profile from a file, "-" for standard input. Unknown
// fields are errors, because a misspelt field could make a rule too wide.
func (a profileCommands) readProfile(path string) (p sandbox.Profile, err error) {
	bad := func(message string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: path, Message: message, Hint: "see docs/reference/profiles.md"}
	}
	in := a.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return p, term.Unreadable(path, err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxProfileFile+1))
	if err != nil {
		return p, err
	}
	if len(text) > maxProfileFile {
		return p, bad("it is too large to be a profile")
	}
	err = parseProfile(text, &p, bad)
	return p, err
}

// parseProfile parses YAML, which includes JSON.
func parseProfile(text []byte, p *sandbox.Profile, bad func(string) error) error {
	var doc map[string]any
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&doc); err != nil {
		return bad("it is not YAML or JSON: " + err.Error())
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return bad("it contains more than one document")
	}
	plain, err := json.Marshal(doc)
	if err != nil {
		return bad("a key is not a string")
	}
	strict := json.NewDecoder(bytes.NewReader(plain))
	strict.DisallowUnknownFields()
	if err := strict.Decode(p); err != nil {
		return bad(strings.TrimPrefix(err.Error(), "json: "))
	}
	return policy.Check(*p)
}

// namedProfile reads a profile and gives it the name that the command line says, if it
// says one.
func (a profileCommands) namedProfile(file string, args []string) (sandbox.Profile, error) {
	p, err := a.readProfile(file)
	if len(args) > 0 {
		if p.Name != "" && p.Name != args[0] {
			return p, term.BadFlag("file", "the profile in it is named %q, not %q", p.Name, args[0])
		}
		p.Name = args[0]
	}
	if err == nil && p.Name == "" {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: file, Message: "the profile has no name", Hint: "write one into the file, or on the command line"}
	}
	return p, err
}

func (a profileCommands) profileCreateCmd() *cobra.Command {
	return a.profileWriteCmd("create", "Store a profile", "", func(ctx context.Context, c *atoll.Client, p sandbox.Profile, _ int64) (durable.StoredProfile, error) {
		return c.CreateProfile(ctx, p)
	})
}

func (a profileCommands) profileApplyCmd() *cobra.Command {
	return a.profileWriteCmd("apply", "Store a profile or a new version of it, and apply it to running sandboxes", `
Connections that the new version does not allow are cut at once.`, func(ctx context.Context, c *atoll.Client, p sandbox.Profile, version int64) (durable.StoredProfile, error) {
		return c.ApplyProfile(ctx, p, version)
	})
}

func (a profileCommands) profileWriteCmd(name, short, more string, write func(context.Context, *atoll.Client, sandbox.Profile, int64) (durable.StoredProfile, error)) *cobra.Command {
	var file string
	var version int64
	var asJSON bool
	cmd := &cobra.Command{
		Use: name + " [NAME] -f FILE", Short: short, Args: cobra.MaximumNArgs(1),
		Long:    short + ".\n" + more,
		Example: "  atoll profile " + name + " docs -f profile.yaml",
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML or JSON, - for standard input")
	_ = cmd.MarkFlagRequired("file")
	if name == "apply" {
		cmd.Flags().Int64Var(&version, "if-version", 0, "only if the profile is at this version")
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		p, err := a.namedProfile(file, args)
		if err != nil {
			return err
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		out, err := write(ctx, c, p, version)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(out)
		}
		return a.Printf("%s is at version %d\n", out.Name, out.Version)
	})
	return cmd
}

func (a profileCommands) profileListCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List profiles", Args: cobra.NoArgs, Example: `  atoll profile ls`}
	return resource.DaemonList(a.Env, cmd, "NAME VERSION DEFAULT RULES SANDBOXES UPDATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]durable.StoredProfile, error) {
		return c.Profiles(ctx)
	}, func(p durable.StoredProfile) []string {
		return []string{p.Name, strconv.FormatInt(p.Version, 10), defaultOf(p.Profile), strconv.Itoa(len(p.Profile.Rules)), strconv.Itoa(p.Uses), term.Ago(p.Updated)}
	})
}

func defaultOf(p sandbox.Profile) string {
	switch {
	case p.Internet != nil && !*p.Internet:
		return "off"
	case p.Default == "":
		return string(sandbox.Deny)
	}
	return string(p.Default)
}

func (a profileCommands) profileShowCmd() *cobra.Command {
	var version int64
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Write a profile in the form that create and apply read", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeProfile,
		Example:           `  atoll profile show docs > profile.yaml`,
	}
	cmd.Flags().Int64Var(&version, "version", 0, "as it was at this version")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON, with its version and times")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		p, err := c.Profile(ctx, args[0], version)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(p)
		}
		return a.printYAML(p.Profile)
	})
	return cmd
}

// printYAML writes a value by the names that its JSON has.
func (a profileCommands) printYAML(v any) error {
	text, err := yamlOf(v)
	if err != nil {
		return err
	}
	return a.Printf("%s", term.Painted(text))
}

// yamlOf is a value as YAML, by the names that its JSON has. Hidden characters are
// escaped.
func yamlOf(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(term.Visible(string(text))), &doc); err != nil {
		return nil, err
	}
	block(&doc)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, err
	}
	err = e.Close()
	return []byte(term.Visible(out.String())), err
}

// block turns the braces of JSON into lines. Strings with hidden characters keep their
// quotes, in which these can be escaped.
func block(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	if strings.IndexFunc(n.Value, term.Hidden) < 0 {
		n.Style &^= yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		block(c)
	}
}

func (a profileCommands) profileTestCmd() *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "test [NAME] [METHOD] URL", Short: "Show how a profile decides about a request, without sending it", Args: cobra.RangeArgs(1, 3),
		Long: `Test shows which rule of a profile decides about a request, and how. Nothing is
sent. With --file it reads the profile from a file and needs no daemon.

The URL has the scheme https, http, wss, ws, or tcp for a connection that is not
HTTP. The exit code is 0 if the request would be let through, else 1.`,
		Example: `  atoll profile test docs GET https://api.example.com/v1/pages
  atoll profile test --file profile.yaml POST https://api.example.com/v1/pages`,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "test the profile in this file, - for standard input")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		e, err := a.testProfile(ctx, file, args)
		if err != nil {
			return err
		}
		if asJSON {
			err = a.PrintJSON(e)
		} else {
			err = a.showExplanation(e)
		}
		if err == nil && !e.Allow {
			return term.ExitCode(1)
		}
		return err
	})
	return cmd
}

func (a profileCommands) testProfile(ctx context.Context, file string, args []string) (e operator.Explanation, err error) {
	name, rest := "", args
	if file == "" {
		if len(args) < 2 {
			return e, term.BadFlag("file", "name a stored profile, or a file with one")
		}
		name, rest = args[0], args[1:]
	}
	if len(rest) > 2 {
		return e, term.BadFlag("file", "%q is one word too many", rest[2])
	}
	method, target := "GET", rest[len(rest)-1]
	if len(rest) == 2 {
		method = rest[0]
	}
	if file == "" {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return e, err
		}
		return c.TestProfile(ctx, name, method, target)
	}
	p, err := a.readProfile(file)
	if err != nil {
		return e, err
	}
	compiled, err := policy.Compile(p, policy.Options{})
	if err != nil {
		return e, err
	}
	return compiled.Explain(method, target)
}

// showExplanation writes one line for each rule that was looked at, and one
// with the outcome.
func (a profileCommands) showExplanation(e operator.Explanation) error {
	var b strings.Builder
	for _, s := range e.Steps {
		why := "decides"
		if !s.Matches {
			why = "does not match"
			if s.Why != "" {
				why += ": " + s.Why
			}
		}
		_ = term.Writef(&b, "%-6s %s %s\n", s.Action, s.Rule, why)
	}
	verdict := "denied"
	if e.Allow {
		verdict = "allowed"
	}
	_ = term.Writef(&b, "%s: %s\n", verdict, e.Message)
	if e.Allow && e.HostOnly {
		b.WriteString("note: only the host is decided; whatever is behind that name can be reached\n")
	}
	if len(e.Inject) > 0 {
		_ = term.Writef(&b, "note: the gateway adds %s\n", strings.Join(e.Inject, ", "))
	}
	for _, note := range e.Operator {
		_ = term.Writef(&b, "note: %s\n", note)
	}
	return a.Printf("%s", term.Painted(b.String()))
}

func (a profileCommands) profileRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove profiles that no sandbox uses", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeProfile,
		Example:           `  atoll profile rm docs`,
	}
	return resource.DaemonRemove(a.Env, cmd, "", func(ctx context.Context, c *atoll.Client, name string, _ bool) error {
		return c.RemoveProfile(ctx, name)
	})
}
