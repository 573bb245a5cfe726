package api

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// Ports gives access to servers inside a sandbox.
type Ports interface {
	// DialPort connects to a port of a running sandbox. The caller closes the
	// connection, which has a CloseWrite.
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)
	// SharePorts makes a token for ports. No ports means all.
	SharePorts(ctx context.Context, ref string, ports []uint16, life time.Duration) (token string, expires time.Time, err error)
	// Preview asks the provider for a URL of a port, and Unpreview removes it.
	Preview(ctx context.Context, ref string, req sandbox.PreviewRequest) (sandbox.Preview, error)
	Unpreview(ctx context.Context, ref string, port uint16) error
	// Previews returns the ports that have such a URL, without tokens.
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
		Previews []sandbox.Preview `json:"previews" doc:"by port, without tokens"`
	}
}

// previews registers the operations on the provider's URLs of ports.
func (a *API) previews() {
	create := sometimes(operation("createPreview", http.MethodPost, "/v1/sandboxes/{ref}/previews", "Ports", "Get a URL of the provider for an HTTP server inside; requests need the token", ops.SandboxFind, ops.PreviewCreate), ops.PreviewPublic)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *previewInput) (*previewOutput, error) {
		p, err := a.services.Ports.Preview(ctx, in.Ref, in.Body)
		return &previewOutput{p}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("listPreviews", http.MethodGet, "/v1/sandboxes/{ref}/previews", "Ports", "List the ports that have a URL of the provider", ops.SandboxFind, ops.PreviewList),
		func(ctx context.Context, in *SandboxRef) (*previewsOutput, error) {
			all, err := a.services.Ports.Previews(ctx, in.Ref)
			out := &previewsOutput{}
			out.Body.Previews = all
			return out, a.problem(ctx, err)
		})
	remove := operation("removePreview", http.MethodDelete, "/v1/sandboxes/{ref}/previews/{port}", "Ports", "Remove the provider's URL of a port", ops.SandboxFind, ops.PreviewRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *unpreviewInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Ports.Unpreview(ctx, in.Ref, in.Port))
	})
}

// PublishedPorts are ports of the machine that are forwarded to sandboxes.
type PublishedPorts interface {
	// Publish returns the port with its defaults filled in.
	Publish(ctx context.Context, ref string, p sandbox.PublishedPort) (sandbox.PublishedPort, error)
	// Unpublish stops listening. An empty address means every address.
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
	Address  string `query:"address" maxLength:"45" doc:"only this address of the machine; every address if left out"`
}

type publishedOutput struct {
	Body struct {
		Ports []sandbox.Publication `json:"ports" doc:"by the names of the sandboxes"`
	}
}

// published registers the operations on published ports.
func (a *API) published() {
	huma.Register(a.huma, operation("listPublishedPorts", http.MethodGet, "/v1/published-ports", "Ports", "List the published ports", ops.PortList),
		func(ctx context.Context, _ *struct{}) (*publishedOutput, error) {
			all, err := a.services.PublishedPorts.Published(ctx)
			out := &publishedOutput{}
			out.Body.Ports = all
			return out, a.problem(ctx, err)
		})
	publish := operation("publishPort", http.MethodPost, "/v1/sandboxes/{ref}/published-ports", "Ports", "Publish a port of a sandbox on the daemon's machine, as long as the sandbox exists; only for the owner of the machine", ops.PortPublish)
	publish.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, publish, func(ctx context.Context, in *publishInput) (*publishOutput, error) {
		p, err := a.services.PublishedPorts.Publish(ctx, in.Ref, in.Body)
		return &publishOutput{p}, a.problem(ctx, err)
	})
	unpublish := operation("unpublishPort", http.MethodDelete, "/v1/sandboxes/{ref}/published-ports/{hostPort}", "Ports", "Stop publishing a port", ops.PortUnpublish)
	unpublish.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, unpublish, func(ctx context.Context, in *unpublishInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.PublishedPorts.Unpublish(ctx, in.Ref, in.Address, in.HostPort))
	})
}

// NewPortToken asks for a token.
type NewPortToken struct {
	Ports     []uint16 `json:"ports,omitempty" maxItems:"64" doc:"ports that the token is valid for; all if left out"`
	ExpiresMS int64    `json:"expiresMs,omitempty" minimum:"0" doc:"lifetime of the token in milliseconds; a day if it is left out"`
}

// SandboxUsage is the resource usage of a sandbox. An unknown figure is
// negative.
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
	share := operation("createPortToken", http.MethodPost, "/v1/sandboxes/{ref}/port-tokens", "Ports", "Create a token that gives its bearer access to ports of a sandbox; it is only in this response", ops.SandboxFind, ops.PortShare)
	share.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, share, func(ctx context.Context, in *portTokenInput) (*portTokenOutput, error) {
		token, expires, err := a.services.Ports.SharePorts(ctx, in.Ref, in.Body.Ports, milliseconds(in.Body.ExpiresMS))
		return &portTokenOutput{sandbox.PortToken{Token: token, Expires: expires}}, a.problem(ctx, err)
	})
	a.raw(operation("openPort", http.MethodGet, "/v1/sandboxes/{ref}/ports/{port}", "Ports", "Connect to a port over a WebSocket", ops.SandboxFind, ops.PortOpen), nil, "", "websocket", a.openPort)
	huma.Register(a.huma, operation("usage", http.MethodGet, "/v1/sandboxes/{ref}/usage", "Sandboxes", "Get the resource usage of a sandbox", ops.SandboxUsage),
		func(ctx context.Context, in *SandboxRef) (*usageOutput, error) {
			u, err := a.services.Sandboxes.Usage(ctx, in.Ref)
			out := &usageOutput{SandboxUsage{CPUMS: u.CPU.Milliseconds(), Memory: u.Memory, Disk: u.Disk, PIDs: u.PIDs, Sampled: u.Sampled}}
			if u.CPU < 0 {
				out.Body.CPUMS = -1
			}
			return out, a.problem(ctx, err)
		})
}

// openPort forwards one connection to a port. It dials before it upgrades to a
// WebSocket, so that a port without a server gets an HTTP error.
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
	ws, err := Upgrade(w, r)
	if err != nil || ws == nil {
		return err
	}
	outside := stream.NewTunnel(ws, "caller")
	defer outside.Abort()
	stream.Join(r.Context(), outside, stream.AsDuplex(conn))
	return nil
}
