package atoll

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// EventOptions select events. The zero value selects all there are.
type EventOptions struct {
	After   int64 // only those with a higher Seq
	Follow  bool  // go on until the context ends
	Sandbox sandbox.ID
	Types   []string
	Ops     []string
	Since   time.Time // not before; zero: from the first
	Until   time.Time // before; zero: to the last. Following ends when that time has come.
}

func (o *EventOptions) query() url.Values {
	q := url.Values{"type": o.Types, "op": o.Ops}
	if o.After > 0 {
		q.Set("after", strconv.FormatInt(o.After, 10))
	}
	if o.Sandbox != "" {
		q.Set("sandbox", string(o.Sandbox))
	}
	for name, t := range map[string]time.Time{"since": o.Since, "until": o.Until} {
		if !t.IsZero() {
			q.Set(name, t.Format(time.RFC3339Nano))
		}
	}
	return q
}

// Events yields what happened, oldest first, and ends with the first error.
// The Seq of the last event is where to go on.
func (c *Client) Events(ctx context.Context, opts EventOptions) iter.Seq2[sandbox.Event, error] {
	if opts.Follow {
		return func(yield func(sandbox.Event, error) bool) { c.followEvents(ctx, opts, yield) }
	}
	return func(yield func(sandbox.Event, error) bool) {
		for {
			var page struct{ Events []sandbox.Event }
			if err := c.call(ctx, http.MethodGet, "/v1/events", opts.query(), nil, &page); err != nil {
				yield(sandbox.Event{}, err)
				return
			}
			if len(page.Events) == 0 {
				return
			}
			for _, e := range page.Events {
				opts.After = e.Seq
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

func (c *Client) followEvents(ctx context.Context, opts EventOptions, yield func(sandbox.Event, error) bool) {
	r, err := c.request(ctx, http.MethodGet, "/v1/events/stream", opts.query(), nil)
	if err != nil {
		yield(sandbox.Event{}, err)
		return
	}
	resp, err := c.do(r)
	if err != nil {
		if ctx.Err() == nil {
			yield(sandbox.Event{}, err)
		}
		return
	}
	defer resp.Body.Close()
	for data, err := range serverSent(ctx, resp.Body) {
		if errors.Is(err, io.EOF) {
			return // the time that it was to end at has come
		}
		var e sandbox.Event
		if err == nil && json.Unmarshal(data, &e) != nil {
			continue
		}
		if !yield(e, err) {
			return
		}
	}
	if ctx.Err() == nil {
		yield(sandbox.Event{}, transportError(ctx, io.ErrUnexpectedEOF))
	}
}

// PruneAudit removes the oldest records of a log. It is for the owner of the
// machine. The newest record, actions without an outcome, and what is still to
// be sent to a collector stay; [Client.VerifyAudit] goes on from what is kept of
// the last record that went.
func (c *Client) PruneAudit(ctx context.Context, what sandbox.AuditPrune) (done sandbox.AuditPruned, err error) {
	return done, c.call(ctx, http.MethodPost, "/v1/audit/prune", nil, what, &done)
}

// VerifyAudit checks that the log is as it was written.
func (c *Client) VerifyAudit(ctx context.Context) (report sandbox.AuditReport, err error) {
	return report, c.call(ctx, http.MethodGet, "/v1/audit/verify", nil, nil, &report)
}

// watched remembers the error of a reader, to tell it from one of the way.
type watched struct {
	r   io.Reader
	mu  sync.Mutex
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil && err != io.EOF {
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}
	return n, err
}

func (w *watched) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// ExportAudit writes the events that match, as far as they are written now, as
// JSON lines, each with the hash of its record. After an error what was written
// is not whole. After and Follow do not apply.
func (c *Client) ExportAudit(ctx context.Context, opts EventOptions, w io.Writer) error {
	return c.ExportAuditAs(ctx, AuditChained, opts, w)
}

// AuditFormat is a form in which the log is exported.
type AuditFormat string

const (
	// AuditChained is a record on a line as it was hashed, with its hash.
	AuditChained AuditFormat = "json"
	// AuditOTLP is some hundred records on a line in OTLP's JSON form, as
	// OpenTelemetry's collectors read it from a file.
	AuditOTLP AuditFormat = "otlp-json"
)

// ExportAuditAs is ExportAudit in another format.
func (c *Client) ExportAuditAs(ctx context.Context, format AuditFormat, opts EventOptions, w io.Writer) error {
	query := url.Values{"type": opts.Types, "op": opts.Ops}
	if opts.Sandbox != "" {
		query.Set("sandbox", string(opts.Sandbox))
	}
	for name, at := range map[string]time.Time{"since": opts.Since, "until": opts.Until} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	query.Set("format", string(format))
	r, err := c.request(ctx, http.MethodGet, "/v1/audit/export", query, nil)
	if err != nil {
		return err
	}
	resp, err := c.do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return transportError(ctx, err)
	}
	return nil
}
