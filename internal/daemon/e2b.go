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
	"time"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/server/e2bapi"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// E2B says where the API of E2B is served. The zero value serves none.
type E2B struct {
	// Listen is a TCP address. Without TLS it must be a loopback address.
	Listen string
	TLS    *tls.Config
	// Domain is the one under which sandboxes are reached as PORT-ID.DOMAIN;
	// empty if they are only reached by headers. Without TLS for it, an
	// authority of this daemon vouches for the name.
	Domain string
	// CA is a file with the certificate that clients have to trust; empty if
	// they do anyway.
	CA string
	// Internet allows sandboxes what their clients do not deny, as E2B does.
	Internet bool
}

// listenE2B comes before listen: whoever reaches this daemon is to be told where
// its API of E2B is, and not where one was that was killed.
func (d *Daemon) listenE2B(context.Context) error {
	opts := d.opts.E2B
	if opts.Listen == "" {
		if err := os.Remove(d.e2bPlace()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := opts.secure(d.node.Dir()); err != nil {
		return err
	}
	l, err := listenTCP(opts.Listen, opts.TLS, true, "h2", "http/1.1")
	if err != nil {
		return err
	}
	d.e2b = l.Addr()
	if _, port, _ := net.SplitHostPort(l.Addr().String()); opts.Domain != "" && port != "443" {
		opts.Domain = net.JoinHostPort(opts.Domain, port)
	}
	secret, err := secretFile(filepath.Join(d.node.Dir(), "e2b.secret"))
	if err != nil {
		return errors.Join(err, l.Close())
	}
	uploads := filepath.Join(d.node.Dir(), "uploads")
	if err := os.RemoveAll(uploads); err != nil { // a cache, and perhaps half of one
		return errors.Join(err, l.Close())
	}
	service := e2bService{plane: d.plane, images: d.node.Images}
	handler := e2bapi.New(e2bapi.Services{Service: service, Snapshots: d.plane.Snapshots, Templates: d.plane.Templates}, e2bapi.Options{
		Secret: secret, Domain: opts.Domain, Internet: opts.Internet, Builds: d.buildDir(), Uploads: uploads, RetryAfter: quota.RetryAfter, Logger: d.opts.Logger,
	})
	srv := server.New(server.Config{Handler: d.otel.Wrap(handler), Logger: d.opts.Logger})
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), d.opts.Drain)
		defer cancel()
		return errors.Join(srv.Shutdown(ctx), handler.Close())
	})
	d.serveWith(srv, l)
	return d.announceE2B(&opts)
}

// secure fills in TLS where a domain needs it.
func (e *E2B) secure(dir string) error {
	if e.Domain == "" || e.TLS != nil {
		return nil
	}
	ca, err := openCA(dir)
	if err != nil {
		return err
	}
	e.TLS, e.CA = ca.config(e.Domain, "*."+e.Domain), ca.file
	return nil
}

// announceE2B writes down, for `atoll e2b env`, where the API of E2B is served
// as long as it is.
func (d *Daemon) announceE2B(opts *E2B) error {
	scheme := "http"
	if opts.TLS != nil {
		scheme = "https"
	}
	text, err := json.Marshal(map[string]string{"url": scheme + "://" + d.e2b.String(), "domain": opts.Domain, "ca": opts.CA})
	if err != nil {
		return err
	}
	path := d.e2bPlace()
	d.onClose(func() error {
		_ = os.Remove(path) // whoever reads it finds out that nobody answers
		return nil
	})
	return os.WriteFile(path, text, 0o600)
}

// e2bPlace is the file that says it.
func (d *Daemon) e2bPlace() string { return filepath.Join(d.node.Dir(), "e2b.json") }

// secretFile reads a secret that only this daemon knows, and makes it first.
func secretFile(path string) ([]byte, error) {
	const size = 32
	secret, err := os.ReadFile(path)
	switch {
	case err == nil && len(secret) == size:
		return secret, nil
	case err == nil:
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.start", Subject: path, Message: "is not a secret of this program",
			Hint: "remove it; sandboxes then get new tokens",
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	secret = make([]byte, size)
	_, _ = rand.Read(secret) // never fails: it ends the program instead
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

// e2bService shows the control plane to the face for clients of E2B.
type e2bService struct {
	plane  *plane.Plane
	images func() (*image.Store, error)
}

type e2bTenantKey struct{}

var _ e2bapi.Service = e2bService{}

func (s e2bService) Authenticate(ctx context.Context, spelled string) (context.Context, error) {
	who, err := s.plane.Tenants.Authenticate(ctx, envd.Token(spelled))
	if err != nil {
		return nil, err
	}
	return s.plane.Tenants.As(context.WithValue(ctx, e2bTenantKey{}, who.Tenant), who), nil
}

func (s e2bService) Tenant(ctx context.Context) string {
	tenant, _ := ctx.Value(e2bTenantKey{}).(string)
	return tenant
}

func (s e2bService) Create(ctx context.Context, spec sandbox.Spec, timeout time.Duration) (e2bapi.Sandbox, error) {
	made, err := s.plane.Create(ctx, plane.CreateRequest{Spec: spec, Pull: control.PullMissing, Timeout: timeout})
	return e2bShown(made.Sandbox), err
}

func (s e2bService) Get(ctx context.Context, id sandbox.ID) (e2bapi.Sandbox, error) {
	b, err := s.plane.Get(ctx, string(id))
	return e2bShown(b), err
}

func (s e2bService) List(ctx context.Context, labels map[string]string) ([]e2bapi.Sandbox, error) {
	var out []e2bapi.Sandbox
	page := store.Page{Limit: store.MaxPage}
	for {
		boxes, next, err := s.plane.Sandboxes(ctx, store.Filter{Labels: labels}, page)
		if err != nil {
			return nil, err
		}
		for _, b := range boxes {
			out = append(out, e2bShown(b))
		}
		if page.Cursor = next; next == "" {
			return out, nil
		}
	}
}

func (s e2bService) Destroy(ctx context.Context, id sandbox.ID) error {
	return s.plane.Destroy(ctx, string(id))
}

func (s e2bService) Expire(ctx context.Context, id sandbox.ID, at time.Time, extend bool) (e2bapi.Sandbox, error) {
	b, err := s.plane.Expire(ctx, string(id), at, extend)
	return e2bShown(b), err
}

func (s e2bService) Enter(ctx context.Context, id sandbox.ID) (context.Context, e2bapi.Sandbox, error) {
	ctx, b, err := s.plane.Enter(ctx, id)
	return ctx, e2bShown(b), err
}

func (s e2bService) Live(ctx context.Context) ([]sandbox.ID, error) { return s.plane.Live(ctx) }

func (s e2bService) Open(ctx context.Context, id sandbox.ID) (e2bapi.Box, error) {
	b, err := s.plane.Exec.Open(ctx, string(id))
	if err != nil {
		return nil, err
	}
	return e2bBox{b}, nil
}

func (s e2bService) Pause(ctx context.Context, id sandbox.ID, memory bool) error {
	var err error
	if memory {
		_, err = s.plane.Pause(ctx, string(id), true)
	} else {
		_, err = s.plane.Stop(ctx, string(id), 0)
	}
	return err
}

func (s e2bService) Resume(ctx context.Context, id sandbox.ID, memory bool) (e2bapi.Sandbox, error) {
	if !memory {
		b, err := s.plane.Reboot(ctx, string(id))
		return e2bShown(b), err
	}
	b, err := s.plane.Get(ctx, string(id))
	if err == nil && b.State == sandbox.Stopped {
		b, err = s.plane.Start(ctx, string(id))
	} else if err == nil {
		b, err = s.plane.Resume(ctx, string(id))
	}
	return e2bShown(b), err
}

func (s e2bService) Fork(ctx context.Context, id sandbox.ID, count int) ([]e2bapi.Sandbox, error) {
	boxes, err := s.plane.Fork(ctx, string(id), sandbox.ForkRequest{Count: count})
	out := make([]e2bapi.Sandbox, len(boxes))
	for i, b := range boxes {
		out[i] = e2bShown(b)
	}
	return out, err
}

func (s e2bService) Usage(ctx context.Context, id sandbox.ID) (sandbox.Usage, error) {
	return s.plane.Usage(ctx, string(id))
}

func (s e2bService) DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error) {
	return s.plane.Exec.DialPort(ctx, ref, port)
}

func e2bShown(b store.Sandbox) e2bapi.Sandbox {
	return e2bapi.Sandbox{
		ID: b.ID, Name: b.Name, State: b.State, Image: b.Image, Resources: b.Resources, Labels: b.Labels, Created: b.Created, Expires: b.Expires,
		Updated: b.Updated, Lifetime: b.Spec.Lifetime, Network: b.Spec.Network, Workspaces: b.Spec.Workspaces, Kept: b.Rest.Kept != "", Wakes: b.Rest.Wakes,
	}
}

// e2bBox shows a sandbox to that face.
type e2bBox struct{ *exec.Handle }

func (b e2bBox) Files() e2bapi.Files { return b.Sandbox.Files() }

// HasImage reports whether an image is there that needs not be fetched.
func (s e2bService) HasImage(ctx context.Context, ref string) (bool, error) {
	images, err := s.images()
	if err != nil {
		return false, err
	}
	_, err = images.Inspect(ctx, ref)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return false, nil
	}
	return err == nil, err
}
