package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// scriptedProvider is a provider that records requests and fails on demand. Its commands
// do nothing and end on demand.
type scriptedProvider struct {
	mu     sync.Mutex
	alive  map[sandbox.ID]*scriptedSandbox
	made   []sandbox.Spec
	fail   map[string]error // by method name
	before func(method string)
	plain  bool // instances without any optional interface

	noImages, loose, fixed bool // no images; limits that do not hold; ones that cannot be chosen
}

var (
	errKnown   = errors.New("the sandbox ran out of luck")
	errUnknown = errors.New("what was that")
)

func newScriptedProvider() *scriptedProvider {
	return &scriptedProvider{alive: map[sandbox.ID]*scriptedSandbox{}, fail: map[string]error{}}
}

func (p *scriptedProvider) enter(method string) error {
	if p.before != nil {
		p.before(method)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fail[method]
}

func (p *scriptedProvider) Probe(context.Context) (driver.Facts, error) {
	facts := driver.Facts{Provider: "scripted", Available: true}
	facts.Capabilities.Reattach, facts.Capabilities.Images = !p.plain, !p.noImages
	facts.Limits = map[string]driver.Limit{}
	for _, name := range []string{"cpus", "memory", "disk", "pids", "lifetime"} {
		facts.Limits[name] = driver.Limit{Holds: !p.loose && !p.fixed, Why: "nothing limits it", Fixed: p.fixed}
	}
	return facts, p.enter("probe")
}

func (p *scriptedProvider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.enter("create"); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made = append(p.made, *spec)
	x := &scriptedSandbox{p: p, id: spec.ID, labels: spec.Labels, state: sandbox.Running}
	p.alive[spec.ID] = x
	return x.instance(), nil
}

func (p *scriptedProvider) Attach(_ context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := p.enter("attach"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	x, ok := p.alive[id]
	if !ok {
		return nil, errGone
	}
	return x.instance(), nil
}

var errGone = errors.New("it is gone")

func (p *scriptedProvider) List(context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		p.mu.Lock()
		var found []driver.Found
		for id, x := range p.alive {
			found = append(found, driver.Found{ID: id, State: x.state, Labels: x.labels, Created: time.Unix(int64(len(found)), 0)})
		}
		p.mu.Unlock()
		for _, f := range found {
			if !yield(f, nil) {
				return
			}
		}
		if err := p.enter("list"); err != nil {
			yield(driver.Found{}, err)
		}
	}
}

func (p *scriptedProvider) ErrorCode(err error) sandbox.Code {
	switch {
	case errors.Is(err, errKnown):
		return sandbox.CodeExhausted
	case errors.Is(err, errGone):
		return sandbox.CodeGone
	}
	return ""
}

func (p *scriptedProvider) Close() error { return nil }

func (p *scriptedProvider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.alive)
}

type scriptedSandbox struct {
	p      *scriptedProvider
	id     sandbox.ID
	labels map[string]string
	state  sandbox.State

	mu   sync.Mutex
	ran  []sandbox.Command
	seen []string // paths
}

func (x *scriptedSandbox) instance() driver.Instance {
	if x.p.plain {
		return struct{ driver.Instance }{x}
	}
	return x
}

func (x *scriptedSandbox) ID() sandbox.ID { return x.id }

func (x *scriptedSandbox) Exec(_ context.Context, cmd *sandbox.Command) (driver.Process, error) {
	if err := x.p.enter("exec"); err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ran = append(x.ran, *cmd)
	return &command{x: x, args: cmd.Args, ended: make(chan struct{})}, nil
}

func (x *scriptedSandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	return sandbox.Exit{Reason: sandbox.ReasonKilled}, x.p.enter("wait")
}

func (x *scriptedSandbox) Destroy(ctx context.Context) error {
	if err := x.p.enter("destroy"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	delete(x.p.alive, x.id)
	return nil
}

func (x *scriptedSandbox) look(method, path string) error {
	x.mu.Lock()
	x.seen = append(x.seen, path)
	x.mu.Unlock()
	return x.p.enter(method)
}

func (x *scriptedSandbox) Stat(_ context.Context, path string) (sandbox.FileInfo, error) {
	return sandbox.FileInfo{Path: path}, x.look("stat", path)
}

func (x *scriptedSandbox) List(_ context.Context, path string, _ driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		for _, name := range []string{"a", "b"} {
			if !yield(sandbox.FileInfo{Path: name}, nil) {
				return
			}
		}
		if err := x.look("list-files", path); err != nil {
			yield(sandbox.FileInfo{}, err)
		}
	}
}

func (x *scriptedSandbox) Read(_ context.Context, path string, _ driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	return io.NopCloser(bytes.NewReader([]byte("data"))), sandbox.FileInfo{Path: path}, x.look("read", path)
}

func (x *scriptedSandbox) Write(_ context.Context, path string, r io.Reader, _ driver.WriteOptions) (sandbox.FileInfo, error) {
	n, err := io.Copy(io.Discard, r)
	return sandbox.FileInfo{Path: path, Size: n}, errors.Join(err, x.look("write", path))
}

func (x *scriptedSandbox) Mkdir(_ context.Context, path string, _ driver.MkdirOptions) error {
	return x.look("mkdir", path)
}

func (x *scriptedSandbox) Remove(_ context.Context, path string, _ bool) error {
	return x.look("remove", path)
}

func (x *scriptedSandbox) Move(_ context.Context, from, to string, _ bool) error {
	return errors.Join(x.look("move", from), x.look("move", to))
}

func (x *scriptedSandbox) Processes(context.Context) ([]sandbox.ProcessInfo, error) {
	return []sandbox.ProcessInfo{{ID: "1", Running: true}}, x.p.enter("processes")
}

func (x *scriptedSandbox) Reconnect(_ context.Context, id string) (driver.Process, error) {
	return &command{x: x, ended: make(chan struct{})}, x.p.enter("reconnect")
}

func (x *scriptedSandbox) Logs(context.Context, string, driver.LogOptions) (driver.LogReader, error) {
	return &logs{}, x.p.enter("logs")
}

func (x *scriptedSandbox) Kill(_ context.Context, id string, sig int) error { return x.p.enter("kill") }

type logs struct{ n int }

func (l *logs) Next() (sandbox.LogChunk, error) {
	l.n++
	switch l.n {
	case 1:
		return sandbox.LogChunk{Stream: 1, Data: []byte("x")}, nil
	case 2:
		return sandbox.LogChunk{}, errKnown
	}
	return sandbox.LogChunk{}, io.EOF
}

func (l *logs) Close() error { return nil }

// command ends with code 7 when it is signalled or closed.
type command struct {
	x     *scriptedSandbox
	args  []string
	once  sync.Once
	ended chan struct{}
}

func (c *command) end() { c.once.Do(func() { close(c.ended) }) }

func (c *command) Info() sandbox.ProcessInfo { return sandbox.ProcessInfo{ID: "p1", Args: c.args} }
func (c *command) Stdin() io.WriteCloser     { return nopWriteCloser{io.Discard} }
func (c *command) Stdout() io.Reader         { return bytes.NewReader([]byte("out")) }
func (c *command) Stderr() io.Reader         { return bytes.NewReader(nil) }
func (c *command) Close() error              { c.end(); return nil }

func (c *command) Signal(context.Context, int) error { c.end(); return c.x.p.enter("signal") }

func (c *command) Resize(context.Context, sandbox.WindowSize) error { return c.x.p.enter("resize") }

func (c *command) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-c.ended:
		return sandbox.Exit{Code: 7, Reason: sandbox.ReasonExited}, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
