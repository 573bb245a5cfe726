package atoll

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// Dial connects to a TCP port inside the sandbox, from the sandbox's own
// loopback interface. So it also reaches servers that listen only on localhost.
// The context bounds the dialling only. A port on which no server listens is
// CodeUnavailable.
//
// The caller closes the connection. It has a method CloseWrite. Unlike with
// other connections, a deadline that passes closes it.
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	name := strconv.Itoa(int(port))
	ws, err := s.client.conn.WebSocket(ctx, s.path("/ports/"+name))
	if err != nil {
		return nil, err
	}
	return stream.NewTunnel(ws, s.Name()+":"+name), nil
}

// Publish makes the daemon listen on a port of its machine and forward
// connections to a port of the sandbox, as long as the sandbox exists. It
// returns p with the host port. A host port that is in use is CodeConflict.
// Only the owner of the machine may publish.
func (s *Sandbox) Publish(ctx context.Context, p sandbox.PublishedPort) (out sandbox.PublishedPort, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPost, s.path("/published-ports"), nil, p, &out)
}

// Unpublish makes the daemon stop listening on a host port for the sandbox, on
// every address.
func (s *Sandbox) Unpublish(ctx context.Context, hostPort uint16) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path("/published-ports/"+strconv.Itoa(int(hostPort))), nil, nil, nil)
}

// PublishedPorts returns the ports of the daemon's machine that are forwarded
// to sandboxes.
func (c *Client) PublishedPorts(ctx context.Context) ([]sandbox.Publication, error) {
	var out struct{ Ports []sandbox.Publication }
	err := c.conn.Call(ctx, http.MethodGet, "/v1/published-ports", nil, nil, &out)
	return out.Ports, err
}

// Preview asks the provider of the sandbox for a URL of an HTTP server inside.
// Requests to that URL do not pass through the daemon. Unless req.Public is
// set, they need the returned token in the returned header. If the port has a
// URL already, it is kept and gets a new token. A provider without such URLs is
// CodeUnsupported; see [Sandbox.PortURL] for the daemon's.
func (s *Sandbox) Preview(ctx context.Context, req sandbox.PreviewRequest) (p sandbox.Preview, err error) {
	return p, s.client.conn.Call(ctx, http.MethodPost, s.path("/previews"), nil, req, &p)
}

// Unpreview removes the provider's URL of a port. A port without one is
// success.
func (s *Sandbox) Unpreview(ctx context.Context, port uint16) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path("/previews/"+strconv.Itoa(int(port))), nil, nil, nil)
}

// Previews returns the ports that have a URL of the provider, without tokens.
func (s *Sandbox) Previews(ctx context.Context) ([]sandbox.Preview, error) {
	var out struct{ Previews []sandbox.Preview }
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/previews"), nil, nil, &out)
	return out.Previews, err
}

// PortTokenOptions are options of [Sandbox.PortToken]. The zero value is
// usable.
type PortTokenOptions struct {
	Ports   []uint16      // empty: all ports
	Expires time.Duration // from now; zero: a day
}

// TokenHeader is the header in which requests to a PortURL carry a token.
const TokenHeader = "Atoll-Token"

// PortToken makes a token for ports of the sandbox. It cannot be retrieved
// again.
func (s *Sandbox) PortToken(ctx context.Context, opts PortTokenOptions) (t sandbox.PortToken, err error) {
	in := map[string]any{"expiresMs": client.Milliseconds(opts.Expires)}
	if len(opts.Ports) > 0 {
		in["ports"] = opts.Ports
	}
	return t, s.client.conn.Call(ctx, http.MethodPost, s.path("/port-tokens"), nil, in, &t)
}

// PortURL returns the daemon's URL of an HTTP server on a port inside. Requests
// need a token from [Sandbox.PortToken] in [TokenHeader]. The Client must reach
// the daemon by a host name or over TCP on a loopback address; otherwise
// PortURL returns CodeUnsupported.
func (s *Sandbox) PortURL(port uint16) (string, error) {
	u, err := url.Parse(s.client.conn.Base)
	host := ""
	if err == nil && u.Host != localHost {
		host = u.Hostname()
	}
	if ip := net.ParseIP(host); ip != nil {
		if host = ""; ip.IsLoopback() {
			host = "localhost"
		}
	}
	label := strconv.Itoa(int(port)) + "-" + string(s.info.ID)
	if host == "" || port == 0 || len(label) > 63 {
		return "", &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "port.url", Subject: strconv.Itoa(int(port)), Message: "there is no host name for this port",
			Hint: "reach the daemon over TCP by a name that it was given with --host, or forward the port with: atoll port forward",
		}
	}
	host = label + "." + host
	if p := u.Port(); p != "" {
		host = net.JoinHostPort(host, p)
	}
	return u.Scheme + "://" + host, nil
}

// Usage returns the resources that the sandbox uses now.
func (s *Sandbox) Usage(ctx context.Context) (sandbox.Usage, error) {
	var out struct {
		CPUMS              int64 `json:"cpuMs"`
		Memory, Disk, PIDs int64
		Sampled            time.Time
	}
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/usage"), nil, nil, &out)
	u := sandbox.Usage{CPU: time.Duration(out.CPUMS) * time.Millisecond, Memory: out.Memory, Disk: out.Disk, PIDs: out.PIDs, Sampled: out.Sampled}
	if out.CPUMS < 0 {
		u.CPU = -1
	}
	return u, err
}
