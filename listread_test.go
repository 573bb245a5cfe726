package atoll

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

const plainPage = `{"next":"abc","sandboxes":[{"id":"sb-1","name":"one","state":"running","image":"debian:12","provider":"gvisor",` +
	`"resources":{"cpus":1.5,"memory":1073741824,"disk":0,"pids":-3},"labels":{"a":"b","c":""},"created":"2026-01-02T03:04:05.000000006Z",` +
	`"updated":"2026-01-02T03:04:05Z","expires":"2026-01-02T03:04:05.5+01:00"},{"id":"sb-2","name":"two","state":"stopped","reason":"asked to",` +
	`"image":"","node":"n1","resources":{},"created":"2026-01-02T03:04:05Z","updated":"2026-01-02T03:04:05Z"}]}` + "\n"

// FuzzListing holds the quick reader to what encoding/json makes of a page.
func FuzzListing(f *testing.F) {
	for _, edit := range [][2]string{
		{},
		{`"next":"abc",`, ``},
		{"}\n", "}"},
		{"}\n", "} \n"},
		{"asked to", `asked \u0074o`},
		{"asked to", "\x00"},
		{"asked", "gefrägt"},
		{"asked", "\xff"},
		{`"cpus":1.5`, `"cpus":1e3`},
		{`"cpus":1.5`, `"cpus":01`},
		{`"cpus":1.5`, `"cpus":.5`},
		{`"pids":-3`, `"pids":99999999999999999999`},
		{`"pids":-3`, `"pids":-`},
		{`"pids":-3`, `"pids":0.5`},
		{`"name":"two"`, `"name":"two","name":"three"`},
		{`"name":"two"`, `"labels":{"a":"x"},"labels":{"b":"y"}`},
		{`"name":"two"`, `"Name":"two"`},
		{`"name":"two"`, `"exit":{"code":3}`},
		{`"name":"two"`, `"name":2`},
		{`"name":"two"`, `"name":null`},
		{`"labels":{"a":"b","c":""}`, `"labels":{}`},
		{`"labels":{"a":"b","c":""}`, `"labels":{"a":"b",}`},
		{`2026-01-02T03:04:05Z`, `2026-13-02`},
		{`.000000006Z`, `.0000000065Z`},
		{`.000000006Z`, `.Z`},
		{`.000000006Z`, `,5Z`},
		{`"2026-01-02T03:04:05Z","expires"`, `"2026-01-02T24:04:05Z","expires"`},
		{`"2026-01-02T03:04:05Z","expires"`, `"2026-01-02T03:04:60Z","expires"`},
		{`"2026-01-02T03:04:05Z","expires"`, `"2026-01-02T03:04:05.120Z","expires"`},
		{`"2026-01-02T03:04:05Z","expires"`, `"2026-01-02T3:04:05Z","expires"`},
		{`"2026-01-02T03:04:05Z","expires"`, `"2026-01-02T03:04:05+00:00","expires"`},
		{`},{`, `}{`},
		{`},{`, `},,{`},
		{`[{`, `[,{`},
		{`{}`, `{"cpus":1,"cpus":2}`},
	} {
		f.Add([]byte(strings.Replace(plainPage, edit[0], edit[1], 1)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		quick, ok := plainListing(text, nil)
		if !ok {
			return
		}
		var page struct{ Sandboxes []Info }
		if err := json.Unmarshal(text, &page); err != nil {
			t.Fatalf("read what is not JSON: %v", err)
		}
		if len(quick) != len(page.Sandboxes) || len(quick) > 0 && !reflect.DeepEqual(quick, page.Sandboxes) {
			t.Errorf("read\n%+v, is\n%+v", quick, page.Sandboxes)
		}
	})
}

// Whatever the place of a byte, it is looked at.
func TestIsPlain(t *testing.T) {
	for c := range 256 {
		for at := range 17 {
			text := []byte("some plain text: ")
			text[at] = byte(c)
			if got, want := isPlain(text), c >= ' ' && c < 0x7f && c != '\\'; got != want {
				t.Errorf("byte %#x at %d: %v", c, at, got)
			}
		}
	}
}

// What daemons write is read quickly, or the quick reader is for nothing.
func TestPlainListing(t *testing.T) {
	boxes, ok := plainListing([]byte(plainPage), nil)
	if !ok || len(boxes) != 2 || boxes[0].Resources.CPUs != 1.5 || boxes[1].Reason != "asked to" {
		t.Errorf("%v %+v", ok, boxes)
	}
	for _, end := range []int{0, 1, 20, len(plainPage) - 2} {
		if _, ok := plainListing([]byte(plainPage[:end]), nil); ok {
			t.Errorf("a page that was cut after %d bytes is taken for whole", end)
		}
	}
}

// pagesServer serves numbered pages; what it answers for a cursor may be changed.
func pagesServer(t *testing.T, pages int, answer func(w http.ResponseWriter, r *http.Request, n int) bool) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 0
		_, _ = fmt.Sscanf(r.FormValue("cursor"), "c%d", &n)
		if answer != nil && answer(w, r, n) {
			return
		}
		next := ""
		if n < pages-1 {
			next = fmt.Sprintf(`"next":"c%d",`, n+1)
		}
		fmt.Fprintf(w, `{%s"sandboxes":[{"id":"sb-%d-a"},{"id":"sb-%d-b"}]}`+"\n", next, n, n)
	}))
	t.Cleanup(s.Close)
	c, err := New(Options{Host: s.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Pages come in order, once each, and nobody who stops is fetched for further.
func TestListPages(t *testing.T) {
	asked := make(chan int, 100)
	c := pagesServer(t, 5, func(_ http.ResponseWriter, _ *http.Request, n int) bool { asked <- n; return false })
	var ids []string
	for b, err := range c.List(t.Context(), ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimPrefix(string(b.ID), "sb-"))
	}
	if got := strings.Join(ids, " "); got != "0-a 0-b 1-a 1-b 2-a 2-b 3-a 3-b 4-a 4-b" {
		t.Error(got)
	}
	if len(asked) != 5 {
		t.Errorf("%d requests", len(asked))
	}
	for len(asked) > 0 {
		<-asked
	}
	for range c.List(t.Context(), ListOptions{}) {
		break
	}
	if len(asked) != 1 {
		t.Errorf("%d requests for one sandbox", len(asked))
	}
}

// An error in the middle comes after what was before it; a caller that gives up
// in the middle ends what is under way.
func TestListBreaksOff(t *testing.T) {
	c := pagesServer(t, 5, func(w http.ResponseWriter, r *http.Request, n int) bool {
		if n == 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":"unavailable","detail":"away"}`)
		}
		return n == 3
	})
	got, failed := 0, error(nil)
	for _, err := range c.List(t.Context(), ListOptions{}) {
		if err != nil {
			failed = err
			continue
		}
		got++
	}
	if got != 6 || sandbox.CodeOf(failed) != sandbox.CodeUnavailable {
		t.Errorf("%d, then %v", got, failed)
	}
	begun := make(chan struct{})
	c = pagesServer(t, 5, func(_ http.ResponseWriter, r *http.Request, n int) bool {
		if n == 2 {
			close(begun)
			<-r.Context().Done() // the caller is awaited for ever
		}
		return n == 2
	})
	for b, err := range c.List(t.Context(), ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if b.ID == "sb-1-b" {
			<-begun
			break // and List returns
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c = pagesServer(t, 5, nil)
	for b, err := range c.List(ctx, ListOptions{}) {
		if b.ID == "sb-2-a" {
			cancel()
		}
		failed = err
	}
	if failed != nil && sandbox.CodeOf(failed) != sandbox.CodeCanceled {
		t.Error(failed)
	}
}
