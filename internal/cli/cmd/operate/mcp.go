package operate

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/mcpserver"
)

// mcpCommands are atoll mcp.
type mcpCommands struct{ *target.Env }

func (a mcpCommands) mcpCmd() *cobra.Command {
	var listen, cert, key string
	var plain bool
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve sandboxes to MCP clients",
		Long: `Mcp is a server of the Model Context Protocol, through which agents make and use
sandboxes. It uses the daemon, and starts one if none runs.

Without flags it serves one client on standard input and output, and acts with the
key in $ATOLL_KEY, or for the owner of the local daemon. With --listen it serves any
number of clients over HTTP. Each must send an API key of its own as a bearer token,
which decides what it may do; see: atoll key create.`,
		Example: `  atoll mcp
  atoll mcp --listen 127.0.0.1:7071 --plain`,
		GroupID: resource.GroupDaemon,
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "", "serve HTTP on this TCP address, HOST:PORT; needs --tls-cert and --tls-key")
	flags.StringVar(&cert, "tls-cert", "", "file with the certificate, in PEM")
	flags.StringVar(&key, "tls-key", "", "file with its private key, in PEM")
	flags.BoolVar(&plain, "plain", false, "serve a loopback address without TLS")
	cmd.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		var l net.Listener
		if listen != "" {
			var err error
			if l, err = mcpListener(listen, cert, key, plain); err != nil {
				return err
			}
			defer l.Close()
		} else if cert != "" || plain {
			return term.BadFlag("listen", "is missing")
		}
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		s := mcpserver.New(c, a.Version.Atoll)
		if l != nil {
			a.Notef("atoll: serving MCP on %s\n", l.Addr())
			return serveHTTP(ctx, l, s.Handler())
		}
		return s.ServeStdio(ctx, io.NopCloser(a.Stdin), noClose{a.Stdout})
	})
	return cmd
}

// mcpListener listens for clients, with TLS or on a loopback address.
func mcpListener(address, cert, key string, plain bool) (net.Listener, error) {
	var config *tls.Config
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, term.BadFlag("tls-cert", "the certificate and its key cannot be used: %v", err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, term.BadFlag("listen", "is not an address such as 127.0.0.1:7071")
	}
	if ip := net.ParseIP(host); config == nil && (!plain || host != "localhost" && (ip == nil || !ip.IsLoopback())) {
		e := term.BadFlag("listen", "keys would travel without encryption")
		e.Hint = "give --tls-cert and --tls-key, or --plain with a loopback address"
		return nil, e
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, term.BadFlag("listen", "cannot be listened on: %v", err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return l, nil
}

// Bounds of connections of MCP clients.
const (
	mcpHeaderTime = 10 * time.Second
	mcpIdleTime   = 2 * time.Minute
	mcpDrainTime  = 5 * time.Second
)

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server := &http.Server{Handler: h, ReadHeaderTimeout: mcpHeaderTime, IdleTimeout: mcpIdleTime}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), mcpDrainTime)
		defer cancel()
		if server.Shutdown(short) != nil {
			_ = server.Close()
		}
	}()
	err := server.Serve(l)
	stop()
	<-ended
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// noClose is a writer that another caller closes.
type noClose struct{ io.Writer }

func (noClose) Close() error { return nil }
