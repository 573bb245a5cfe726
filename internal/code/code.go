// Package code lets callers work with source code in a sandbox: it searches
// files, applies patches, and reads git repositories. It needs no more of a
// sandbox than its files, and commands for git.
//
// Git is the program in the sandbox. A library outside, such as go-git, would
// read each object in a request of its own, and knows neither all formats of
// repositories nor the sandbox's configuration of git.
package code

import (
	"context"
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/serial"
	"github.com/atoll-run/atoll/sandbox"
)

// Files are the files of a sandbox. They authorize each access for the caller.
type Files interface {
	driver.FileSystem
	driver.Archiver
}

// Sandbox is a sandbox that runs.
type Sandbox interface {
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	Files() Files
}

// Config configures a Service. Its functions may be called concurrently.
type Config struct {
	Guard *guard.Guard
	// Find returns a sandbox that exists, by id or name, for the caller in ctx.
	Find func(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Open opens a running sandbox, until ctx ends.
	Open func(ctx context.Context, ref string) (Sandbox, error)
}

// Service searches, patches and reads repositories. It is safe for concurrent
// use.
type Service struct {
	cfg      Config
	patching keyed.Locks[sandbox.ID] // held while the files of a sandbox are patched
	watched  numbered
	numbers  serial.Numbers
}

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

func invalid(op, subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: op, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// relative refuses a path that is not below its directory.
func relative(op, subject, p string) error {
	switch {
	case p == "":
		return invalid(op, subject, "is empty")
	case strings.HasPrefix(p, "/"):
		return invalid(op, subject, "is not relative")
	case strings.ContainsRune(p, 0):
		return invalid(op, subject, "contains a NUL byte")
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return invalid(op, subject, `contains ".."`)
		}
	}
	return nil
}
