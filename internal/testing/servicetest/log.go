package servicetest

import (
	"context"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Killed is the exit code of a command that was killed.
const Killed = 137

// Log is a command of a sandbox and its output. Its methods may be called
// concurrently.
type Log struct {
	Kill context.CancelFunc
	Done chan struct{} // closed when the command has ended

	mu      sync.Mutex
	changed sync.Cond
	chunks  []Chunk
	code    *int
}

// The streams of a command.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Chunk is output of a command.
type Chunk struct {
	Stream string
	Data   []byte
}

// Text returns the output as valid text.
func (c Chunk) Text() string { return strings.ToValidUTF8(string(c.Data), "\ufffd") }

// Logged starts a command, which ends when the context does.
func (c *Cloud) Logged(ctx context.Context, in driver.Instance, cmd sandbox.Command) *Log {
	l := &Log{Done: make(chan struct{})}
	l.changed.L = &l.mu
	ctx, l.Kill = context.WithCancel(ctx)
	c.Work.Go(func() {
		defer l.Kill()
		exit, err := Stream(ctx, in, cmd, l.add(Stdout), l.add(Stderr))
		if err != nil {
			exit.Code = Killed
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.code = &exit.Code
		close(l.Done)
		l.changed.Broadcast()
	})
	return l
}

func (l *Log) add(stream string) func([]byte) error {
	return func(data []byte) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.chunks = append(l.chunks, Chunk{stream, append([]byte(nil), data...)})
		l.changed.Broadcast()
		return nil
	}
}

// Code returns the exit code, or nil while the command runs.
func (l *Log) Code() *int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.code
}

// Text returns what the command has written to a stream so far, as valid text.
func (l *Log) Text(stream string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all Chunk
	for _, c := range l.chunks {
		if c.Stream == stream {
			all.Data = append(all.Data, c.Data...)
		}
	}
	return all.Text()
}

// Follow sends the output from its beginning to the end of the command. It reports
// whether the output is complete; the context or an error ends it earlier.
func (l *Log) Follow(ctx context.Context, send func(Chunk) error) bool {
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})()
	for n := 0; ; n++ {
		l.mu.Lock()
		for n >= len(l.chunks) && l.code == nil && ctx.Err() == nil {
			l.changed.Wait()
		}
		more := l.chunks[min(n, len(l.chunks)):]
		l.mu.Unlock()
		if len(more) == 0 || ctx.Err() != nil {
			return ctx.Err() == nil
		}
		if send(more[0]) != nil {
			return false
		}
	}
}
