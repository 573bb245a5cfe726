package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/server/bridgeapi"
)

// Bridge configures the API of Cloudflare's sandbox bridge. The zero value
// disables it.
type Bridge struct {
	// Listen is a TCP address. Without TLS it must be a loopback address.
	Listen string
	TLS    *tls.Config
}

func (d *Daemon) listenBridge(context.Context) error {
	opts := d.opts.Bridge
	if opts.Listen == "" {
		return nil
	}
	l, err := listenTCP(opts.Listen, opts.TLS, true, "http/1.1") // WebSockets need HTTP/1.1
	if err != nil {
		return err
	}
	d.bridge = l.Addr()
	secret, err := secretFile(filepath.Join(d.node.Dir(), "bridge.secret"))
	if err != nil {
		return errors.Join(err, l.Close())
	}
	handler := bridgeapi.New(d.bridgeServices(), bridgeapi.Options{Secret: secret, Logger: d.opts.Logger})
	srv := server.New(server.Config{Handler: d.otel.Wrap(handler), Ready: d.recovered, Logger: d.opts.Logger})
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), d.opts.Drain)
		defer cancel()
		return errors.Join(srv.Shutdown(ctx), handler.Close())
	})
	d.serveWith(srv, l)
	return nil
}

// bridgeServices returns the control services for the bridge API.
func (d *Daemon) bridgeServices() bridgeapi.Services {
	return bridgeapi.Services{
		Authenticate: d.authenticateKey, Open: d.openForBridge, HasImage: d.hasImage,
		Allow:     func(ctx context.Context, op ops.Op) error { return rights{d.services.Exec}.Allow(ctx, "", op) },
		Sandboxes: d.services.Sandboxes.Public(), Templates: d.services.Templates, Profiles: d.services.Profiles,
		Ports: d.services.Exec, Entrance: d.services.Sandboxes.Entrance,
	}
}

// bridgeSandbox adapts a sandbox to the bridge API.
type bridgeSandbox struct{ *exec.Handle }

func (s bridgeSandbox) Files() bridgeapi.Files { return s.Sandbox.Files() }

func (d *Daemon) openForBridge(ctx context.Context, ref string) (bridgeapi.Sandbox, error) {
	b, err := d.services.Exec.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	return bridgeSandbox{b}, nil
}

// Bridge returns the address of the bridge API, nil if it is disabled.
func (d *Daemon) Bridge() net.Addr { return d.bridge }
