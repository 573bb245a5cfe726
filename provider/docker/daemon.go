package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// explain converts the client's error to an *sandbox.Error. Only an answer of
// the daemon says anything about a container: connection errors and failures of
// the daemon are CodeUnavailable.
func (p *Provider) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	code := sandbox.CodeUnavailable
	for _, c := range []struct {
		is   func(error) bool
		code sandbox.Code
	}{
		{errdefs.IsNotFound, sandbox.CodeNotFound},
		{errdefs.IsConflict, sandbox.CodeConflict},
		{errdefs.IsInvalidArgument, sandbox.CodeInvalid},
		{errdefs.IsUnauthorized, sandbox.CodeUnauthorized},
		{errdefs.IsPermissionDenied, sandbox.CodeDenied},
		{errdefs.IsNotImplemented, sandbox.CodeUnsupported},
	} {
		if c.is(err) && !client.IsErrConnectionFailed(err) {
			code = c.code
		}
	}
	return &sandbox.Error{Code: code, Subject: p.opts.Host, Message: clip(err.Error()), Cause: err}
}

// unanswered is explain for requests that a Docker daemon never refuses. If
// they are refused, the server is not a Docker daemon.
func (p *Provider) unanswered(ctx context.Context, err error) error {
	err = p.explain(ctx, err)
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.CodeNotFound {
		e.Code = sandbox.CodeUnavailable
	}
	return err
}

// maxMessage limits the length of a daemon's message in errors.
const maxMessage = 400

func clip(s string) string {
	if s = strings.ToValidUTF8(s, "�"); len(s) > maxMessage {
		return strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// info asks the daemon for its data and checks that it is still the same one.
func (p *Provider) info(ctx context.Context) (system.Info, error) {
	res, err := p.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return system.Info{}, p.unanswered(ctx, err)
	}
	if res.Info.ID == "" {
		return system.Info{}, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: p.opts.Host, Message: "the server at this address is not a Docker daemon"}
	}
	// The ID alone is not enough: old daemons on one machine share it.
	found := res.Info.ID + "\n" + res.Info.DockerRootDir
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.daemon == "" {
		p.daemon = found
	}
	if p.daemon != found {
		return system.Info{}, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: p.opts.Host, Message: "another Docker daemon answers at this address than before",
			Hint: "restart atoll if the daemon was replaced",
		}
	}
	return res.Info, nil
}

// scope identifies this directory among all users of the daemon.
func (p *Provider) scope() (string, error) {
	if err := os.MkdirAll(p.opts.Dir, 0o700); err != nil {
		return "", err
	}
	return identity.Of(filepath.Join(p.opts.Dir, "scope"))
}

// identity returns the daemon's identity, which it requests until it succeeds.
func (p *Provider) identity(ctx context.Context) (string, error) {
	p.mu.Lock()
	daemon := p.daemon
	p.mu.Unlock()
	if daemon != "" {
		return daemon, nil
	}
	if _, err := p.info(ctx); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.daemon, nil
}

// Binding implements driver.Binder. It returns a hash that identifies the
// daemon, independent of its address.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	daemon, err := p.identity(ctx)
	sum := sha256.Sum256([]byte(daemon))
	return Name + "#" + hex.EncodeToString(sum[:8]), err
}

// FormerBindings implements driver.FormerBinder. Earlier versions included the
// address and the directory in the binding.
func (p *Provider) FormerBindings(ctx context.Context) ([]string, error) {
	scope, err1 := p.scope()
	daemon, err2 := p.identity(ctx)
	sum := sha256.Sum256([]byte(scope + "\n" + p.opts.Host + "\n" + daemon))
	return []string{p.opts.Host + "#" + hex.EncodeToString(sum[:8])}, errors.Join(err1, err2)
}

// gone returns the error for a container that the daemon does not know. It is
// CodeGone if the daemon is the same as before.
func (p *Provider) gone(ctx context.Context, id sandbox.ID) error {
	if _, err := p.info(ctx); err != nil {
		return err
	}
	return guestkit.Gone(id)
}
