package driver

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// Previewer is implemented by instances whose provider can give an HTTP server
// inside a URL that does not lead through Atoll. A port has a URL only after
// Preview was called. The URLs end with the sandbox at the latest.
type Previewer interface {
	// Preview gives a port a URL. Unless req.Public is set, the provider refuses
	// requests without the token. A port that already has a URL keeps it. Its
	// access changes to req.Public, and there is a new token; earlier tokens may
	// stay valid. A port that the provider cannot expose is CodeInvalid. On an
	// error the port has no new URL.
	Preview(ctx context.Context, req sandbox.PreviewRequest) (sandbox.Preview, error)
	// Unpreview removes the URL of a port. Its tokens stop working. A port without
	// a URL is success.
	Unpreview(ctx context.Context, port uint16) error
	// Previews returns the ports that have a URL, by port and without tokens.
	Previews(ctx context.Context) ([]sandbox.Preview, error)
}
