package remote

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Images are images of this daemon for a Lender. It must be safe for concurrent
// use.
type Images interface {
	// Find returns the image of a Spec, if the other daemon cannot get it itself and
	// the sandbox may use it. refused means that the other daemon could not. Nil:
	// there is none.
	Find(ctx context.Context, spec *sandbox.Spec, refused bool) (Image, error)
}

// Image is an image that is sent to the other daemon.
type Image interface {
	// Digest is its digest there.
	Digest() string
	// Write writes the archive for Client.ImportImage.
	Write(ctx context.Context, w io.Writer) error
}

// CheckImage implements driver.ImageChecker. Files of this machine are sent.
func (p Lender) CheckImage(image string) error {
	if p.Images != nil {
		return nil
	}
	return p.Provider.CheckImage(image)
}

// Create implements driver.Provider.
func (p Lender) Create(ctx context.Context, spec *sandbox.Spec) (in driver.Instance, err error) {
	err = p.lend(ctx, spec, func(spec *sandbox.Spec) error {
		in, err = p.Provider.Create(ctx, spec)
		return err
	})
	return in, err
}

// Restore implements driver.Restorer. The other daemon knows which image the
// snapshot needs.
func (p Lender) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (in driver.Instance, how driver.Restored, err error) {
	err = p.lend(ctx, spec, func(spec *sandbox.Spec) error {
		in, how, err = p.Provider.Restore(ctx, spec, ref)
		return err
	})
	return in, how, err
}

// RestoreFiles implements driver.FileRestorer.
func (p Lender) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (in driver.Instance, err error) {
	err = p.lend(ctx, spec, func(spec *sandbox.Spec) error {
		in, err = p.Provider.RestoreFiles(ctx, spec, ref)
		return err
	})
	return in, err
}

// lend calls do with a Spec. If the other daemon lacks its image and this one has
// it, it is sent, once for all callers, and do is called again.
func (p Lender) lend(ctx context.Context, spec *sandbox.Spec, do func(*sandbox.Spec) error) error {
	if p.Images == nil || p.client == nil {
		return do(spec)
	}
	img, err := p.Images.Find(ctx, spec, false)
	if err != nil {
		return err
	}
	try := func() error {
		if img == nil {
			return do(spec)
		}
		lent := *spec
		lent.Image = img.Digest()
		return do(&lent)
	}
	err = try()
	if img == nil && refused(err) {
		own, failed := p.Images.Find(ctx, spec, true)
		if failed != nil {
			return errors.Join(err, failed)
		}
		if own == nil {
			return err
		}
		img = own
		err = try()
	}
	if img == nil || !lacks(err, img) {
		return err
	}
	select { // one at a time
	case p.lending <- struct{}{}:
		defer func() { <-p.lending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err = try(); !lacks(err, img) {
		return err // another caller sent it
	}
	if err := p.send(ctx, img); err != nil {
		return err
	}
	return try()
}

// refused reports whether the other daemon was not given an image by a registry.
func refused(err error) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && ofImage(e) && (e.Code == sandbox.CodeNotFound || e.Code == sandbox.CodeDenied || e.Code == sandbox.CodeUnauthorized)
}

// ofImage reports whether an error is about getting an image.
func ofImage(e *sandbox.Error) bool { return strings.HasPrefix(e.Op, "image.") }

// lacks reports whether the other daemon does not have an image.
func lacks(err error, img Image) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && e.Code == sandbox.CodeNotFound && e.Subject == img.Digest()
}

func (p Lender) send(ctx context.Context, img Image) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(img.Write(ctx, w))
	}()
	err := p.client.ImportImage(ctx, img.Digest(), r)
	r.CloseWithError(err)
	<-done
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "remote.create", Subject: p.host, Message: "the other daemon cannot be sent images: its release is older"}
	}
	return p.explain(err)
}
