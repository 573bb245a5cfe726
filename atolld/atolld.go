// Package atolld runs Atoll's daemon inside another Go program. Its client
// speaks the same API as any other, through memory, so that nothing it forbids
// or records can be walked around.
//
// A program that uses it is executed again as the kernel of every sandbox, so
// its main function begins with [Main], and it is built with CGO_ENABLED=0.
package atolld

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	_ "github.com/atoll-run/atoll/internal/guest/early" // must see the process before everything else
	"github.com/atoll-run/atoll/provider/gvisor"
)

// Main must be called first in main. It returns at once in the program itself,
// and never in a process that is a part of a sandbox.
func Main() { gvisor.Main() }

// Server is a daemon. Its exported fields may be changed until Start; the zero
// value works on the user's own state directory, alone.
type Server struct {
	// StateDir is where state is kept, and belongs to this daemon alone.
	// Empty: as the command line would choose.
	StateDir string
	// Provider makes the sandboxes. Empty: gvisor.
	Provider string
	// Socket also serves the command line and other programs of this user,
	// on a socket in StateDir.
	Socket bool
	// Logger gets what no caller can be told. Nil discards it.
	Logger *slog.Logger

	mu     sync.Mutex
	daemon *daemon.Daemon
	closed bool
}

// Start starts the daemon: when it returns, it answers. The context bounds the
// start only. A daemon that works on the same StateDir is CodeConflict. The
// caller closes the Server.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon != nil || s.closed {
		return errors.New("atolld: the server was started before")
	}
	d, err := daemon.Start(ctx, daemon.Options{StateDir: s.StateDir, Provider: s.Provider, Socket: s.Socket, Logger: s.Logger})
	if err != nil {
		return err
	}
	s.daemon = d
	return nil
}

// Client returns a client of the started daemon, which the caller closes.
func (s *Server) Client() (*atoll.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemon == nil || s.closed {
		return nil, errors.New("atolld: the server does not run")
	}
	return atoll.New(atoll.Options{Transport: s.daemon.Memory().Transport()})
}

// Close ends the daemon in good order. Sandboxes live on, and are found again
// by the next one on the same StateDir. Close is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.daemon == nil {
		return nil
	}
	return s.daemon.Close()
}
