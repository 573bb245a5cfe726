package engine

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// HostImage is the default image: a read-only view of the machine's own
// programs.
const HostImage = plan.HostImage

// Images provides images and their configuration.
type Images interface {
	// Ensure pulls the image if necessary, according to the request's Pull.
	Ensure(ctx context.Context, req ImageRequest) (ImageConfig, error)
	// ErrorCode returns the code of an error of Ensure, or "" if it is unknown.
	ErrorCode(err error) sandbox.Code
}

// Pull is when an image is pulled.
type Pull string

// The pull policies, with Docker's names.
const (
	PullMissing Pull = "missing" // if it is not here
	PullAlways  Pull = "always"  // even if it is here, in case it has changed
	PullNever   Pull = "never"
)

// ImageRequest is a request for an image.
type ImageRequest struct {
	Ref      string
	Tenant   string // for whom: it may use the images of its templates from the blob store
	Platform string // "os/arch[/variant]"; empty: this machine's
	Pull     Pull   // empty: missing
	// Progress is called during a pull, by one goroutine at a time. It may be nil.
	Progress func(Progress)
}

// Progress is the progress of a pull.
type Progress struct {
	Phase string // for display: "fetching", "building"
	Done  int64  // bytes
	Total int64  // bytes; 0 if unknown
}

// ImageConfig is an image's configuration for its commands.
type ImageConfig struct {
	Ref        string // the reference for the provider, with the digest
	Entrypoint []string
	Cmd        []string
	// Signatures are those found with the image, not verified.
	Signatures []policy.Signature
}

// CommandLine combines the command of an image with that of a request, as
// Docker does: args replace Cmd, and entrypoint, even an empty one, replaces
// the image's entrypoint and Cmd.
func CommandLine(img ImageConfig, entrypoint *string, args []string) []string {
	prefix, rest := img.Entrypoint, img.Cmd
	if entrypoint != nil {
		prefix, rest = nil, nil
		if *entrypoint != "" {
			prefix = []string{*entrypoint}
		}
	}
	if len(args) > 0 {
		rest = args
	}
	return append(append([]string(nil), prefix...), rest...)
}
