package api

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// Ports reach what listens inside a sandbox.
type Ports interface {
	// DialPort connects to a port of a running sandbox. The caller closes the
	// connection, which has a CloseWrite.
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)
	// SharePorts makes a token for ports, all if none is given.
	SharePorts(ctx context.Context, ref string, ports []uint16, life time.Duration) (token string, expires time.Time, err error)
	// Preview gives a port an address of the provider's, and Unpreview takes it away.
	Preview(ctx context.Context, ref string, req sandbox.PreviewRequest) (sandbox.Preview, error)
	Unpreview(ctx context.Context, ref string, port uint16) error
	// Previews returns the ports with such an address, without tokens.
	Previews(ctx context.Context, ref string) ([]sandbox.Preview, error)
}

type previewInput struct {
	SandboxRef
	Body sandbox.PreviewRequest
}

type previewOutput struct{ Body sandbox.Preview }

type unpreviewInput struct {
	SandboxRef
	Port uint16 `path:"port" minimum:"1" doc:"port inside the sandbox"`
}

type previewsOutput struct {
	Body struct {
		Previews []sandbox.Preview `json:"previews" doc:"in the order of ports, without tokens"`
	}
}

// previews registers addresses that providers give to ports.
func (a *API) previews() {
	create := operation("createPreview", http.MethodPost, "/v1/sandboxes/{ref}/previews", "Ports", "Have the provider of the sandbox show an HTTP server inside at an address of its own, to whoever has the token")
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *previewInput) (*previewOutput, error) {
		p, err := a.services.Ports.Preview(ctx, in.Ref, in.Body)
		return &previewOutput{p}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listPreviews", http.MethodGet, "/v1/sandboxes/{ref}/previews", "Ports", "List the ports that its provider shows"),
		func(ctx context.Context, in *SandboxRef) (*previewsOutput, error) {
			all, err := a.services.Ports.Previews(ctx, in.Ref)
			out := &previewsOutput{}
			out.Body.Previews = all
			return out, a.problem(ctx, err)
		})
	remove := operation("removePreview", http.MethodDelete, "/v1/sandboxes/{ref}/previews/{port}", "Ports", "Have the provider no longer show a port")
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *unpreviewInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Ports.Unpreview(ctx, in.Ref, in.Port))
	})
}

// PublishedPorts are ports of the machine that lead to sandboxes.
type PublishedPorts interface {
	// Publish returns the port with what was left open.
	Publish(ctx context.Context, ref string, p sandbox.PublishedPort) (sandbox.PublishedPort, error)
	// Unpublish stops to listen; an empty address is any.
	Unpublish(ctx context.Context, ref, address string, hostPort uint16) error
	Published(ctx context.Context) ([]sandbox.Publication, error)
}

type publishInput struct {
	SandboxRef
	Body sandbox.PublishedPort
}

type publishOutput struct{ Body sandbox.PublishedPort }

type unpublishInput struct {
	SandboxRef
	HostPort uint16 `path:"hostPort" minimum:"1" doc:"port of the daemon's machine"`
	Address  string `query:"address" maxLength:"45" doc:"only at this address of the machine; at any if left out"`
}

type publishedOutput struct {
	Body struct {
		Ports []sandbox.Publication `json:"ports" doc:"in the order of sandboxes' names"`
	}
}

// published registers ports of the machine.
func (a *API) published() {
	huma.Register(a.huma, operation("listPublishedPorts", http.MethodGet, "/v1/published-ports", "Ports", "List the ports of the daemon's machine that lead to sandboxes"),
		func(ctx context.Context, _ *struct{}) (*publishedOutput, error) {
			all, err := a.services.PublishedPorts.Published(ctx)
			out := &publishedOutput{}
			out.Body.Ports = all
			return out, a.problem(ctx, err)
		})
	publish := operation("publishPort", http.MethodPost, "/v1/sandboxes/{ref}/published-ports", "Ports", "Have a port of the daemon's machine lead to one of the sandbox, for as long as the sandbox is there; only for the owner of the machine")
	publish.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, publish, func(ctx context.Context, in *publishInput) (*publishOutput, error) {
		p, err := a.services.PublishedPorts.Publish(ctx, in.Ref, in.Body)
		return &publishOutput{p}, a.problem(ctx, err)
	})
	unpublish := operation("unpublishPort", http.MethodDelete, "/v1/sandboxes/{ref}/published-ports/{hostPort}", "Ports", "Stop to listen on a port of the daemon's machine")
	unpublish.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, unpublish, func(ctx context.Context, in *unpublishInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.PublishedPorts.Unpublish(ctx, in.Ref, in.Address, in.HostPort))
	})
}

// NewPortToken asks for a token.
type NewPortToken struct {
	Ports     []uint16 `json:"ports,omitempty" maxItems:"64" doc:"which ports; all if none is named"`
	ExpiresMS int64    `json:"expiresMs,omitempty" minimum:"0" doc:"from now, in milliseconds; a day if it is left out"`
}

// SandboxUsage is what a sandbox consumes. A figure that is not known is negative.
type SandboxUsage struct {
	CPUMS   int64     `json:"cpuMs" doc:"processor time since it was made, in milliseconds"`
	Memory  int64     `json:"memory" doc:"bytes now, its kernel included"`
	Disk    int64     `json:"disk" doc:"bytes of the writable layer now"`
	PIDs    int64     `json:"pids" doc:"processes and threads now"`
	Sampled time.Time `json:"sampled"`
}

type portTokenInput struct {
	SandboxRef
	Body NewPortToken
}

type portTokenOutput struct{ Body sandbox.PortToken }

type usageOutput struct{ Body SandboxUsage }

func (a *API) ports() {
	a.published()
	a.previews()
	share := operation("createPortToken", http.MethodPost, "/v1/sandboxes/{ref}/port-tokens", "Ports", "Make a token with which anybody reaches ports of a sandbox; it is shown only now")
	share.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, share, func(ctx context.Context, in *portTokenInput) (*portTokenOutput, error) {
		token, expires, err := a.services.Ports.SharePorts(ctx, in.Ref, in.Body.Ports, milliseconds(in.Body.ExpiresMS))
		return &portTokenOutput{sandbox.PortToken{Token: token, Expires: expires}}, a.problem(ctx, err)
	})
	a.raw(operation("openPort", http.MethodGet, "/v1/sandboxes/{ref}/ports/{port}", "Ports", "Connect to a port over a WebSocket"), nil, "", "websocket", a.openPort)
	huma.Register(a.huma, operation("usage", http.MethodGet, "/v1/sandboxes/{ref}/usage", "Sandboxes", "What it consumes"),
		func(ctx context.Context, in *SandboxRef) (*usageOutput, error) {
			u, err := a.services.Sandboxes.Usage(ctx, in.Ref)
			out := &usageOutput{SandboxUsage{CPUMS: u.CPU.Milliseconds(), Memory: u.Memory, Disk: u.Disk, PIDs: u.PIDs, Sampled: u.Sampled}}
			if u.CPU < 0 {
				out.Body.CPUMS = -1
			}
			return out, a.problem(ctx, err)
		})
}

// openPort carries the bytes of one connection to a port. The connection is
// made first, so that a port nobody listens on is an answer of HTTP.
func (a *API) openPort(w http.ResponseWriter, r *http.Request) error {
	if err := isWebSocket(r); err != nil {
		return err
	}
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return invalid("port", "is not a number from 1 to 65535")
	}
	conn, err := a.services.Ports.DialPort(r.Context(), r.PathValue("ref"), uint16(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	ws, err := upgrade(w, r)
	if err != nil || ws == nil {
		return err
	}
	outside := stream.NewTunnel(ws, "caller")
	defer outside.Abort()
	stream.Join(r.Context(), outside, stream.AsDuplex(conn))
	return nil
}
