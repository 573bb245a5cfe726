package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// sum returns 20 hexadecimal digits of a hash.
func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:10])
}

// execution is a command of a sandbox.
type execution struct {
	p driver.Process

	mu      sync.Mutex
	changed sync.Cond
	out     [2][]byte // by channel
	open    [2]bool
	code    *int32
	written uint64 // bytes of input
	eof     bool
}

// add returns a function that keeps output.
func (e *execution) add(channel int) func([]byte) error {
	return func(data []byte) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.out[channel] = append(e.out[channel], data...)
		e.changed.Broadcast()
		return nil
	}
}

// wait waits until ready, with the lock held, or until the context ends.
func (e *execution) wait(ctx context.Context, ready func() bool) error {
	defer context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.changed.Broadcast()
	})()
	for !ready() && ctx.Err() == nil {
		e.changed.Wait()
	}
	return ctx.Err()
}

// worker checks the token of a request, and finds the sandbox and the command.
func (s *Server) worker(h http.Header, task, id string) (*servicetest.CloudSandbox, *execution, error) {
	token, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	sb, e := s.tokens[token], s.execs[task+"\n"+id]
	owners := slices.Collect(maps.Values(s.keys))
	s.mu.Unlock()
	if sb == "" || taskOf(sb) != task {
		return nil, nil, fail(connect.CodeUnauthenticated, "The token is invalid or expired")
	}
	for _, owner := range owners {
		if b, err := s.Find(owner, sb); err == nil {
			if id != "" && e == nil {
				return b, nil, fail(connect.CodeNotFound, "There is no such exec")
			}
			return b, e, nil
		}
	}
	return nil, nil, servicetest.ErrMissing
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.execs {
		e.mu.Lock()
		if e.code == nil {
			n++
		}
		e.mu.Unlock()
	}
	return n
}

// workerRoutes sets the methods for commands.
func (s *Server) workerRoutes() {
	ref := func(in *modalapi.ExecRef) (string, string) { return in.Task, in.ID }
	end := func(e *execution) *modalapi.ExecEnd {
		if e.code != nil && *e.code > 128 {
			signal := *e.code - 128
			return &modalapi.ExecEnd{Signal: &signal}
		}
		return &modalapi.ExecEnd{Code: e.code}
	}
	routed(s, "TaskExecStart", func(in *modalapi.ExecStart) (string, string) { return in.Task, "" }, s.start)
	routed(s, "TaskExecPoll", ref, func(_ context.Context, _ *servicetest.CloudSandbox, e *execution, _ *modalapi.ExecRef) (*modalapi.ExecEnd, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return end(e), nil
	})
	routed(s, "TaskExecWait", ref, func(ctx context.Context, _ *servicetest.CloudSandbox, e *execution, _ *modalapi.ExecRef) (*modalapi.ExecEnd, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		err := e.wait(ctx, func() bool { return e.code != nil })
		return end(e), err
	})
	routed(s, "TaskExecStdinWrite", func(in *modalapi.ExecWrite) (string, string) { return in.Task, in.ID },
		func(_ context.Context, _ *servicetest.CloudSandbox, e *execution, in *modalapi.ExecWrite) (*modalapi.Empty, error) {
			e.mu.Lock()
			skip := e.written - in.Offset
			if in.Offset > e.written || e.eof {
				e.mu.Unlock()
				return nil, fail(connect.CodeFailedPrecondition, "The input has ended, or something before this was not written")
			}
			data := in.Data[min(skip, uint64(len(in.Data))):]
			e.written += uint64(len(data))
			e.eof = in.EOF
			e.mu.Unlock()
			if len(data) > 0 {
				_, _ = e.p.Stdin().Write(data) // the command may have closed it
			}
			if in.EOF {
				_ = e.p.Stdin().Close()
			}
			return &modalapi.Empty{}, nil
		})
	servicetest.HandleStream(s.GRPC, modalapi.Router+"TaskExecStdioRead", s.read)
}

// killed is the exit code of a command that was killed.
const killed int32 = 137

// start starts a command, once for each ID.
func (s *Server) start(_ context.Context, b *servicetest.CloudSandbox, _ *execution, in *modalapi.ExecStart) (*modalapi.Empty, error) {
	sb, awake, err := s.Machine(b)
	if err != nil {
		return nil, err
	}
	e := &execution{open: [2]bool{true, true}}
	e.changed.L = &e.mu
	e.mu.Lock()
	defer e.mu.Unlock()
	key := in.Task + "\n" + in.ID
	s.mu.Lock()
	if s.execs[key] != nil {
		s.mu.Unlock()
		return &modalapi.Empty{}, nil
	}
	s.execs[key] = e
	s.mu.Unlock()
	cmd := sandbox.Command{Args: in.Args, Stdin: true, Env: map[string]string{}}
	if in.Workdir != nil {
		cmd.Dir = *in.Workdir
	}
	for _, source := range in.Secrets {
		if source.Env != nil {
			for k, v := range source.Env.Contents {
				cmd.Env[k] = v
			}
		}
	}
	if e.p, err = sb.Exec(awake, &cmd); err != nil {
		s.mu.Lock()
		delete(s.execs, key)
		s.mu.Unlock()
		return nil, err
	}
	s.Work.Go(func() { e.run(awake) })
	return &modalapi.Empty{}, nil
}

// run keeps the output of a command until it has ended, or the sandbox has.
func (e *execution) run(awake context.Context) {
	defer context.AfterFunc(awake, func() { e.p.Close() })()
	var readers sync.WaitGroup
	for channel, from := range []func(){
		func() { servicetest.Pump(e.p.Stdout(), e.add(0)) }, func() { servicetest.Pump(e.p.Stderr(), e.add(1)) },
	} {
		readers.Go(func() {
			from()
			e.mu.Lock()
			defer e.mu.Unlock()
			e.open[channel] = false
			e.changed.Broadcast()
		})
	}
	exit, err := e.p.Wait(awake)
	code := int32(exit.Code)
	if err != nil {
		code = killed
	}
	readers.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.code = &code
	e.changed.Broadcast()
	e.p.Close()
}

// read sends the output of a command from an offset to its end.
func (s *Server) read(ctx context.Context, h http.Header, in *modalapi.ExecRead, send func(*modalapi.Output) error) error {
	_, e, err := s.worker(h, in.Task, in.ID)
	if err != nil {
		return err
	}
	channel, sent := in.From&1, in.Offset
	for {
		e.mu.Lock()
		err := e.wait(ctx, func() bool { return sent < uint64(len(e.out[channel])) || !e.open[channel] })
		next := slices.Clone(e.out[channel][min(sent, uint64(len(e.out[channel]))):])
		e.mu.Unlock()
		if err != nil || len(next) == 0 {
			return err
		}
		sent += uint64(len(next))
		for part := range slices.Chunk(next, 64<<10) {
			if err := send(&modalapi.Output{Data: part}); err != nil {
				return err
			}
		}
	}
}
