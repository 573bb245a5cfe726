package atoll

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// readListing reads a page of sandboxes. Nearly all is written by daemons in
// the plainest way there is, and reading that takes a fraction of the time that
// encoding/json needs to find its way by reflection, which reads the rest.
func readListing(text []byte) ([]Info, error) {
	if boxes, ok := plainListing(text); ok {
		return boxes, nil
	}
	var page struct{ Sandboxes []Info }
	err := json.Unmarshal(text, &page)
	return page.Sandboxes, err
}

// plainListing reads a page without blanks, escapes, anything but ASCII, and
// names it does not know. It is not ok otherwise, and nothing is said about
// what is wrong.
func plainListing(text []byte) (boxes []Info, ok bool) {
	r := plainReader{text: text, ok: true}
	if r.take(`{"next":`) {
		r.string()
		r.want(`,"sandboxes":[`)
	} else {
		r.want(`{"sandboxes":[`)
	}
	var last Info
	boxes = make([]Info, 0, bytes.Count(text, []byte(`{"id":`)))
	for first := true; r.ok && !r.take(`]`); first = false {
		if !first {
			r.want(`,`)
		}
		var b Info
		r.box(&b, &last)
		boxes, last = append(boxes, b), b
	}
	r.want("}\n")
	return boxes, r.ok && r.at == len(text)
}

type plainReader struct {
	text []byte
	at   int
	ok   bool
}

// box reads a sandbox. What it shares with the one before it is not kept twice.
func (r *plainReader) box(b, last *Info) {
	r.object(func(name []byte) {
		switch string(name) {
		case "id":
			b.ID = sandbox.ID(r.string())
		case "name":
			b.Name = string(r.string())
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
	r.object(func(name []byte) { (*m)[string(name)] = string(r.string()) })
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
	start := r.at
	for ; r.ok && r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			r.at++
			return r.text[start : r.at-1]
		case c < ' ' || c >= 0x7f || c == '\\':
			r.ok = false
		}
	}
	r.ok = false
	return nil
}

// again reads a string that is likely to be last.
func (r *plainReader) again(last string) string {
	if s := r.string(); string(s) != last {
		return string(s)
	}
	return last
}

func (r *plainReader) time(t *time.Time) {
	r.ok = t.UnmarshalText(r.string()) == nil && r.ok
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
