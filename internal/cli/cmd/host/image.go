//go:build linux

package host

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
)

// imageCommands are atoll image.
type imageCommands struct{ *target.Env }

func (a imageCommands) imageCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use:   "image",
		Short: "What the files of sandboxes come from",
		Long: `An image is a root file system with a default command. "host" is always there.
Other images are fetched when they are first used, or with these commands.`,
		Example: `  atoll image ls`,
		GroupID: resource.GroupMachine,
	}, a.imagePullCmd(), a.imageImportCmd(), a.imageLsCmd(), a.imageInspectCmd(), a.imageRmCmd(), a.imagePruneCmd())
}

// getFlags are shared by the commands that fetch an image.
type getFlags struct {
	platform string
	quiet    bool
}

func (f *getFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.platform, "platform", "", "platform of the image, such as linux/amd64")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "show no progress")
}

// get fetches an image by means of the store's method how, showing progress,
// and prints its digest.
func (a imageCommands) get(f *getFlags, policy image.Policy, how func(*image.Store, image.GetOptions) (*image.Image, error)) error {
	store, err := request.ImageStore(a.Env)
	if err != nil {
		return err
	}
	show, done := target.Progress(a.Env, f.quiet)
	defer done()
	opts := image.GetOptions{Policy: policy, Platform: f.platform}
	if show != nil {
		opts.Progress = func(p image.Progress) { show(engine.Progress{Phase: p.String(), Done: p.Done, Total: p.Total}) }
	}
	img, err := how(store, opts)
	if err != nil {
		return err
	}
	done()
	return a.Println(img.Digest)
}

func (a imageCommands) imagePullCmd() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Fetch an image, or its newest version",
		Long: `Pull fetches an image from its registry, even if it is already here, and prints
its digest. It uses the credentials that docker login stored.`,
		Example: `  atoll image pull debian:12`,
		Args:    cobra.ExactArgs(1),
	}
	f.register(cmd)
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		return a.get(&f, image.PolicyAlways, func(s *image.Store, opts image.GetOptions) (*image.Image, error) {
			return s.Get(ctx, args[0], opts)
		})
	})
	return cmd
}

func (a imageCommands) imageImportCmd() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "import SOURCE NAME",
		Short: "Give a name to an image from a file or directory",
		Long: `Import reads an image from tar:FILE or dir:DIR (a root file system),
docker-archive:FILE (what docker save writes) or oci:DIR[:TAG], gives it a name
such as myapp:1 and prints its digest. Without a type, it looks at the file or
directory. A daemon with --blobs saves the image there, for all machines with the
same database.`,
		Example: `  atoll image import tar:rootfs.tar myapp:1`,
		Args:    cobra.ExactArgs(2),
	}
	f.register(cmd)
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		return a.get(&f, image.PolicyMissing, func(s *image.Store, opts image.GetOptions) (*image.Image, error) {
			return s.Import(ctx, imageSource(args[0]), args[1], opts)
		})
	})
	return cmd
}

func (a imageCommands) imageLsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the images that are here",
		Long: `Ls lists images. SIZE is what an image takes on disk and UNIQUE how much of that it
does not share with other images: a template shares the files of what it was made
of.`,
		Example: `  atoll image ls
  atoll image ls --json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = a.withImages(func(ctx context.Context, store *image.Store, _ []string) error {
		all, err := store.List(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			out := make([]imageInfo, 0, len(all))
			for _, img := range all {
				out = append(out, describe(img))
			}
			return a.PrintJSON(out)
		}
		rows := make([][]string, 0, len(all))
		templates := a.templatesByImage(ctx)
		for _, img := range all {
			rows = append(rows, []string{cmp.Or(strings.Join(shownNames(img, templates[img.Digest]), ","), "-"), shortDigest(img.Digest), img.Platform, term.Ago(img.Pulled), units.BytesSize(float64(img.Size)), units.BytesSize(float64(img.Unique))})
		}
		return a.Table("NAME DIGEST PLATFORM PULLED SIZE UNIQUE", rows)
	})
	return cmd
}

// shownNames returns the names of an image for display: its templates' names
// replace the internal names of builds.
func shownNames(img *image.Image, templates []string) []string {
	names := slices.Clone(img.Names)
	if len(templates) > 0 {
		names = slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, template.NamePrefix) })
	}
	return append(names, templates...)
}

// templatesByImage returns the names of each image's templates, by digest.
// Without a running daemon it is empty.
func (a imageCommands) templatesByImage(ctx context.Context) map[string][]string {
	c, err := a.Daemon(ctx)
	if err != nil || c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, target.PingTimeout)
	defer cancel()
	all, err := c.Templates(ctx)
	if err != nil {
		return nil
	}
	names := map[string][]string{}
	for _, t := range all {
		names[t.Image] = append(names[t.Image], "template:"+t.Name+":"+t.Tag)
	}
	return names
}

// imageInfo is an image as --json shows it.
type imageInfo struct {
	Ref      string       `json:"ref"`
	Names    []string     `json:"names"`
	Digest   string       `json:"digest"`
	Platform string       `json:"platform"`
	Created  string       `json:"created,omitempty"`
	Pulled   string       `json:"pulled"`
	Size     int64        `json:"size"`   // bytes on disk
	Unique   int64        `json:"unique"` // … that no other image shares
	Layers   []string     `json:"layers"` // the upper one first
	Config   image.Config `json:"config"`
}

func describe(img *image.Image) imageInfo {
	const layout = "2006-01-02T15:04:05Z07:00"
	info := imageInfo{
		Ref: img.Ref, Names: append([]string{}, img.Names...), Digest: img.Digest, Platform: img.Platform,
		Pulled: img.Pulled.Format(layout), Size: img.Size, Unique: img.Unique, Layers: img.Layers, Config: img.Config,
	}
	if !img.Created.IsZero() {
		info.Created = img.Created.Format(layout)
	}
	return info
}

// shortDigest is enough of a digest to tell images apart by eye.
func shortDigest(digest string) string {
	algorithm, hex, ok := strings.Cut(digest, ":")
	if !ok || len(hex) < 12 {
		return digest
	}
	return algorithm + ":" + hex[:12]
}

func (a imageCommands) imageInspectCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect IMAGE",
		Short:             "Show an image in detail, as JSON",
		Example:           `  atoll image inspect debian:12`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: request.CompleteImages(a.Env),
	}
	cmd.RunE = a.withImages(func(ctx context.Context, store *image.Store, args []string) error {
		img, err := store.Inspect(ctx, args[0])
		if err != nil {
			return err
		}
		return a.PrintJSON(describe(img))
	})
	return cmd
}

func (a imageCommands) imageRmCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images, or names of images",
		Long: `Rm removes a name and, if it was the last one, the image. An image that a sandbox
(running or at rest), a snapshot or a template needs stays until that is gone. With
a daemon that has --blobs, the name of an imported image is removed on all machines
with the same database.`,
		Example:           `  atoll image rm debian:12`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: request.CompleteImages(a.Env),
	}
	cmd.RunE = a.withImages(func(ctx context.Context, store *image.Store, args []string) error {
		store.Protect(a.imagePins)
		return resource.RemoveEach(ctx, a.Env, args, force, store.Remove)
	})
	resource.ForceFlag(cmd.Flags(), &force, "")
	return cmd
}

// imagePins asks the daemon of the state directory which images what rests
// needs. Where none has ever run there is nothing that rests.
func (a imageCommands) imagePins(ctx context.Context) ([]image.Pin, error) {
	c, err := atoll.New(atoll.Options{Host: "unix://" + a.Socket()})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	uses, err := c.Admin().ImageUses(ctx)
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		switch {
		case !a.hadDaemon():
			return nil, nil
		case a.NoDaemon():
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnavailable, Message: "no daemon runs, so the images that sandboxes at rest need are unknown", Hint: "start it with: atoll up --detach", Cause: err,
			}
		}
		if err := target.StartNoted(ctx, a.Env); err != nil {
			return nil, err
		}
		uses, err = c.Admin().ImageUses(ctx)
	}
	pins := make([]image.Pin, len(uses))
	for i, u := range uses {
		pins[i] = image.Pin(u)
	}
	return pins, err
}

// hadDaemon reports whether a daemon has ever run in the state directory.
func (a imageCommands) hadDaemon() bool {
	for _, file := range []string{"atoll.db", "node.json"} { // its store, or its place in a shared one
		if _, err := os.Stat(filepath.Join(filepath.Dir(a.Socket()), file)); err == nil {
			return true
		}
	}
	return false
}

// withImages adapts a command that works on the images of the node.
func (a imageCommands) withImages(run func(context.Context, *image.Store, []string) error) func(*cobra.Command, []string) error {
	return resource.Interruptible(func(ctx context.Context, args []string) error {
		store, err := request.ImageStore(a.Env)
		if err != nil {
			return err
		}
		return run(ctx, store, args)
	})
}
