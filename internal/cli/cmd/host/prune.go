//go:build linux

package host

import (
	"context"
	"fmt"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/image"
)

func (a imageCommands) imagePruneCmd() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images",
		Long: `Prune removes images without a name and the rest of interrupted downloads. With
--all it also removes every image that no sandbox, snapshot or template needs.`,
		Example: `  atoll image prune
  atoll image prune --all`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove all images that no sandbox uses")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = a.withImages(func(ctx context.Context, store *image.Store, _ []string) error {
		store.Protect(a.imagePins)
		report, err := store.Prune(ctx, image.PruneOptions{All: all})
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(pruned{append([]string{}, report.Images...), report.Files, report.Bytes, report.Busy})
		}
		for _, digest := range report.Images {
			if err := a.Println(digest); err != nil {
				return err
			}
		}
		if report.Busy {
			a.Say("warning", "an image is being fetched; some files were left alone")
		}
		a.Notef("freed %s\n", units.BytesSize(float64(report.Bytes)))
		return a.noteLeft(ctx, store, all)
	})
	return cmd
}

// pruned is the --json output about removed objects.
type pruned struct {
	Images []string `json:"images"` // digests
	Files  int      `json:"files"`
	Bytes  int64    `json:"bytes"`
	Busy   bool     `json:"busy,omitempty"` // an image was being fetched, so some files were left alone
}

// noteLeft says what still takes space, and what frees it.
func (a imageCommands) noteLeft(ctx context.Context, store *image.Store, all bool) error {
	left, err := store.List(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	more := "remove those that nothing needs with: atoll image prune --all"
	if all {
		more = "sandboxes, snapshots and templates need them; see: atoll ls --all, atoll snapshot ls and atoll template ls"
	}
	a.Say("note", fmt.Sprintf("%d images stay, see their sizes with: atoll image ls; %s", len(left), more))
	return nil
}
