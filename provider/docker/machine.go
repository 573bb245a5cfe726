package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// machine is a container as reported by the daemon.
type machine struct {
	p      *Provider
	id     sandbox.ID
	name   string // the daemon's ID of the container
	labels map[string]string

	mu   sync.Mutex
	exit sandbox.Exit // how it ended, if the daemon reported it
}

// Status implements guestkit.Machine. A container that has ended never runs
// again, so its sandbox has ended.
func (m *machine) Status(ctx context.Context) (guestkit.Status, error) {
	c, err := m.p.inspect(ctx, m.id, m.name, false)
	switch {
	case err != nil:
		return guestkit.Status{}, err
	case c.State.Paused:
		return guestkit.Status{State: sandbox.Paused}, nil
	case c.State.Running || c.State.Status == "created":
		return guestkit.Status{State: sandbox.Running}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exit = exitOf(c.State, m.labels)
	return guestkit.Status{}, guestkit.Gone(m.id)
}

// Cause implements guestkit.Machine. A missing container was removed by another
// client.
func (m *machine) Cause(time.Time) sandbox.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.exit.Reason != "" {
		return m.exit
	}
	return guestkit.Killed
}

// Answers implements guestkit.Machine.
func (m *machine) Answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	p, err := m.Start(ctx, []string{"/bin/sh", "-c", ":"}, nil)
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	defer p.Close()
	for {
		if _, err := p.Receive(); err != nil {
			exit, ok := err.(*guestkit.Exit) //nolint:errorlint // Receive returns it unwrapped
			return ok && exit.Code == 0
		}
	}
}

// Upload implements guestkit.Runner.
func (m *machine) Upload(ctx context.Context, file string, guest *program.Program) error {
	r, err := guest.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	// The daemon creates missing parent directories, owned by root.
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path.Clean(file), "/"), Mode: 0o755, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		_, err = m.p.api.CopyToContainer(ctx, m.name, client.CopyToContainerOptions{DestinationPath: "/", Content: &archive})
	}
	return m.p.explain(ctx, err)
}

// Start implements guestkit.Runner.
func (m *machine) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	created, err := m.p.api.ExecCreate(ctx, m.name, client.ExecCreateOptions{
		User: "0:0", WorkingDir: "/", Cmd: argv, Env: env, AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, m.p.explain(ctx, err)
	}
	attached, err := m.p.api.ExecAttach(ctx, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, m.p.explain(ctx, err)
	}
	p := &process{m: m, exec: created.ID, conn: attached.HijackedResponse, out: make(chan []byte), closed: make(chan struct{})}
	go p.read()
	return p, nil
}

// process is a program that docker exec has started.
type process struct {
	m    *machine
	exec string
	conn client.HijackedResponse

	out    chan []byte   // closed at the end; stderr and err are set before
	closed chan struct{} // closed by Close
	once   sync.Once
	stderr []byte
	err    error // the error that ended the output; nil for a normal end
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// read parses the daemon's stream until it ends.
func (p *process) read() {
	defer close(p.out)
	stdout := func(b []byte) (int, error) {
		select {
		case p.out <- bytes.Clone(b):
			return len(b), nil
		case <-p.closed:
			return 0, io.ErrClosedPipe
		}
	}
	stderr := func(b []byte) (int, error) {
		p.stderr = append(p.stderr, b[:min(len(b), maxMessage-len(p.stderr))]...)
		return len(b), nil
	}
	_, p.err = stdcopy.StdCopy(writerFunc(stdout), writerFunc(stderr), p.conn.Reader)
}

// alive is how long a process may be silent before the provider checks whether
// it is paused.
const alive = 45 * time.Second

// Receive implements guestkit.Program. A paused container counts as alive.
func (p *process) Receive() ([]byte, error) {
	for {
		timer := time.NewTimer(alive)
		select {
		case data, ok := <-p.out:
			timer.Stop()
			if !ok {
				return nil, p.end()
			}
			return data, nil
		case <-p.closed:
			timer.Stop()
			return nil, io.ErrClosedPipe
		case <-timer.C:
			ctx, cancel := context.WithTimeout(context.Background(), alive/3)
			s, err := p.m.Status(ctx)
			cancel()
			if err == nil && s.State == sandbox.Paused {
				return nil, nil
			}
		}
	}
}

// end returns how the process ended.
func (p *process) end() error {
	unknown := func(err error) error {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: p.m.p.opts.Host, Message: "the connection to the container was lost", Cause: err}
	}
	if p.err != nil {
		return unknown(p.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), alive/3)
	defer cancel()
	for { // the daemon closes the stream a little before it has the status
		res, err := p.m.p.api.ExecInspect(ctx, p.exec, client.ExecInspectOptions{})
		if err != nil {
			return unknown(err)
		}
		if !res.Running {
			return &guestkit.Exit{Code: res.ExitCode, Status: "exit status " + strconv.Itoa(res.ExitCode), Stderr: p.stderr}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return unknown(ctx.Err())
		case <-p.closed:
			return io.ErrClosedPipe
		}
	}
}

// Send implements guestkit.Program.
func (p *process) Send(ctx context.Context, data []byte) error {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.Conn.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := p.conn.Conn.Write(data)
	return p.m.p.explain(ctx, err)
}

// Close implements guestkit.Program. The daemon closes the input of the
// process, which then exits.
func (p *process) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.conn.Close()
	})
	return nil
}
