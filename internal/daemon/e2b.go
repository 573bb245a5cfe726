package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/interpreter"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/server/e2bapi"
	"github.com/atoll-run/atoll/sandbox"
)

// E2B configures the E2B API. The zero value disables it.
type E2B struct {
	// Listen is a TCP address. Without TLS it must be a loopback address.
	Listen string
	TLS    *tls.Config
	// Domain is the domain for sandbox URLs of the form PORT-ID.DOMAIN. If it is
	// empty, sandboxes are only addressed by headers. Without a TLS configuration,
	// the daemon's own certificate authority issues a certificate for the domain.
	Domain string
	// CA is a file with the certificate that clients have to trust; empty if they
	// trust it already.
	CA string
	// Plain also serves a loopback address without TLS, if TLS is configured.
	Plain bool
	// Internet allows network access unless the client denies it, as E2B does.
	Internet bool
}

// listenE2B runs before listen: a client of this daemon must not get the
// address of an earlier daemon's E2B API.
func (d *Daemon) listenE2B(context.Context) error {
	d.onClose(d.e2b.close)
	if err := os.Remove(d.e2bPlace()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	opts := d.e2b.settings()
	if opts.Listen == "" {
		return nil
	}
	err := d.serveE2B(opts)
	if err != nil && d.e2b.kept {
		// The user did not request it for this start, and the rest of the daemon
		// works.
		d.opts.Logger.Error("clients of E2B are not served as enabled before", "address", opts.Listen, "error", err)
		d.e2b.forget()
		return nil
	}
	return err
}

// serveE2B starts to serve the E2B API.
func (d *Daemon) serveE2B(opts E2B) (err error) {
	asked := opts
	if err := opts.secure(d.node.Dir()); err != nil {
		return err
	}
	l, err := opts.listen()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if _, port, _ := net.SplitHostPort(l.Addr().String()); opts.Domain != "" && port != "443" {
		opts.Domain = net.JoinHostPort(opts.Domain, port)
	}
	secret, err := secretFile(filepath.Join(d.node.Dir(), "e2b.secret"))
	if err != nil {
		return err
	}
	uploads := filepath.Join(d.node.Dir(), "uploads")
	if err := os.RemoveAll(uploads); err != nil { // a cache, which may be incomplete
		return err
	}
	if err := d.announceE2B(&opts, l.Addr()); err != nil {
		return err
	}
	handler := e2bapi.New(d.e2bServices(), e2bapi.Options{
		Builds: d.buildDir(), Uploads: uploads,
		Secret: secret, Domain: opts.Domain, Internet: opts.Internet, RetryAfter: retryAfter, Logger: d.opts.Logger,
	})
	srv := server.New(server.Config{Handler: d.otel.Wrap(handler), Share: e2bapi.Share, Ready: d.recovered, Logger: d.opts.Logger})
	if opts.Domain != "" {
		d.identity.Publish("https://api." + opts.Domain)
	}
	d.serveWith(srv, l)
	d.e2b.opened(asked, l.Addr(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), d.opts.Drain)
		defer cancel()
		d.identity.Publish("")
		_ = os.Remove(d.e2bPlace()) // a stale file does no harm: nothing listens there
		return errors.Join(srv.Shutdown(ctx), handler.Close())
	})
	return nil
}

// listen opens a listener for clients with TLS, without TLS, or both.
func (e *E2B) listen() (net.Listener, error) {
	if !e.Plain || e.TLS == nil {
		return listenTCP(e.Listen, e.TLS, true, "h2", "http/1.1")
	}
	l, err := listenTCP(e.Listen, nil, true)
	if err != nil {
		return nil, err
	}
	return newEitherListener(l, tlsOf(e.TLS, "h2", "http/1.1")), nil
}

// secure configures TLS if a domain needs it.
func (e *E2B) secure(dir string) error {
	if e.Domain == "" || e.TLS != nil {
		return nil
	}
	ca, err := openCA(dir)
	if err != nil {
		return err
	}
	e.TLS, e.CA = ca.config(e.Domain, "*."+e.Domain), ca.file
	return writeBundle(bundleOf(e.CA), e.CA)
}

// bundleOf returns a file with the certificate ca and those that this machine
// trusts, for programs that read certificates from a single file.
func bundleOf(ca string) string {
	if ca == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(ca), "ca-bundle.pem")
}

// systemRoots are the usual paths of the system's certificate bundle.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
}

// writeBundle writes the system's certificates and one more to a file.
func writeBundle(path, own string) error {
	text, err := os.ReadFile(own)
	if err != nil {
		return err
	}
	for _, file := range systemRoots {
		if roots, err := os.ReadFile(file); err == nil {
			text = slices.Concat(roots, []byte("\n"), text)
			break
		}
	}
	return os.WriteFile(path, text, 0o644)
}

// announceE2B writes the address of the E2B API to a file for `atoll e2b env`.
func (d *Daemon) announceE2B(opts *E2B, addr net.Addr) error {
	scheme := "http"
	if opts.TLS != nil && !opts.Plain {
		scheme = "https"
	}
	text, err := json.Marshal(map[string]string{"url": scheme + "://" + addr.String(), "domain": opts.Domain, "ca": opts.CA, "bundle": bundleOf(opts.CA)})
	if err != nil {
		return err
	}
	return os.WriteFile(d.e2bPlace(), text, 0o600)
}

// e2bPlace returns the path of that file.
func (d *Daemon) e2bPlace() string { return filepath.Join(d.node.Dir(), "e2b.json") }

// secretFile reads a secret of this daemon, and creates it if it does not
// exist.
func secretFile(path string) ([]byte, error) {
	const size = 32
	secret, err := os.ReadFile(path)
	switch {
	case err == nil && len(secret) == size:
		return secret, nil
	case err == nil:
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.start", Subject: path, Message: "does not contain a valid secret",
			Hint: "remove it; sandboxes then get new tokens",
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	secret = make([]byte, size)
	_, _ = rand.Read(secret) // never fails: it crashes the program instead
	made, err := os.CreateTemp(filepath.Dir(path), ".secret-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(made.Name())
	_, err = made.Write(secret)
	if err = errors.Join(err, made.Sync(), made.Close()); err != nil {
		return nil, err
	}
	return secret, os.Rename(made.Name(), path)
}

// e2bServices returns the control services for the E2B API.
func (d *Daemon) e2bServices() e2bapi.Services {
	s := d.services.Sandboxes.Public()
	return e2bapi.Services{
		Authenticate: d.authenticateKey, Open: d.openForE2B, HasImage: d.hasImage, ECRLogin: d.ecrLogin, Defaults: d.imageDefaults,
		Sandboxes: s, Lifecycle: s, Networks: s, Usage: s, Ports: d.services.Exec, Interpreter: e2bCode{d.code}, Entrance: d.services.Sandboxes.Entrance, Rights: rights{d.services.Exec},
		Snapshots: d.services.Snapshots, Events: d.services.Events, Secrets: d.services.Secrets, Templates: d.services.Templates, Builder: d.services.Templates, Workspaces: d.services.Workspaces,
		Identity: d.identity,
	}
}

// rights are the rights of callers of the E2B API.
type rights struct{ exec *exec.Service }

func (rights) Key(ctx context.Context) string {
	who, err := guard.Principal(ctx)
	if err != nil {
		return "" // a token without a key is not valid
	}
	return who.Key
}

func (r rights) Allow(ctx context.Context, id sandbox.ID, op ops.Op) error {
	if op == ops.ProcessExec { // not counted: starting the command is
		who, err := guard.Principal(ctx)
		if err != nil {
			return err
		}
		if err := who.AllowIn(id, op); err == nil {
			return nil
		}
	}
	_, _, err := r.exec.Admit(ctx, op, guard.Subject{Sandbox: id})
	return err
}

// e2bCode adapts the code interpreter to the E2B API.
type e2bCode struct{ *interpreter.Service }

func (c e2bCode) Dial(ctx context.Context, id sandbox.ID, account func(context.Context) (e2bapi.InterpreterAccount, error)) (net.Conn, error) {
	conn, err := c.Service.Dial(ctx, id, func(ctx context.Context) (interpreter.Account, error) {
		as, err := account(ctx)
		return interpreter.Account(as), err
	})
	if failed, ok := errors.AsType[*interpreter.StartError](err); ok {
		return nil, &e2bapi.StartError{Cause: failed.Cause}
	}
	return conn, err
}

// e2bSandbox adapts a sandbox to the E2B API.
type e2bSandbox struct{ *exec.Handle }

func (s e2bSandbox) Files() e2bapi.Files { return s.Sandbox.Files() }

func (d *Daemon) openForE2B(ctx context.Context, ref string) (e2bapi.Sandbox, error) {
	b, err := d.services.Exec.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	return e2bSandbox{b}, nil
}

// authenticateKey returns the context for requests with an API key, and its tenant.
func (d *Daemon) authenticateKey(ctx context.Context, token string) (context.Context, string, error) {
	who, err := d.services.Tenants.Authenticate(ctx, token)
	if err != nil {
		return nil, "", err
	}
	return d.services.Tenants.As(ctx, who), who.Tenant, nil
}

// imageDefaults returns the default user and working directory of an image.
func (d *Daemon) imageDefaults(ctx context.Context, digest string) (user, dir string, err error) {
	images, err := d.node.Images()
	if err != nil {
		return "", "", err
	}
	img, err := images.Inspect(ctx, digest)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return "", "", nil // creating the sandbox returns the error
	}
	if err != nil {
		return "", "", err
	}
	return img.Config.User, img.Config.Workdir, nil
}

// ecrLogin exchanges AWS keys for a login to ECR.
func (d *Daemon) ecrLogin(ctx context.Context, image, accessKey string, secret func() string, region string) (func() (username, password string), error) {
	images, err := d.node.Images()
	if err != nil {
		return nil, err
	}
	return images.ECRLogin(ctx, image, accessKey, secret, region)
}

// hasImage reports whether an image is on this machine.
func (d *Daemon) hasImage(ctx context.Context, ref string) (bool, error) {
	images, err := d.node.Images()
	if err != nil {
		return false, err
	}
	_, err = images.Inspect(ctx, ref)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return false, nil
	}
	return err == nil, err
}
