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

// Events yields what happened, oldest first, and ends with the first error.
// The Seq of the last event is where to go on.
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
			for _, e := range page.Events {
				q.After = e.Seq
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// FollowEvents is Events that goes on with what happens from now on, until ctx
// ends or the time Until has come.
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
		yield(sandbox.Event{}, client.TransportError(ctx, io.ErrUnexpectedEOF))
	}
}
