package boxlite

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/atoll-run/atoll/driver"
)

var _ driver.Dialer = (*Instance)(nil)

// Dial implements driver.Dialer. With Options.Tunnels it uses a tunnel of the
// server. Where tunnels do not work, it uses the guest: for servers that listen
// only on the loopback, and for boxes without a network.
func (in *Instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if in.p.opts.Tunnels && in.p.Of(in.ID(), in.Sandbox).Network != in.p.network(nil).digest() {
		if conn, err := in.tunnel(ctx, port); err == nil {
			return conn, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return in.Instance.Dial(ctx, port)
}

// patience limits how long opening a tunnel may take before the guest is used.
const patience = 10 * time.Second

// tunnel connects to a port through the server, which returns an address of a
// proxy for the port. The address is public and needs no credential.
func (in *Instance) tunnel(ctx context.Context, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var said struct {
		URI string `json:"uri"`
	}
	if err := in.p.api.call(ctx, http.MethodPost, fmt.Sprintf("/boxes/%s/network/tunnel?port=%d", in.Sandbox, port), nil, &said); err != nil {
		return nil, err
	}
	u, err := url.Parse(said.URI)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, in.p.ProtocolError("the server names no address of the tunnel")
	}
	conn, err := dial(ctx, u)
	if err != nil {
		return nil, in.p.api.Unreachable(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	through, err := in.connect(ctx, conn, u.Host)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return through, nil
}

// dial connects to the host of an address.
func dial(ctx context.Context, u *url.URL) (net.Conn, error) {
	port := u.Port()
	if u.Scheme == "http" {
		if port == "" {
			port = "80"
		}
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	}
	if port == "" {
		port = "443"
	}
	d := tls.Dialer{Config: &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
}

// connect makes a proxy connect to the port that belongs to the proxy's address.
func (in *Instance) connect(ctx context.Context, conn net.Conn, host string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Host: host}, Host: host, Header: http.Header{}}
	if err := req.Write(conn); err != nil {
		return nil, in.p.api.Unreachable(ctx, err)
	}
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, in.p.api.Unreachable(ctx, err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, in.p.api.Refused(res)
	}
	return &tunnelConn{Conn: conn, r: r}, nil
}

// tunnelConn is a connection. Its first bytes came with the proxy's answer.
type tunnelConn struct {
	net.Conn
	r *bufio.Reader
}

func (t *tunnelConn) Read(p []byte) (int, error) { return t.r.Read(p) }

// CloseWrite closes the sending direction only.
func (t *tunnelConn) CloseWrite() error {
	half, ok := t.Conn.(interface{ CloseWrite() error })
	if !ok {
		return net.ErrClosed
	}
	return half.CloseWrite()
}
