package sandboxes

import (
	"encoding/base64"
	"sync"
	"unicode/utf8"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// capture keeps the beginning of a stream and lets the rest go by, so that a
// command never waits for us. It is safe for concurrent use.
type capture struct {
	limit int64

	mu      sync.Mutex
	data    []byte
	dropped int64
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := min(int64(len(p)), c.limit-int64(len(c.data)))
	c.data = append(c.data, p[:room]...)
	c.dropped += int64(len(p)) - room
	return len(p), nil
}

// result is the output of --json for a command.
type result struct {
	Sandbox string         `json:"sandbox,omitempty"` // the name
	Exit    int            `json:"exit"`              // as the exit code of atoll itself
	Reason  sandbox.Reason `json:"reason,omitempty"`
	Signal  int            `json:"signal,omitempty"`
	Detail  string         `json:"detail,omitempty"`

	Stdout output `json:"stdout"`
	Stderr output `json:"stderr"`

	DurationMS int64 `json:"durationMs"`
	// Limits are requested limits that are not enforced.
	Limits map[string]sandbox.Enforcement `json:"limits,omitempty"`
	Error  *sandbox.Error                 `json:"error,omitempty"` // of Atoll, not of the command
}

// output is one captured stream.
type output struct {
	Data      string `json:"data"`
	Encoding  string `json:"encoding"` // "utf-8", or "base64" for anything else
	Truncated bool   `json:"truncated"`
	Dropped   int64  `json:"dropped,omitempty"` // bytes that are missing at the end
}

func (c *capture) output() output {
	c.mu.Lock()
	defer c.mu.Unlock()
	data := c.data
	if c.dropped > 0 {
		data = term.WholeRunes(data)
	}
	o := output{Data: string(data), Encoding: "utf-8", Truncated: c.dropped > 0, Dropped: c.dropped + int64(len(c.data)-len(data))}
	if !utf8.Valid(data) {
		o.Data, o.Encoding = base64.StdEncoding.EncodeToString(c.data), "base64"
		o.Dropped = c.dropped
	}
	return o
}
