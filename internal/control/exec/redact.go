package exec

import (
	"context"
	"io"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// redactedLog is a log with values removed. Each stream is redacted separately.
// Held-back bytes are returned at the end or before a gap.
type redactedLog struct {
	driver.LogReader
	r       *secret.Redactor
	torn    bool // it may begin in the middle of the output
	streams map[int]*secret.Redaction
	ready   []sandbox.LogChunk
	err     error
}

// Next implements driver.LogReader.
func (l *redactedLog) Next() (sandbox.LogChunk, error) {
	for len(l.ready) == 0 {
		if l.err != nil {
			return sandbox.LogChunk{}, l.err
		}
		var c sandbox.LogChunk
		if c, l.err = l.LogReader.Next(); l.err != nil {
			l.flush()
			continue
		}
		l.push(c)
	}
	c := l.ready[0]
	l.ready = l.ready[1:]
	return c, nil
}

func (l *redactedLog) push(c sandbox.LogChunk) {
	s := l.streams[c.Stream]
	if s == nil {
		s = l.r.Stream(l.torn || c.Dropped > 0)
		l.streams[c.Stream] = s
	} else if c.Dropped > 0 {
		l.add(sandbox.LogChunk{Stream: c.Stream, Data: s.End()})
	}
	l.add(sandbox.LogChunk{Stream: c.Stream, Data: s.Push(c.Data), Dropped: c.Dropped})
}

// flush returns held-back bytes.
func (l *redactedLog) flush() {
	for _, stream := range []int{1, 2} {
		if s := l.streams[stream]; s != nil {
			l.add(sandbox.LogChunk{Stream: stream, Data: s.End()})
		}
	}
}

func (l *redactedLog) add(c sandbox.LogChunk) {
	if len(c.Data) > 0 || c.Dropped > 0 {
		l.ready = append(l.ready, c)
	}
}

// Unwrap returns the control log.
func (l *redactedLog) Unwrap() any { return l.LogReader }

// Logs returns the output of a command; see engine.Sandbox.Logs.
func (h *Handle) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	l, err := h.Sandbox.Logs(ctx, id, opts)
	if err != nil || h.redact == nil {
		return l, err
	}
	return &redactedLog{LogReader: l, r: h.redact, torn: opts.Tail > 0, streams: map[int]*secret.Redaction{}}, nil
}

// Redacted returns a stream of output from a sandbox, with values removed.
func (h *Handle) Redacted(from io.Reader) io.Reader { return h.redacted(from, false) }

// redacted returns a command's stream with values removed.
func (h *Handle) redacted(from io.Reader, torn bool) io.Reader {
	if h.redact == nil {
		return from
	}
	return h.redact.Reader(from, torn)
}
