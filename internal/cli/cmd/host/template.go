package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// templateCommands are atoll template.
type templateCommands struct{ *target.Env }

func (a templateCommands) templateCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "template", Short: "Build templates, and keep their names", GroupID: resource.GroupMachine,
		Long: `A template is an image that is built from a Dockerfile, step by step, in sandboxes.
Use one with --image template:NAME, or a public one of another tenant with
--image template:TENANT/NAME.`,
		Example: `  atoll template ls`,
	}, a.templateBuildCmd(), a.templateListCmd(), a.templateInspectCmd(), a.templateTagCmd(), a.templatePublishCmd(), a.templateUnpublishCmd(), a.templateRemoveCmd(), a.templatePruneCmd())
}

func (a templateCommands) templateBuildCmd() *cobra.Command {
	var opts atoll.BuildOptions
	var args []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "build -t NAME[:TAG] DIR",
		Short: "Build a template from a directory with a Dockerfile",
		Long: `Build runs the steps of a Dockerfile in sandboxes and gives the result a name. Steps
that have not changed since an earlier build are taken from the cache. It supports
FROM (one), RUN, COPY, ADD (of files), ENV, ARG, WORKDIR, USER, LABEL, CMD,
ENTRYPOINT, EXPOSE and STOPSIGNAL, and refuses everything else. FROM may name a
template: FROM template:NAME. Files that .dockerignore names are left out.

Steps have no network unless --egress names hosts. Changing the hosts does not
invalidate cached steps; use --no-cache for that.

With --start, build starts a script in the background at the end. When --ready
succeeds, the memory of the sandbox is saved with the template. Sandboxes of the
template continue from there, each with its own name, environment and network. If the
memory cannot be restored, sandboxes are made from the files and the script is started
in them; atoll inspect tells which.`,
		Example: `  atoll template build -t tools .`,
		Args:    cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.Name, "tag", "t", "", "the name to give it, NAME or NAME:TAG")
	flags.StringVarP(&opts.File, "file", "f", "", "the Dockerfile, relative to the directory (default Dockerfile)")
	flags.StringArrayVar(&args, "build-arg", nil, "NAME=VALUE of an ARG; no place for a secret")
	flags.StringSliceVar(&opts.Egress, "egress", nil, "hosts that RUN steps may reach, such as mirror.example.com or *.example.com:8443 (default: no network)")
	flags.StringVar(&opts.Start, "start", "", "a script that runs in every sandbox of the template, such as a server; its memory is kept with the template")
	flags.StringVar(&opts.Ready, "ready", "", "a script that succeeds when --start is ready")
	flags.BoolVar(&opts.NoCache, "no-cache", false, "run every step, ignoring the cache")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	_ = cmd.MarkFlagRequired("tag")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, pos []string) error {
		opts.Args = map[string]string{}
		for _, arg := range args {
			name, value, ok := strings.Cut(arg, "=")
			if !ok {
				value, _ = a.LookupEnv(name)
			}
			opts.Args[name] = value
		}
		opts.Progress = a.showBuild
		t, err := a.build(ctx, pos[0], opts)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(t)
		}
		return a.Printf("template:%s:%s\n", t.Name, t.Tag)
	})
	return cmd
}

// build sends the files of a directory to the daemon, which builds.
func (a templateCommands) build(ctx context.Context, dir string, opts atoll.BuildOptions) (t durable.Template, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return t, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: dir, Message: "cannot be read as a directory", Cause: err}
	}
	defer root.Close()
	if opts.File != "" && filepath.IsAbs(opts.File) {
		return t, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: opts.File, Message: "is not relative to the directory"}
	}
	c, err := a.MustDaemon(ctx)
	if err != nil {
		return t, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	defer r.Close() // ends the packing if the daemon refuses
	go func() { w.CloseWithError(template.Pack(ctx, root, w)) }()
	return c.BuildTemplate(ctx, r, opts)
}

// showBuild writes messages of a build to standard error.
func (a templateCommands) showBuild(e durable.BuildEvent) {
	switch {
	case e.Output:
		text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(e.Text) // progress, line by line
		a.Notef("%s", term.Painted(term.Visible(text)))
	case e.Cached:
		a.Notef("%s %s\n", a.Paint(a.Stderr, term.Cyan, fmt.Sprintf("[%d/%d] cached", e.Step, e.Steps)), term.OneLine(e.Text, 100))
	default:
		a.Notef("%s %s\n", a.Paint(a.Stderr, term.Cyan, fmt.Sprintf("[%d/%d]", e.Step, e.Steps)), term.OneLine(e.Text, 100))
	}
}

func (a templateCommands) templateListCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List templates", Args: cobra.NoArgs, Example: `  atoll template ls --json`}
	return resource.DaemonList(a.Env, cmd, "NAME TAG IMAGE SIZE VISIBILITY CREATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]durable.Template, error) {
		return c.Templates(ctx)
	}, func(t durable.Template) []string {
		return []string{t.Name, t.Tag, short(t.Image), units.BytesSize(float64(t.Size)), visibility(t.Public), term.Ago(t.Created)}
	})
}

// short is the part of a digest that people read.
func short(digest string) string {
	_, hex, _ := strings.Cut(digest, ":")
	return hex[:min(12, len(hex))]
}

func (a templateCommands) templateInspectCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "inspect NAME[:TAG]", Short: "Show a template as JSON", Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.TemplateNames), Example: `  atoll template inspect tools`}
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		t, err := c.Template(ctx, args[0])
		if err != nil {
			return err
		}
		return a.PrintJSON(t)
	})
	return cmd
}

func (a templateCommands) templateTagCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "tag NAME[:TAG] NEW[:TAG]", Short: "Give a template one more name", Args: cobra.ExactArgs(2), ValidArgsFunction: resource.CompleteOf(a.Env, resource.TemplateNames), Example: `  atoll template tag tools tools:stable`}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.MustDaemon(ctx)
		if err == nil {
			_, err = c.TagTemplate(ctx, args[0], args[1])
		}
		return err
	})
	return cmd
}

func visibility(public bool) string {
	if public {
		return "public"
	}
	return "private"
}

func (a templateCommands) templatePublishCmd() *cobra.Command {
	return a.visibilityCmd(&cobra.Command{
		Use: "publish NAME", Short: "Let other tenants use a template",
		Long: `Publish lets other tenants make sandboxes from all tags of a template, those that are
built later included, and build their own templates from it. They name it
TENANT/NAME[:TAG], cannot change it, and do not see it in lists. It needs an admin key.
A template whose image needs a password cannot be published.`,
		Example: `  atoll template publish tools`,
	}, (*atoll.Client).PublishTemplate)
}

func (a templateCommands) templateUnpublishCmd() *cobra.Command {
	return a.visibilityCmd(&cobra.Command{
		Use: "unpublish NAME", Short: "Stop other tenants from using a template",
		Long: `Unpublish keeps other tenants from making more sandboxes from a template. Their
sandboxes, and what they built from the template, stay.`,
		Example: `  atoll template unpublish tools`,
	}, (*atoll.Client).UnpublishTemplate)
}

func (a templateCommands) visibilityCmd(cmd *cobra.Command, set func(*atoll.Client, context.Context, string) (durable.Visibility, error)) *cobra.Command {
	var asJSON bool
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), resource.CompleteOf(a.Env, resource.TemplateBareNames)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, args []string) error {
		v, err := set(c, ctx, args[0])
		switch {
		case err != nil:
		case asJSON:
			err = a.PrintJSON(v)
		case v.Public:
			err = a.Printf("template:%s\n", v.Name)
		}
		return err
	})
	return cmd
}

func (a templateCommands) templateRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "rm NAME[:TAG]...", Short: "Remove names of templates", Args: cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.TemplateNames), Example: `  atoll template rm tools:stable`}
	return resource.DaemonRemove(a.Env, cmd, "", func(ctx context.Context, c *atoll.Client, name string, _ bool) error {
		return c.RemoveTemplate(ctx, name)
	})
}

func (a templateCommands) templatePruneCmd() *cobra.Command {
	var unused resource.DurationFlag
	var asJSON bool
	cmd := &cobra.Command{Use: "prune", Short: "Remove the build cache; templates stay", Args: cobra.NoArgs, Example: `  atoll template prune --unused 24h`}
	unused = resource.DurationFlag(7 * 24 * time.Hour)
	cmd.Flags().Var(&unused, "unused", "only entries that no build has used for this long")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		freed, err := c.PruneTemplates(ctx, time.Duration(unused))
		switch {
		case err != nil:
		case asJSON:
			err = a.PrintJSON(map[string]int64{"bytes": freed})
		default:
			err = a.Println("freed", units.BytesSize(float64(freed)))
		}
		return err
	})
	return cmd
}
