package atoll

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// ListOptions select sandboxes. The zero value selects all that are not gone.
type ListOptions struct {
	States []sandbox.State
	Labels map[string]string
	Page   int // how many to ask for at a time; zero leaves it to the daemon
}

func (o *ListOptions) query() url.Values {
	query := url.Values{}
	for _, s := range o.States {
		query.Add("state", string(s))
	}
	for k, v := range o.Labels {
		query.Add("label", k+"="+v)
	}
	if o.Page > 0 {
		query.Set("limit", strconv.Itoa(o.Page))
	}
	return query
}

// List yields the sandboxes that match, newest first, and ends with the first
// error. For who goes beyond the first page, the next one is fetched while
// they look at the one before.
func (c *Client) List(ctx context.Context, opts ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		query := opts.query()
		var room []Info
		first := c.listing(ctx, query)
		if !first.yield(yield, &room) || first.next == "" {
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		pages, enough := make(chan listing), make(chan struct{})
		go func() {
			defer close(pages)
			for last := first; last.next != ""; {
				query.Set("cursor", last.next)
				last = c.listing(ctx, query)
				select {
				case pages <- last:
				case <-enough:
					return
				}
			}
		}()
		defer func() {
			close(enough)
			cancel()
			for range pages { // until its maker has ended
			}
		}()
		for page := range pages {
			if !page.yield(yield, &room) {
				return
			}
		}
	}
}

// pages are what listings are read to: of a thousand sandboxes some 300 KiB.
var pages = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// listing is a page as it came.
type listing struct {
	text *bytes.Buffer
	next string // the cursor of the page after it; empty at the end
	err  error
}

// listing fetches a page.
func (c *Client) listing(ctx context.Context, query url.Values) (p listing) {
	r, err := c.request(ctx, http.MethodGet, "/v1/sandboxes", query, nil)
	if err != nil {
		return listing{err: err}
	}
	resp, err := c.do(r)
	if err != nil {
		return listing{err: err}
	}
	defer resp.Body.Close()
	p.text = pages.Get().(*bytes.Buffer)
	p.text.Reset()
	if _, p.err = p.text.ReadFrom(resp.Body); p.err == nil {
		p.next, p.err = cursorOf(p.text.Bytes())
	}
	if p.err != nil {
		p.err = transportError(ctx, p.err)
	}
	return p
}

// cursorOf reads the cursor of a page alone. Daemons put it first.
func cursorOf(text []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	_, _ = d.Token() // the opening brace
	if name, _ := d.Token(); name == "next" {
		if cursor, _ := d.Token(); cursor != nil {
			next, _ := cursor.(string)
			return next, nil
		}
	}
	if !bytes.Contains(text, []byte(`"next"`)) {
		return "", nil
	}
	var page struct{ Next string }
	err := json.Unmarshal(text, &page)
	return page.Next, err
}

// yield hands out what is on the page, or why there is none, and reports
// whether more is wanted. The pages of a listing are read to the same room.
func (p *listing) yield(yield func(Info, error) bool, room *[]Info) bool {
	if p.err == nil {
		*room, p.err = readListing(p.text.Bytes(), *room)
		pages.Put(p.text)
	}
	if p.err != nil {
		yield(Info{}, p.err)
		return false
	}
	for _, s := range *room {
		if !yield(s, nil) {
			return false
		}
	}
	return true
}
