package interpreter

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"path"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Account is how the server runs in a sandbox. The zero value is the user and
// the working directory of the sandbox.
type Account struct {
	User, Dir string
	Env       map[string]string
}

// StartError is why the server could not be started.
type StartError struct{ Cause error }

func (e *StartError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Cause }

// Dial connects to the server of a sandbox, for a caller who may run commands in
// it. If nothing listens, it starts the server; account is called before, in the
// context of the daemon itself, and nil stands for the zero value. If that fails,
// the error is a *StartError. The caller closes the connection.
func (s *Service) Dial(ctx context.Context, id sandbox.ID, account func(context.Context) (Account, error)) (net.Conn, error) {
	conn, err := s.cfg.Dial(ctx, string(id), Port)
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return conn, err
	}
	started, err := s.starting.Take(ctx, id)
	if err != nil {
		return nil, err
	}
	defer started()
	if conn, err := s.cfg.Dial(ctx, string(id), Port); err == nil {
		return conn, nil // another request was faster
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.start(ctx, id, account); err != nil {
		return nil, &StartError{err}
	}
	return s.cfg.Dial(ctx, string(id), Port)
}

// start writes the programs into a sandbox, owned by root, and starts the server.
func (s *Service) start(ctx context.Context, id sandbox.ID, account func(context.Context) (Account, error)) error {
	ctx, err := s.cfg.Own(ctx, id)
	if err != nil {
		return err
	}
	sb, err := s.cfg.Open(ctx, string(id))
	if err != nil {
		return err
	}
	if err := isolated(ctx, sb); err != nil {
		return err
	}
	var as Account
	if account != nil {
		if as, err = account(ctx); err != nil {
			return err
		}
	}
	for name, content := range Files() {
		opts := driver.WriteOptions{Owner: "root", Mode: 0o644}
		if err := sb.Write(ctx, path.Join(Dir, name), bytes.NewReader(content), opts); err != nil {
			return err
		}
	}
	p, err := sb.Exec(ctx, sandbox.Command{Args: Command(), User: as.User, Dir: as.Dir, Background: true, Env: as.Env})
	if err != nil {
		return err
	}
	defer p.Close() // it runs on
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
	if err == nil && line == Ready+"\n" {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	why, _ := io.ReadAll(io.LimitReader(p.Stderr(), maxComplaint))
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: op, Subject: "code interpreter", Hint: "use an image with python3",
		Message: "cannot be started in this sandbox: " + strings.ToValidUTF8(string(bytes.TrimSpace(why)), "?"),
	}
}

// isolated refuses sandboxes whose ports are those of the machine: every user of
// the machine could run code in them.
func isolated(ctx context.Context, sb Sandbox) error {
	apart, err := sb.Isolated(ctx)
	if err != nil || apart {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: op, Subject: "code interpreter",
		Message: "needs a provider that isolates sandboxes: here, every user of the machine could run code through its port",
	}
}
