// Package record records terminals that viewers share. A recording is an
// asciicast file of version 2, which grows in a directory of the daemon and is
// copied to the blob store when it ends, and before its sandbox is paused,
// saved or moved.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// The codes of events in an asciicast file.
const (
	output = "o"
	input  = "i"
	resize = "r"
)

// cast makes the lines of an asciicast file. It is not safe for concurrent use.
type cast struct {
	last time.Duration     // of the last event
	part map[string][]byte // by code: the beginning of a character whose rest has not arrived
}

func newCast() *cast { return &cast{part: map[string][]byte{}} }

// header returns the first line.
func (*cast) header(size sandbox.WindowSize, began time.Time, title string) []byte {
	return line(struct {
		Version   int               `json:"version"`
		Width     uint16            `json:"width"`
		Height    uint16            `json:"height"`
		Timestamp int64             `json:"timestamp"`
		Title     string            `json:"title,omitempty"`
		Env       map[string]string `json:"env"`
	}{2, size.Cols, size.Rows, began.Unix(), title, map[string]string{"TERM": "xterm-256color"}})
}

// size returns the line of a change of the size.
func (c *cast) size(at time.Duration, size sandbox.WindowSize) []byte {
	return c.event(at, resize, fmt.Sprintf("%dx%d", size.Cols, size.Rows))
}

// data returns the line of bytes that were shown or typed. It is empty if they
// are only the beginning of a character.
func (c *cast) data(at time.Duration, code string, p []byte) []byte {
	text := append(c.part[code], p...)
	n := len(text) - unfinished(text)
	c.part[code] = bytes.Clone(text[n:])
	if n == 0 {
		return nil
	}
	return c.event(at, code, string(text[:n]))
}

// screen returns the line of a picture that replaces what was shown.
func (c *cast) screen(at time.Duration, picture []byte) []byte {
	c.part[output] = nil
	return c.data(at, output, picture)
}

// rest returns the lines of characters that will not be completed.
func (c *cast) rest(at time.Duration) (out []byte) {
	for _, code := range []string{input, output} {
		if p := c.part[code]; len(p) > 0 {
			out = append(out, c.event(at, code, string(p))...)
		}
	}
	clear(c.part)
	return out
}

func (c *cast) event(at time.Duration, code, text string) []byte {
	c.last = max(c.last, at)
	return line([]any{json.RawMessage(fmt.Sprintf("%.6f", c.last.Seconds())), code, text})
}

// line encodes a line. Bytes that are no text become replacement characters.
func line(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // has only what can be encoded
	return b.Bytes()
}

// unfinished returns how many bytes at the end of p begin a character that is
// not complete.
func unfinished(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if last := p[len(p)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}
