package image

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// Pin is an image needed by something that is not running: a stopped sandbox, a
// snapshot, a template. Running sandboxes hold a lock instead.
type Pin struct {
	Image string // a name, or the digest
	By    string // what needs it, for error messages
}

// Protect sets a function that returns images to keep. It is called before
// images are removed; if it fails, all are kept. Call Protect before using the
// store.
func (s *Store) Protect(pins func(context.Context) ([]Pin, error)) { s.pins = pins }

// pinned returns what needs the images of x, by digest.
func (s *Store) pinned(ctx context.Context, x *index) (map[string]string, error) {
	if s.pins == nil {
		return nil, nil
	}
	all, err := s.pins(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string]string{}
	for _, p := range all {
		if rec, _, err := x.find("image.pin", p.Image); err == nil && by[rec.Digest] == "" {
			by[rec.Digest] = p.By
		}
	}
	return by, nil
}

// newSweeper returns a sweeper that keeps pinned images.
func (s *Store) newSweeper(ctx context.Context, x *index) (*sweeper, error) {
	pinned, err := s.pinned(ctx, x)
	return &sweeper{pinned: pinned}, err
}

// spare returns an error for a pinned image.
func (w *sweeper) spare(rec *imageRecord) error {
	if by := w.pinned[rec.Digest]; by != "" {
		return fail(sandbox.CodeConflict, "image.rm", rec.Digest, "remove that first", "the image is needed by %s", by)
	}
	return nil
}
