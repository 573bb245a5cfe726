package api

import (
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/sandbox"
)

// appender is an answer that writes itself. Listings of thousands would spend
// most of their time in encoding/json, which finds its way by reflection.
type appender interface {
	appendJSON(b []byte) ([]byte, error)
}

// formats are those in which answers are written and requests read.
func formats() map[string]huma.Format {
	f := huma.DefaultJSONFormat
	f.Marshal = marshal
	return map[string]huma.Format{"application/json": f, "json": f}
}

// pages are what listings are written to. A page of a thousand sandboxes takes
// some 300 KiB; larger buffers are not kept.
var pages = sync.Pool{New: func() any { return new([]byte) }}

const maxPooled = 1 << 20

func marshal(w io.Writer, v any) error {
	a, ok := v.(appender)
	if !ok {
		return huma.DefaultJSONFormat.Marshal(w, v)
	}
	buffer := pages.Get().(*[]byte)
	text, err := a.appendJSON((*buffer)[:0])
	if err == nil {
		_, err = w.Write(append(text, '\n'))
	}
	if cap(text) <= maxPooled {
		*buffer = text
		pages.Put(buffer)
	}
	return err
}

// appendJSON puts the cursor first, so that a reader can ask for the next page
// before it has looked at this one.
func (l listOutputBody) appendJSON(b []byte) (_ []byte, err error) {
	b = append(b, '{')
	if l.Next != "" {
		b = append(appendString(append(b, `"next":`...), l.Next), ',')
	}
	b = append(b, `"sandboxes":[`...)
	for i := range l.Sandboxes {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = l.Sandboxes[i].appendJSON(b); err != nil {
			return b, err
		}
	}
	return append(b, ']', '}'), nil
}

// appendJSON writes what encoding/json would.
func (s *Sandbox) appendJSON(b []byte) ([]byte, error) {
	if !s.brief() {
		whole := *s
		if s.LabelsJSON != "" {
			if err := json.Unmarshal([]byte(s.LabelsJSON), &whole.Labels); err != nil {
				return b, err
			}
		}
		text, err := json.Marshal(&whole)
		return append(b, text...), err
	}
	b = appendString(append(b, `{"id":`...), s.ID)
	b = appendString(append(b, `,"name":`...), s.Name)
	b = appendString(append(b, `,"state":`...), s.State)
	b = appendSome(b, `,"reason":`, s.Reason)
	b = appendString(append(b, `,"image":`...), s.Image)
	b = appendSome(b, `,"provider":`, s.Provider)
	b = appendSome(b, `,"node":`, s.Node)
	b = appendResources(append(b, `,"resources":`...), &s.Resources)
	if s.LabelsJSON != "" {
		b = append(append(b, `,"labels":`...), s.LabelsJSON...)
	} else if len(s.Labels) > 0 {
		b = appendMap(append(b, `,"labels":`...), s.Labels)
	}
	b = appendTime(append(b, `,"created":`...), s.Created)
	b = appendTime(append(b, `,"updated":`...), s.Updated)
	if s.Expires != nil {
		b = appendTime(append(b, `,"expires":`...), *s.Expires)
	}
	return append(b, '}'), nil
}

// brief reports whether s has nothing but what listings tell.
func (s *Sandbox) brief() bool {
	return s.Exit == nil && s.Pause == "" && !s.Wakes && s.LeftMS == 0 && s.Origin == "" && s.Lifetime == sandbox.Lifetime{} &&
		len(s.Entrypoint) == 0 && len(s.Cmd) == 0
}

func appendResources(b []byte, r *sandbox.Resources) []byte {
	start := len(b)
	if r.CPUs != 0 {
		b = strconv.AppendFloat(append(b, `,"cpus":`...), r.CPUs, 'f', -1, 64)
	}
	b = appendInt(b, `,"memory":`, r.Memory)
	b = appendInt(b, `,"disk":`, r.Disk)
	b = appendInt(b, `,"pids":`, r.PIDs)
	if len(b) == start {
		return append(b, '{', '}')
	}
	b[start] = '{' // in place of the first comma
	return append(b, '}')
}

func appendInt(b []byte, name string, v int64) []byte {
	if v == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), v, 10)
}

// appendSome leaves an empty value out.
func appendSome(b []byte, name, v string) []byte {
	if v == "" {
		return b
	}
	return appendString(append(b, name...), v)
}

func appendMap(b []byte, m map[string]string) []byte {
	var few [8]string // most have no more, and then nothing is allocated
	names := few[:0]
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	open := byte('{')
	for _, k := range names {
		b = append(appendString(append(b, open), k), ':')
		b, open = appendString(b, m[k]), ','
	}
	return append(b, '}')
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// appendString leaves to encoding/json what has to be escaped, which is rare.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // of a string it cannot fail
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
