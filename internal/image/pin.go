package image

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// Pin is an image that somebody needs who does not run: a sandbox that is
// stopped, a snapshot, a template. Running sandboxes hold a lock instead.
type Pin struct {
	Image string // a name, or the digest
	By    string // who needs it, for the error of whoever wants to remove it
}

// Protect has images kept that pins names, whenever one is to be removed. An
// error of pins keeps all. It is called before the store is used.
func (s *Store) Protect(pins func(context.Context) ([]Pin, error)) { s.pins = pins }

// pinned returns who needs the images of x, by digest.
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

// newSweeper returns what removes images but those that somebody needs.
func (s *Store) newSweeper(ctx context.Context, x *index) (*sweeper, error) {
	pinned, err := s.pinned(ctx, x)
	return &sweeper{pinned: pinned}, err
}

// spare refuses to remove an image that somebody needs.
func (w *sweeper) spare(rec *imageRecord) error {
	if by := w.pinned[rec.Digest]; by != "" {
		return fail(sandbox.CodeConflict, "image.rm", rec.Digest, "remove that first", "the image is needed by %s", by)
	}
	return nil
}
