package rest

import (
	"bufio"
	"cmp"
	"io"
	"strings"
)

// maxEvent limits a line of an event stream.
const maxEvent = 4 << 20

// Stream reads server-sent events. It is for one goroutine.
type Stream struct {
	body  io.ReadCloser
	lines *bufio.Scanner
}

// NewStream reads the events of an answer.
func NewStream(body io.ReadCloser) *Stream {
	s := &Stream{body: body, lines: bufio.NewScanner(body)}
	s.lines.Buffer(nil, maxEvent)
	return s
}

// Next returns an event's name, which may be empty, and its data. An incomplete
// event does not count.
func (s *Stream) Next() (name, data string, err error) {
	var lines []string
	some := false
	for s.lines.Scan() {
		field, value, _ := strings.Cut(s.lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case s.lines.Text() == "" && some:
			return name, strings.Join(lines, "\n"), nil
		case field == "event":
			name, some = value, true
		case field == "data":
			lines, some = append(lines, value), true
		}
	}
	return "", "", cmp.Or(s.lines.Err(), io.ErrUnexpectedEOF)
}

// Close closes the answer.
func (s *Stream) Close() error { return s.body.Close() }
