package atoll

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// Events yields the events that match q, oldest first, and ends with the first
// error. To continue later, set EventQuery.After to the Seq of the last event.
func (c *Client) Events(ctx context.Context, q sandbox.EventQuery) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) {
		for {
			var page struct{ Events []sandbox.Event }
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/events", client.EventQuery(q), nil, &page); err != nil {
				yield(sandbox.Event{}, err)
				return
			}
			if len(page.Events) == 0 {
				return
			}
			before := q.After
			for _, e := range page.Events {
				q.After = e.Seq
				if !yield(e, nil) {
					return
				}
			}
			if q.After <= before {
				yield(sandbox.Event{}, &sandbox.Error{Code: sandbox.CodeInternal, Op: "event.list", Message: "the daemon answered with events that are not in order"})
				return
			}
		}
	}
}

// FollowEvents is like Events, but then waits for new events. It ends when ctx
// ends or the time EventQuery.Until is reached.
func (c *Client) FollowEvents(ctx context.Context, q sandbox.EventQuery) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) { c.follow(ctx, q, yield) }
}

func (c *Client) follow(ctx context.Context, q sandbox.EventQuery, yield func(sandbox.Event, error) bool) {
	r, err := c.conn.Request(ctx, http.MethodGet, "/v1/events/stream", client.EventQuery(q), nil)
	if err != nil {
		yield(sandbox.Event{}, err)
		return
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			yield(sandbox.Event{}, err)
		}
		return
	}
	defer resp.Body.Close()
	for data, err := range client.ServerSent(ctx, resp.Body) {
		if errors.Is(err, io.EOF) {
			return // EventQuery.Until is reached
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
		yield(sandbox.Event{}, client.TransportError(ctx, io.ErrUnexpectedEOF))
	}
}
