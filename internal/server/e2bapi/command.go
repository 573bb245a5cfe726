package e2bapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// command is a command that callers can follow. It runs even without followers;
// its output is then lost, as at E2B.
type command struct {
	process driver.Process
	config  *envd.ProcessConfig
	tag     *string

	stdin  sync.Mutex // one writer at a time
	noMore bool       // the input was closed

	mu        sync.Mutex
	followers map[*follower]struct{}
	endedNow  chan struct{} // closed when followers should not wait for more output
	endOnce   sync.Once

	ended chan struct{} // closed at the end; then what follows is set
	end   *envd.EndEvent
	err   error
	lost  bool // the sandbox ended, not the command
}

// follower is a caller that gets the output from now on.
type follower struct {
	events chan *envd.DataEvent
	gone   chan struct{}
}

// backlog is the number of chunks that can wait for a follower before the
// command blocks.
const backlog = 8

func newCommand(p driver.Process, config *envd.ProcessConfig, tag *string) *command {
	return &command{
		process: p, config: config, tag: tag,
		followers: map[*follower]struct{}{}, endedNow: make(chan struct{}), ended: make(chan struct{}),
	}
}

// run reads the command's output until it has ended.
func (c *command) run() {
	var streams sync.WaitGroup
	streams.Go(func() {
		c.copy(c.process.Stdout(), func(b []byte) *envd.DataEvent {
			if c.process.Info().TTY {
				return &envd.DataEvent{PTY: b}
			}
			return &envd.DataEvent{Stdout: b}
		})
	})
	streams.Go(func() {
		c.copy(c.process.Stderr(), func(b []byte) *envd.DataEvent { return &envd.DataEvent{Stderr: b} })
	})
	exit, err := c.process.Wait(context.Background())
	drained := make(chan struct{})
	go func() {
		streams.Wait()
		close(drained)
	}()
	if err == nil && !unnatural(exit.Reason) {
		select {
		case <-drained:
		case <-c.endedNow:
			c.drainBriefly(drained)
		}
	}
	c.finish(exit, err)
	_ = c.process.Close()
	<-drained
}

// drain is how long to wait for the output of a killed command: processes that
// it left behind may hold its streams open without end.
const drain = 100 * time.Millisecond

func (c *command) drainBriefly(drained <-chan struct{}) {
	select {
	case <-drained:
	case <-time.After(drain):
	}
}

// unnatural reports whether a command ended because its sandbox did.
func unnatural(r sandbox.Reason) bool {
	switch r {
	case sandbox.ReasonKilled, sandbox.ReasonLifetime, sandbox.ReasonCrashed, sandbox.ReasonLost:
		return true
	}
	return false
}

func (c *command) finish(exit sandbox.Exit, err error) {
	switch {
	case err != nil || unnatural(exit.Reason):
		c.lost = true
	case exit.Reason == sandbox.ReasonTimeout:
		c.err = connect.NewError(connect.CodeDeadlineExceeded, errors.New("the command took too long and was killed"))
	}
	c.end = endOf(exit)
	close(c.ended)
}

// endOf converts an exit to E2B's format, which is that of Go's os/exec.
func endOf(exit sandbox.Exit) *envd.EndEvent {
	e := &envd.EndEvent{ExitCode: int32(exit.Code), Exited: true, Status: fmt.Sprintf("exit status %d", exit.Code)}
	if exit.Signal != 0 {
		e.ExitCode, e.Exited, e.Status = -1, false, "signal: "+syscall.Signal(exit.Signal).String()
	}
	if exit.Code != 0 {
		e.Error = &e.Status
	}
	return e
}

const piece = 32 << 10

func (c *command) copy(from io.Reader, event func([]byte) *envd.DataEvent) {
	buf := make([]byte, piece)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			c.tell(event(bytes.Clone(buf[:n])))
		}
		if err != nil {
			return
		}
	}
}

// tell sends output to all followers, and waits for the slowest.
func (c *command) tell(ev *envd.DataEvent) {
	c.mu.Lock()
	all := make([]*follower, 0, len(c.followers))
	for f := range c.followers {
		all = append(all, f)
	}
	c.mu.Unlock()
	for _, f := range all {
		select {
		case f.events <- ev:
		case <-f.gone:
		case <-c.ended:
		}
	}
}

func (c *command) join() *follower {
	f := &follower{events: make(chan *envd.DataEvent, backlog), gone: make(chan struct{})}
	c.mu.Lock()
	c.followers[f] = struct{}{}
	c.mu.Unlock()
	return f
}

func (c *command) leave(f *follower) {
	c.mu.Lock()
	delete(c.followers, f)
	c.mu.Unlock()
	close(f.gone)
}

// follow sends the events of a command until it ends or the caller disconnects.
func (c *command) follow(ctx context.Context, header http.Header, f *follower, out *processStream) error {
	defer c.leave(f)
	send := func(ev *envd.ProcessEvent) error { return out.Send(&envd.ProcessResponse{Event: ev}) }
	flush := flusherOf(ctx)
	flush.hold()
	gathered := time.NewTimer(gathering)
	defer gathered.Stop()
	if err := send(&envd.ProcessEvent{Start: &envd.StartEvent{PID: uint32(c.process.Info().PID)}}); err != nil {
		return err
	}
	idle := keepaliveOf(header)
	silence := time.NewTimer(idle)
	defer silence.Stop()
	for {
		var ev *envd.ProcessEvent
		select {
		case <-gathered.C:
			flush.release()
			continue
		case data := <-f.events:
			ev = &envd.ProcessEvent{Data: data}
		case <-silence.C:
			ev = &envd.ProcessEvent{Keepalive: &envd.Empty{}}
		case <-c.ended:
			return c.sayEnd(f, flush, send)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := send(ev); err != nil {
			return err
		}
		silence.Reset(idle)
	}
}

// sayEnd sends the remaining output and the end. If the sandbox ended, it cuts
// off the stream, so that clients do not see an end of the command.
func (c *command) sayEnd(f *follower, flush *flusher, send func(*envd.ProcessEvent) error) error {
	if c.lost {
		flush.release()
		panic(http.ErrAbortHandler)
	}
	flush.hold() // until the stream itself has ended
	for {
		select {
		case data := <-f.events:
			if err := send(&envd.ProcessEvent{Data: data}); err != nil {
				return err
			}
			continue
		default:
		}
		if c.err != nil {
			return c.err
		}
		return send(&envd.ProcessEvent{End: c.end})
	}
}

// endNow ends the command without waiting for more output.
func (c *command) endNow() { c.endOnce.Do(func() { close(c.endedNow) }) }

// input writes to the command. It may block.
func (c *command) input(in *envd.ProcessInput) error {
	internal := func(text string) error { return connect.NewError(connect.CodeInternal, errors.New(text)) }
	if in == nil {
		return invalid("input", "none given")
	}
	data, tty := in.Stdin, c.process.Info().TTY
	switch {
	case in.PTY != nil && !tty:
		return internal("the process has no terminal")
	case in.PTY != nil:
		data = in.PTY
	case tty:
		return internal("the process has a terminal, and no other input")
	}
	c.stdin.Lock()
	defer c.stdin.Unlock()
	if c.noMore {
		return internal("the input of the process is closed")
	}
	if _, err := c.process.Stdin().Write(data); err != nil {
		return internal("the input of the process is closed")
	}
	return nil
}

func (c *command) closeInput() {
	c.stdin.Lock()
	defer c.stdin.Unlock()
	c.noMore = true
	_ = c.process.Stdin().Close() // it may have ended
}
