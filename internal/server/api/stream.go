package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// startTimeout bounds the wait for the start message.
	startTimeout = 10 * time.Second
	// lastWord bounds the time for sending the error to a caller that is
	// disconnected.
	lastWord = time.Second
	// lastInput bounds the time for passing on input, signals and window sizes
	// that a client sent before it closed the connection.
	lastInput = 5 * time.Second
)

// execStream runs a command connected to the caller. The command ends with the
// connection, unless it runs in the background.
func (a *API) execStream(w http.ResponseWriter, r *http.Request) error {
	if err := isWebSocket(r); err != nil {
		return err
	}
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return a.connect(w, r, func(ctx context.Context, link *stream.Link) (driver.Process, *stream.Position, error) {
		noCommand := invalid("command", "the first message must be a start with a command")
		silent := time.AfterFunc(startTimeout, func() { a.refuse(ctx, link, noCommand) })
		m, err := link.Receive(ctx)
		if cause := ctx.Err(); cause != nil {
			return nil, nil, cause
		}
		var cmd Command
		if !silent.Stop() || err != nil || m.Type != "start" || json.Unmarshal(m.Command, &cmd) != nil {
			return nil, nil, noCommand
		}
		p, err := sb.Exec(ctx, cmd.command())
		return p, &stream.Position{}, err
	})
}

// attachStream connects to a running background command.
func (a *API) attachStream(w http.ResponseWriter, r *http.Request) error {
	if err := isWebSocket(r); err != nil {
		return err
	}
	q := query{r: r}
	from := driver.Cursor{Stdout: q.int("stdout", 10, 64), Stderr: q.int("stderr", 10, 64)}
	skip := q.bool("skip")
	if q.err != nil {
		return q.err
	}
	if from.Stdout < 0 || from.Stderr < 0 {
		return invalid("stdout", "is negative")
	}
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return a.connect(w, r, func(ctx context.Context, _ *stream.Link) (driver.Process, *stream.Position, error) {
		id := r.PathValue("id")
		p, at, err := sb.Rejoin(ctx, id, from, skip || from == driver.Cursor{})
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported && from == (driver.Cursor{}) {
			p, err := sb.Reconnect(ctx, id)
			return p, nil, err
		}
		return p, &stream.Position{Stdin: at.Stdin, Stdout: at.Stdout, Stderr: at.Stderr}, err
	})
}

// connect upgrades the connection to a WebSocket and connects a process to it
// until both have ended.
func (a *API) connect(w http.ResponseWriter, r *http.Request, open func(context.Context, *stream.Link) (driver.Process, *stream.Position, error)) error {
	ws, err := Upgrade(w, r)
	if err != nil || ws == nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	link := stream.New(ctx, ws)
	defer link.Abort()
	defer context.AfterFunc(r.Context(), func() {
		a.tellCut(r.Context(), link)
		cancel(context.Cause(r.Context()))
	})()
	p, at, err := open(ctx, link)
	if err != nil {
		a.refuse(ctx, link, err)
		return nil
	}
	info := p.Info()
	if err := link.Send(ctx, stream.Message{Type: "started", Process: &info, At: at}); err != nil {
		detach(p)
		return nil
	}
	a.carry(ctx, link, p)
	return nil
}

// tellCut sends an error to a caller whose key has expired. When the daemon
// shuts down, it sends nothing, so that the caller reconnects to the next
// daemon.
func (a *API) tellCut(ctx context.Context, link *stream.Link) {
	if why := cutOff(ctx, nil); sandbox.CodeOf(why) == sandbox.CodeUnauthorized {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
		defer cancel()
		text, _ := json.Marshal(a.problem(ctx, why))
		_ = link.Send(late, stream.Message{Type: "error", Error: text})
	}
}

// detach releases a process whose caller is gone. One with a hold waits for the
// caller to reconnect; any other foreground command is hung up.
func detach(p driver.Process) {
	if d, ok := driver.As[driver.Detacher](p); ok {
		_ = d.Detach()
		return
	}
	_ = p.Close()
}

// refuse sends the error that prevented the process from starting.
func (a *API) refuse(ctx context.Context, link *stream.Link, err error) {
	text, _ := json.Marshal(a.problem(ctx, err))
	if link.Send(ctx, stream.Message{Type: "error", Error: text}) == nil {
		_ = link.Close()
	}
}

// carry connects a process to a link until the client closes the link, or the
// process and its output have ended.
func (a *API) carry(ctx context.Context, link *stream.Link, p driver.Process) {
	received, stop := context.WithCancel(context.WithoutCancel(ctx)) // of what the client has sent
	ctx, cancel := context.WithCancel(ctx)
	var asked inbox
	var tasks, input sync.WaitGroup
	var goodbye atomic.Bool // the client closed the link properly
	tasks.Go(func() {
		defer cancel()
		err := link.Run(func(m stream.Message) { asked.add(request{m, link.Arrived(stream.Stdin)}) })
		goodbye.Store(err == nil)
		asked.close()
	})
	input.Go(func() {
		asked.obey(received, p, func(err error) {
			m := stream.Message{Type: "background"}
			if err != nil {
				m.Error, _ = json.Marshal(a.problem(ctx, err))
			}
			_ = link.Send(ctx, m)
		})
	})
	input.Add(1)
	tasks.Go(func() {
		// If the connection is lost, the input of a background command stays open,
		// because the caller may reconnect. Errors are ignored: a command need not read
		// all input.
		if asked.feed(p.Stdin(), link.Reader(stream.Stdin)) {
			_ = p.Stdin().Close()
		}
		input.Done()
		// The rest of the input is read and dropped, so that the client's writer does
		// not block.
		_, _ = io.Copy(io.Discard, link.Reader(stream.Stdin))
	})
	var output sync.WaitGroup
	for channel, from := range map[int]io.Reader{stream.Stdout: p.Stdout(), stream.Stderr: p.Stderr()} {
		output.Go(func() {
			to := link.Writer(channel)
			if _, err := io.Copy(to, from); err == nil {
				_ = to.Close() // otherwise more may arrive over another connection
			}
		})
	}
	ended := a.tellExit(ctx, link, p)
	if ended {
		select {
		case <-over(&output):
			if link.Close() == nil {
				goodbye.Store(true) // the client has received everything
			}
		case <-ctx.Done():
		}
	}
	link.Abort()
	cancel()
	if !ended && p.Info().Background {
		late := time.NewTimer(lastInput)
		defer late.Stop()
		select {
		case <-over(&input):
		case <-late.C: // the command does not read it
		}
	}
	stop()
	if goodbye.Load() { // both end the reads of its output
		_ = p.Close()
	} else {
		detach(p)
	}
	output.Wait()
	input.Wait()
	tasks.Wait()
}

// over returns a channel that is closed when all tasks have ended.
func over(tasks *sync.WaitGroup) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		tasks.Wait()
		close(ended)
	}()
	return ended
}

// tellExit waits for the end of a process and sends it to the client.
func (a *API) tellExit(ctx context.Context, link *stream.Link, p driver.Process) bool {
	exit, err := p.Wait(ctx)
	if ctx.Err() != nil {
		return false
	}
	m := stream.Message{Type: "exit", Exit: &exit}
	if err != nil {
		text, _ := json.Marshal(a.problem(ctx, err))
		m = stream.Message{Type: "error", Error: text}
	}
	return link.Send(ctx, m) == nil
}
