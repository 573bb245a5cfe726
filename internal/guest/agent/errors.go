package agent

import (
	"errors"
	"os"
	"syscall"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// fail creates an error for the client.
func fail(code sandbox.Code, subject, message string) error {
	return &wire.RemoteError{Code: code, Subject: subject, Message: message}
}

// codes maps the errors of file system calls to codes.
var codes = map[syscall.Errno]sandbox.Code{
	syscall.ENOENT:       sandbox.CodeNotFound,
	syscall.ENOTDIR:      sandbox.CodeNotFound,
	syscall.ESRCH:        sandbox.CodeNotFound,
	syscall.EEXIST:       sandbox.CodeAlreadyExists,
	syscall.ENOTEMPTY:    sandbox.CodeConflict,
	syscall.EBUSY:        sandbox.CodeConflict,
	syscall.ETXTBSY:      sandbox.CodeConflict,
	syscall.EACCES:       sandbox.CodeDenied,
	syscall.EPERM:        sandbox.CodeDenied,
	syscall.EROFS:        sandbox.CodeDenied,
	syscall.ENOSPC:       sandbox.CodeExhausted,
	syscall.EDQUOT:       sandbox.CodeExhausted,
	syscall.EFBIG:        sandbox.CodeExhausted,
	syscall.EMFILE:       sandbox.CodeExhausted,
	syscall.ENFILE:       sandbox.CodeExhausted,
	syscall.ENOMEM:       sandbox.CodeExhausted,
	syscall.EMLINK:       sandbox.CodeExhausted,
	syscall.EAGAIN:       sandbox.CodeExhausted,
	syscall.EISDIR:       sandbox.CodeInvalid,
	syscall.ELOOP:        sandbox.CodeInvalid,
	syscall.ENAMETOOLONG: sandbox.CodeInvalid,
	syscall.EINVAL:       sandbox.CodeInvalid,
	syscall.ENXIO:        sandbox.CodeInvalid,
	syscall.ENODEV:       sandbox.CodeInvalid,
	syscall.EXDEV:        sandbox.CodeUnsupported,
	syscall.ENOTSUP:      sandbox.CodeUnsupported,
	syscall.ENOSYS:       sandbox.CodeUnsupported,
}

// about adds a subject to an error of the kernel. It does not change errors
// that have one.
func about(subject string, err error) error {
	if err == nil {
		return nil
	}
	var re *wire.RemoteError
	if errors.As(err, &re) {
		return err
	}
	r := *remote(err)
	r.Subject = subject
	return &r
}

// remote converts any error to one that can be sent to the client.
func remote(err error) *wire.RemoteError {
	var re *wire.RemoteError
	if errors.As(err, &re) {
		return re
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		code, ok := codes[errno]
		if !ok {
			code = sandbox.CodeInternal
		}
		return &wire.RemoteError{Code: code, Message: errno.Error()}
	}
	switch {
	case errors.Is(err, wire.ErrProtocol):
		return &wire.RemoteError{Code: sandbox.CodeInvalid, Message: err.Error()}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
		return &wire.RemoteError{Code: sandbox.CodeUnavailable, Message: "interrupted"}
	}
	return &wire.RemoteError{Code: sandbox.CodeInternal, Message: err.Error()}
}
