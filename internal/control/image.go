package control

import (
	"context"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// HostImage is the image of a request that names none: a read-only view of the
// machine's own toolchain.
const HostImage = "host"

// Images makes images available and tells what they want to run.
type Images interface {
	// Ensure fetches the image unless it is here already, as the request's
	// Pull demands.
	Ensure(ctx context.Context, req ImageRequest) (ImageConfig, error)
	// ErrorCode classifies an error of Ensure, "" if it does not know it.
	ErrorCode(err error) sandbox.Code
}

// Pull says when an image is fetched.
type Pull string

// The pull policies, as Docker names them.
const (
	PullMissing Pull = "missing" // when it is not here
	PullAlways  Pull = "always"  // also when it is, in case it changed
	PullNever   Pull = "never"
)

// ImageRequest asks for one image.
type ImageRequest struct {
	Ref      string
	Platform string // "os/arch[/variant]"; empty: this machine's
	Pull     Pull   // empty: missing
	// Progress is told how a fetch goes. It may be nil, and is called from
	// one goroutine at a time.
	Progress func(Progress)
}

// Progress is how far the fetching of an image has come.
type Progress struct {
	Phase string // what is being done, for a person: "fetching", "building"
	Done  int64  // bytes
	Total int64  // bytes; 0 if unknown
}

// ImageConfig is what an image says about the commands it wants to run.
type ImageConfig struct {
	Ref        string // what the provider is asked for: pinned to what was fetched
	Entrypoint []string
	Cmd        []string
	// Signatures lay beside it. Whether they are worth anything is not known.
	Signatures []policy.Signature
}

// CommandLine combines an image's wishes with a caller's as Docker does: the
// caller's arguments replace Cmd, and an entrypoint of the caller's, even an
// empty one, replaces the image's together with its Cmd.
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
