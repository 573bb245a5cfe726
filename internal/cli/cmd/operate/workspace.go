package operate

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// workspaceCommands are atoll workspace.
type workspaceCommands struct{ *target.Env }

func (a workspaceCommands) workspaceCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "workspace", Short: "Manage versioned directories that outlive sandboxes", GroupID: resource.GroupDaemon,
		Long: `A workspace is a directory that outlives sandboxes, the daemon and the machine. A
sandbox (atoll run --workspace NAME) sees it at ` + sandbox.WorkspaceDir + `. When the sandbox is
removed, a new version of the workspace is saved. One sandbox at a time can write to
it, or any number can read it.`,
		Example: `  atoll workspace create notes
  atoll run --workspace notes -- sh -c 'date >>/workspace/log'
  atoll workspace history notes`,
	}, a.workspaceCreateCmd(), a.workspaceListCmd(), a.workspaceInspectCmd(), a.workspaceHistoryCmd(), a.workspaceDiffCmd(),
		a.workspaceRestoreCmd(), a.workspacePersistCmd(), a.workspacePruneCmd(), a.workspaceVerifyCmd(), a.workspaceRemoveCmd())
}

func (a workspaceCommands) workspaceCreateCmd() *cobra.Command {
	var opts durable.NewWorkspace
	var most resource.SizeFlag
	cmd := &cobra.Command{
		Use: "create [flags] NAME", Short: "Make an empty workspace", Args: cobra.ExactArgs(1),
		Long: `Create makes an empty workspace. With --bucket the workspace is an existing bucket:
each object is a file, and a file is uploaded as a whole when it is closed or synced,
or a second after the last write. Atoll keeps no copy of a bucket, so there is no
history, and removing the workspace does not change the bucket.`,
		Example: `  atoll workspace create --encrypt --max-size 10g notes`,
	}
	cmd.Flags().BoolVar(&opts.Encrypted, "encrypt", false, "encrypt what is stored with a key of the daemon")
	cmd.Flags().StringVar(&opts.Bucket, "bucket", "", "the workspace is this bucket of an S3 service, under the name it was given by atoll up --bucket; it has no versions")
	cmd.Flags().Var(&most, "max-size", "size limit of one version, in bytes; larger versions are not saved")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (durable.Workspace, error) {
		opts.Name, opts.MaxBytes = args[0], int64(most)
		return c.CreateWorkspace(ctx, opts)
	}, func(w durable.Workspace) error { return a.Printf("%s\n", w.Name) })
}

func attachedText(w durable.Workspace) string {
	var all []string
	for _, at := range w.Attached {
		all = append(all, fmt.Sprintf("%s (%s)", at.Sandbox, at.Mode))
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ", ")
}

func (a workspaceCommands) workspaceListCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List workspaces", Args: cobra.NoArgs, Example: `  atoll workspace ls`}
	return resource.DaemonList(a.Env, cmd, "NAME STATE ATTACHED CREATED", func(ctx context.Context, c *atoll.Client, _ []string) ([]durable.Workspace, error) {
		return c.Workspaces(ctx)
	}, func(w durable.Workspace) []string {
		state := "ok"
		if w.Problem != "" {
			state = "unsaved"
		}
		return []string{w.Name, state, attachedText(w), term.Ago(w.Created)}
	})
}

func (a workspaceCommands) workspaceInspectCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "inspect NAME", Short: "Show a workspace", Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames), Example: `  atoll workspace inspect notes`}
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (durable.Workspace, error) {
		return c.Workspace(ctx, args[0])
	}, func(w durable.Workspace) error {
		rows := [][]string{
			{"name", w.Name}, {"created", term.Ago(w.Created)}, {"encrypted", strconv.FormatBool(w.Encrypted)}, {"attached", attachedText(w)},
		}
		if w.Bucket != "" {
			rows = append(rows, []string{"bucket", w.Bucket})
		}
		if w.MaxBytes > 0 {
			rows = append(rows, []string{"largest version allowed", term.BytesText(w.MaxBytes)})
		}
		if v := w.Latest; v != nil {
			rows = append(rows, []string{"newest version", fmt.Sprintf("%d, %s, %d files, %s", v.Number, term.Ago(v.Created), v.Files, term.BytesText(v.Bytes))})
		}
		if w.Problem != "" {
			rows = append(rows, []string{"not persisted", w.Problem})
		}
		return a.Table("WHAT VALUE", rows)
	})
}

func (a workspaceCommands) workspaceHistoryCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history NAME", Short: "List the versions of a workspace, newest first", Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames), Example: `  atoll workspace history notes`,
	}
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) ([]durable.WorkspaceVersion, error) {
		return c.WorkspaceVersions(ctx, args[0])
	}, func(all []durable.WorkspaceVersion) error {
		rows := make([][]string, len(all))
		for i, v := range all {
			rows[len(all)-1-i] = []string{strconv.Itoa(v.Number), term.Ago(v.Created), strconv.FormatInt(v.Files, 10), term.BytesText(v.Bytes), term.BytesText(v.Added), v.Note}
		}
		return a.Table("VERSION CREATED FILES SIZE ADDED NOTE", rows)
	})
}

// versionArg reads the number of a version, such as 3 or v3.
func versionArg(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(text, "v"))
	if err != nil || n < 0 {
		return 0, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "version", Message: fmt.Sprintf("%.40q is not the number of a version", text), Hint: "list them with: atoll workspace history NAME"}
	}
	return n, nil
}

func (a workspaceCommands) workspaceDiffCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff NAME FROM [TO]", Short: "Show what changed between two versions", Args: cobra.RangeArgs(2, 3), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames),
		Long: `Diff lists what changed from one version to another, or to the newest: A is added,
D removed, M modified, and T touched (another mode, owner, time or attribute).`,
		Example: `  atoll workspace diff notes 1`,
	}
	type diff struct {
		Changes []durable.WorkspaceChange `json:"changes"`
		More    bool                      `json:"more,omitempty"`
	}
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (d diff, err error) {
		var numbers [2]int
		for i, text := range args[1:] {
			if numbers[i], err = versionArg(text); err != nil {
				return d, err
			}
		}
		d.Changes, d.More, err = c.DiffWorkspace(ctx, args[0], numbers[0], numbers[1])
		return d, err
	}, func(d diff) error {
		letters := map[string]string{"added": "A", "removed": "D", "modified": "M", "touched": "T"}
		for _, c := range d.Changes {
			if err := a.Printf("%s %s\n", letters[c.Kind], c.Path); err != nil {
				return err
			}
		}
		if d.More {
			return a.Printf("… and more\n")
		}
		return nil
	})
}

func (a workspaceCommands) workspaceRestoreCmd() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use: "restore [flags] NAME VERSION", Short: "Make an older version the newest", Args: cobra.ExactArgs(2), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames),
		Long: `Restore makes a new version with the content of an older one. The versions in between
stay in the history.`,
		Example: `  atoll workspace restore notes 1`,
	}
	cmd.Flags().StringVar(&note, "note", "", "kept with the new version (default: where it is from)")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (durable.WorkspaceVersion, error) {
		n, err := versionArg(args[1])
		if err != nil {
			return durable.WorkspaceVersion{}, err
		}
		if note == "" {
			note = fmt.Sprintf("version %d restored", n)
		}
		return c.RestoreWorkspace(ctx, args[0], n, note)
	}, func(v durable.WorkspaceVersion) error { return a.Printf("version %d\n", v.Number) })
}

func (a workspaceCommands) workspacePersistCmd() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use: "persist [flags] NAME", Short: "Save a version of a workspace now", Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames),
		Long: `Persist saves a version, even while a sandbox changes the workspace: each file is
consistent in itself, but not with other files. Removing the sandbox saves a version
anyway.`,
		Example: `  atoll workspace persist --note "before the upgrade" notes`,
	}
	cmd.Flags().StringVar(&note, "note", "", "kept with the version")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (durable.WorkspaceVersion, error) {
		return c.PersistWorkspace(ctx, args[0], note)
	}, func(v durable.WorkspaceVersion) error { return a.Printf("version %d\n", v.Number) })
}

func (a workspaceCommands) workspacePruneCmd() *cobra.Command {
	var keep atoll.Keep
	var within resource.DurationFlag
	cmd := &cobra.Command{
		Use: "prune [flags] NAME", Short: "Remove old versions and free their space", Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames),
		Long: `Prune removes the versions that neither flag keeps, except the newest, and the data
that no version needs. Without a flag it keeps all versions and only removes unused
data.`,
		Example: `  atoll workspace prune --keep-last 10 notes`,
	}
	cmd.Flags().IntVar(&keep.Last, "keep-last", 0, "keep this many of the newest")
	cmd.Flags().Var(&within, "keep-within", "keep all that are newer than this, such as 720h")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (durable.WorkspacePruned, error) {
		keep.Within = time.Duration(within)
		return c.PruneWorkspace(ctx, args[0], keep)
	}, func(p durable.WorkspacePruned) error {
		return a.Printf("%d versions forgotten, %s freed\n", len(p.Versions), term.BytesText(max(0, p.Freed)))
	})
}

func (a workspaceCommands) workspaceVerifyCmd() *cobra.Command {
	var deep bool
	cmd := &cobra.Command{
		Use: "verify [flags] NAME", Short: "Check that every version can be restored", Args: cobra.ExactArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames),
		Example: `  atoll workspace verify --deep notes`,
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read and check all stored data")
	return resource.DaemonVerb(a.Env, cmd, func(ctx context.Context, c *atoll.Client, args []string) (durable.WorkspaceReport, error) {
		return c.VerifyWorkspace(ctx, args[0], deep)
	}, func(r durable.WorkspaceReport) error {
		return a.Printf("%d versions in %d chunks, %s: complete\n", r.Versions, r.Chunks, term.BytesText(r.Bytes))
	})
}

func (a workspaceCommands) workspaceRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove workspaces with all their versions", Args: cobra.MinimumNArgs(1), ValidArgsFunction: resource.CompleteOf(a.Env, resource.WorkspaceNames), Example: `  atoll workspace rm notes`,
	}
	return resource.DaemonRemove(a.Env, cmd, "", func(ctx context.Context, c *atoll.Client, name string, _ bool) error {
		return c.RemoveWorkspace(ctx, name)
	})
}
