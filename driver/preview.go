package driver

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// Previewer is implemented by instances whose provider can give an HTTP server
// inside an address of its own, at which it is reached without Atoll. No port has
// one until somebody asks. The addresses end with the sandbox, if not before.
type Previewer interface {
	// Preview gives a port an address. Unless req.Public is set, the provider
	// refuses requests without the token. A port that has an address keeps it: then
	// the access is changed if req asks for another one, and there is a new token;
	// the earlier ones may stay valid. A port that the provider does not show is
	// CodeInvalid. On an error the port has no address that it did not have before.
	Preview(ctx context.Context, req sandbox.PreviewRequest) (sandbox.Preview, error)
	// Unpreview takes the address of a port away, for those with a token too. A
	// port without one is success.
	Unpreview(ctx context.Context, port uint16) error
	// Previews returns the ports that have an address, in order and without tokens.
	Previews(ctx context.Context) ([]sandbox.Preview, error)
}
