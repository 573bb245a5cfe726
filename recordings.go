package atoll

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
)

// Record starts a recording of a terminal or of the desktop of the sandbox. It
// goes on without the caller, until it is stopped, the command in the terminal
// ends, or a limit is reached. While it runs, the sandbox is in use.
func (s *Sandbox) Record(ctx context.Context, n sandbox.NewRecording) (r sandbox.Recording, err error) {
	return r, s.client.conn.Call(ctx, http.MethodPost, s.path("/recordings"), nil, n, &r)
}

func recordingPath(id, rest string) string { return "/v1/recordings/" + url.PathEscape(id) + rest }

// Recordings yields the recordings that match, newest first, and requests them
// page by page. It ends with the first error.
func (c *Client) Recordings(ctx context.Context, q sandbox.RecordingQuery) iter.Seq2[sandbox.Recording, error] {
	return func(yield func(sandbox.Recording, error) bool) {
		query := url.Values{}
		for name, value := range map[string]string{"sandbox": q.Sandbox, "session": q.Session, "cursor": q.Cursor} {
			if value != "" {
				query.Set(name, value)
			}
		}
		if q.Limit > 0 {
			query.Set("limit", strconv.Itoa(q.Limit))
		}
		for {
			var page struct {
				Recordings []sandbox.Recording
				Next       string
			}
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/recordings", query, nil, &page); err != nil {
				yield(sandbox.Recording{}, err)
				return
			}
			for _, r := range page.Recordings {
				if !yield(r, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

// Recording returns a recording.
func (c *Client) Recording(ctx context.Context, id string) (r sandbox.Recording, err error) {
	return r, c.conn.Call(ctx, http.MethodGet, recordingPath(id, ""), nil, nil, &r)
}

// StopRecording ends a recording, and waits until it is stored. It succeeds if
// the recording has ended already.
func (c *Client) StopRecording(ctx context.Context, id string) (r sandbox.Recording, err error) {
	return r, c.conn.Call(ctx, http.MethodPost, recordingPath(id, "/stop"), nil, nil, &r)
}

// FetchRecording opens the file of a recording: of a terminal, an asciicast of
// version 2, and of a desktop, an MP4 file. Of a recording that runs, it has what was recorded until now. The caller closes
// the reader.
func (c *Client) FetchRecording(ctx context.Context, id string) (io.ReadCloser, error) {
	r, err := c.conn.Request(ctx, http.MethodGet, recordingPath(id, "/content"), nil, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// RemoveRecording removes a recording. One that runs ends.
func (c *Client) RemoveRecording(ctx context.Context, id string) error {
	return c.conn.Call(ctx, http.MethodDelete, recordingPath(id, ""), nil, nil, nil)
}
