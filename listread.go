package atoll

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// readListing reads a page of sandboxes. Nearly all is written by daemons in
// the plainest way there is, and reading that takes a fraction of the time that
// encoding/json needs to find its way by reflection, which reads the rest.
// The sandboxes are put into room, which is made larger if need be.
func readListing(text []byte, room []Info) ([]Info, error) {
	if boxes, ok := plainListing(text, room); ok {
		return boxes, nil
	}
	var page struct{ Sandboxes []Info }
	err := json.Unmarshal(text, &page)
	return page.Sandboxes, err
}

// plainListing reads a page without blanks, escapes, anything but ASCII, and
// names it does not know. It is not ok otherwise, and nothing is said about
// what is wrong.
func plainListing(text []byte, room []Info) (boxes []Info, ok bool) {
	body, ended := bytes.CutSuffix(text, []byte("}\n"))
	r := plainReader{text: body, ok: ended && isPlain(body)}
	if r.take(`{"next":`) {
		r.string()
		r.want(`,"sandboxes":[`)
	} else {
		r.want(`{"sandboxes":[`)
	}
	boxes = slices.Grow(room[:0], bytes.Count(text, []byte(`{"id":`)))
	last := &Info{}
	for first := true; r.ok && !r.take(`]`); first = false {
		if !first {
			r.want(`,`)
		}
		boxes = append(boxes, Info{})
		b := &boxes[len(boxes)-1]
		r.box(b, last)
		last = b
	}
	return boxes, r.ok && r.at == len(body)
}

// isPlain reports whether text is printable ASCII without a backslash. It looks
// at eight bytes at a time.
func isPlain(text []byte) bool {
	const each, high = 0x0101010101010101, 0x8080808080808080
	for ; len(text) >= 8; text = text[8:] {
		x := binary.LittleEndian.Uint64(text)
		slash := x ^ '\\'*each
		// A byte below n borrows when n is taken from it, and none of those before it does.
		if (x|(x+each)|(x-' '*each)&^x|(slash-each)&^slash)&high != 0 {
			return false
		}
	}
	for _, c := range text {
		if c < ' ' || c >= 0x7f || c == '\\' {
			return false
		}
	}
	return true
}

// plainReader reads text that isPlain.
type plainReader struct {
	text []byte
	at   int
	ok   bool
	kept strings.Builder // what strings are parts of: see keep

	day      []byte // the date of the last moment in UTC, as it was written
	midnight time.Time
}

// box reads a sandbox. What it shares with the one before it is not kept twice.
func (r *plainReader) box(b, last *Info) {
	r.object(func(name []byte) {
		switch string(name) {
		case "id":
			b.ID = sandbox.ID(r.keep(r.string()))
		case "name":
			b.Name = r.keep(r.string())
		case "state":
			b.State = sandbox.State(r.again(string(last.State)))
		case "reason":
			b.Reason = r.again(last.Reason)
		case "image":
			b.Image = r.again(last.Image)
		case "provider":
			b.Provider = r.again(last.Provider)
		case "node":
			b.Node = r.again(last.Node)
		case "resources":
			r.resources(&b.Resources)
		case "labels":
			r.labels(&b.Labels)
		case "created":
			r.time(&b.Created)
		case "updated":
			r.time(&b.Updated)
		case "expires":
			r.time(&b.Expires)
		default:
			r.ok = false
		}
	})
}

func (r *plainReader) resources(v *sandbox.Resources) {
	r.object(func(name []byte) {
		switch string(name) {
		case "cpus":
			var err error
			v.CPUs, err = strconv.ParseFloat(string(r.number()), 64)
			r.ok = r.ok && err == nil
		case "memory":
			r.int(&v.Memory)
		case "disk":
			r.int(&v.Disk)
		case "pids":
			r.int(&v.PIDs)
		default:
			r.ok = false
		}
	})
}

func (r *plainReader) labels(m *map[string]string) {
	if *m != nil {
		r.ok = false
		return
	}
	*m = map[string]string{}
	r.object(func(name []byte) { (*m)[r.keep(name)] = r.keep(r.string()) })
}

func (r *plainReader) object(field func(name []byte)) {
	r.want(`{`)
	if r.take(`}`) {
		return
	}
	for r.ok {
		name := r.string()
		r.want(`:`)
		field(name)
		if r.take(`}`) {
			return
		}
		r.want(`,`)
	}
}

// take reports whether s comes next, and passes it.
func (r *plainReader) take(s string) bool {
	if !r.ok || len(r.text)-r.at < len(s) || string(r.text[r.at:r.at+len(s)]) != s {
		return false
	}
	r.at += len(s)
	return true
}

func (r *plainReader) want(s string) { r.ok = r.ok && r.take(s) }

// string reads a string.
func (r *plainReader) string() []byte {
	r.want(`"`)
	if n := bytes.IndexByte(r.text[r.at:], '"'); r.ok && n >= 0 {
		s := r.text[r.at : r.at+n]
		r.at += n + 1
		return s
	}
	r.ok = false
	return nil
}

// chunk is how much text strings have in common. One that is kept keeps so much
// in memory.
const chunk = 2048

// keep makes a string. Many small ones are made at once.
func (r *plainReader) keep(s []byte) string {
	if r.kept.Cap()-r.kept.Len() < len(s) {
		r.kept = strings.Builder{}
		r.kept.Grow(max(chunk, len(s)))
	}
	start := r.kept.Len()
	r.kept.Write(s)
	return r.kept.String()[start:]
}

// again reads a string that is likely to be last.
func (r *plainReader) again(last string) string {
	if s := r.string(); string(s) != last {
		return r.keep(s)
	}
	return last
}

// time reads a moment. Those of a listing are often of one day, whose beginning
// need not be found anew.
func (r *plainReader) time(t *time.Time) {
	s := r.string()
	if into, ok := r.sameDay(s); ok {
		*t = r.midnight.Add(into)
		return
	}
	r.ok = t.UnmarshalText(s) == nil && r.ok
	if r.ok && s[len(s)-1] == 'Z' {
		r.day, r.midnight = s[:len("2006-01-02T")], t.Truncate(24*time.Hour)
	}
}

// sameDay returns how long after the last midnight s is, if s is a moment of
// that day in UTC.
func (r *plainReader) sameDay(s []byte) (into time.Duration, ok bool) {
	clock, same := bytes.CutPrefix(s, r.day)
	if !same || len(r.day) == 0 || len(clock) < len("15:04:05Z") || clock[2] != ':' || clock[5] != ':' || clock[len(clock)-1] != 'Z' {
		return 0, false
	}
	hour, minute, second := digitsOf(clock[:2]), digitsOf(clock[3:5]), digitsOf(clock[6:8])
	ok = hour >= 0 && hour < 24 && minute >= 0 && minute < 60 && second >= 0 && second < 60
	into = time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second
	if fraction := clock[8 : len(clock)-1]; len(fraction) > 0 {
		nanos := digitsOf(fraction[1:])
		ok = ok && fraction[0] == '.' && nanos >= 0 && len(fraction) <= len(".999999999")
		for range max(0, len(".999999999")-len(fraction)) {
			nanos *= 10
		}
		into += time.Duration(nanos)
	}
	return into, ok
}

// digitsOf returns the number that digits are, -1 if they are none.
func digitsOf(digits []byte) int {
	n := -1
	for i, c := range digits {
		if c < '0' || c > '9' || i > 9 {
			return -1
		}
		n = max(n, 0)*10 + int(c-'0')
	}
	return n
}

// number reads digits as JSON has them, but for exponents.
func (r *plainReader) number() []byte {
	start := r.at
	r.take(`-`)
	if !r.take(`0`) {
		r.digits()
	}
	if r.take(`.`) {
		r.digits()
	}
	return r.text[start:r.at]
}

func (r *plainReader) digits() {
	start := r.at
	for r.at < len(r.text) && r.text[r.at]-'0' <= 9 {
		r.at++
	}
	r.ok = r.ok && r.at > start
}

func (r *plainReader) int(v *int64) {
	var err error
	*v, err = strconv.ParseInt(string(r.number()), 10, 64)
	r.ok = r.ok && err == nil
}
