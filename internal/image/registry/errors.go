package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// temporary reports whether a retry may succeed.
func temporary(err error) bool {
	var status *transport.Error
	var network net.Error
	var cert *tls.CertificateVerificationError
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, errPlainHTTP), errors.Is(err, http.ErrSchemeMismatch), errors.Is(err, errInward), errors.Is(err, errRefused), errors.Is(err, errTooLarge), errors.As(err, &cert):
		return false
	case errors.As(err, &status):
		return status.StatusCode >= 500 && status.StatusCode != http.StatusNotImplemented ||
			status.StatusCode == http.StatusTooManyRequests || status.StatusCode == http.StatusRequestTimeout
	case errors.As(err, &dns):
		return dns.IsTemporary || dns.IsTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return false
	case errors.Is(err, errStalled), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	case isLocal(err):
		return false
	}
	return errors.As(err, &network)
}

// isLocal reports whether the error is from this machine's disk.
func isLocal(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) || errors.Is(err, unix.EIO)
}

// failure converts the last error of a request to a user-visible error. what is
// a tag, a digest or empty.
func (c *Client) failure(what string, err error) error {
	var typed *sandbox.Error
	var network *net.OpError
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if errors.As(err, &typed) || isLocal(err) || ended && (c.opts.Permit == nil || !errors.As(err, &network)) {
		return err
	}
	e := &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "image.pull", Subject: c.repo.Name(), Cause: err}
	reg := c.repo.RegistryStr()
	var status *transport.Error
	if errors.As(err, &status) {
		c.status(e, what, status.StatusCode)
		return e
	}
	if c.opts.Permit != nil {
		// This caller must not learn what is behind an address or a name.
		e.Cause, e.Message = nil, "the registry cannot be reached, or is not public"
		e.Hint = "check the name; the operator of this machine decides which addresses may be reached that are not public"
		return e
	}
	e.Message = fmt.Sprintf("cannot reach %s: %s", reg, reason(err))
	e.Hint = "check the network, or use an image that is here, such as host"
	switch {
	case errors.Is(err, errInward), errors.Is(err, errTooLarge):
		e.Code, e.Hint = sandbox.CodeDenied, ""
	case c.guard.refused.Load(), errors.Is(err, http.ErrSchemeMismatch):
		e.Code = sandbox.CodeDenied
		e.Hint = "if you trust " + reg + " without TLS, list it as a plain HTTP registry"
	}
	return e
}

// status describes a status code of the registry.
func (c *Client) status(e *sandbox.Error, what string, code int) {
	reg := c.repo.RegistryStr()
	switch code {
	case http.StatusUnauthorized:
		e.Code, e.Message = sandbox.CodeUnauthorized, "the registry wants other credentials, or there is no such repository"
		e.Hint = "check the name, or log in with: docker login " + reg
	case http.StatusForbidden:
		e.Code, e.Message = sandbox.CodeDenied, "the registry does not allow it"
		e.Hint = "log in with: docker login " + reg
	case http.StatusNotFound:
		e.Code, e.Message, e.Hint = sandbox.CodeNotFound, "the registry does not have it", "check the name and the tag"
		if what != "" {
			e.Message = "the registry does not have " + what
		}
	case http.StatusTooManyRequests:
		e.Message, e.Hint = "the registry limits how much may be pulled", "wait, or log in with: docker login "+reg
	default:
		e.Message = fmt.Sprintf("%s answered with status %d", reg, code)
	}
}

// reason describes why a server could not be reached, without the URL.
func reason(err error) string {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var op *net.OpError
	var network net.Error
	for _, known := range []error{errStalled, errPlainHTTP, errInward, errTooLarge} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return "it does not use TLS"
	case errors.As(err, &dns):
		return "its name cannot be resolved"
	case errors.As(err, &authority), errors.As(err, &cert):
		return "its certificate is not trusted"
	case errors.As(err, &network) && network.Timeout():
		return "it does not respond"
	case errors.As(err, &op):
		return op.Err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was cut"
	}
	return "the request failed"
}
