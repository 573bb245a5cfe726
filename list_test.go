package atoll_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// pagesServer serves five numbered pages of two sandboxes each. answer, if not
// nil, can answer a page instead.
func pagesServer(t *testing.T, answer func(w http.ResponseWriter, n int) bool) *atoll.Client {
	t.Helper()
	const pages = 5
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 0
		_, _ = fmt.Sscanf(r.FormValue("cursor"), "c%d", &n)
		if answer != nil && answer(w, n) {
			return
		}
		next := ""
		if n < pages-1 {
			next = fmt.Sprintf(`,"next":"c%d"`, n+1)
		}
		fmt.Fprintf(w, `{"sandboxes":[{"id":"sb-%d-a"},{"id":"sb-%d-b"}]%s}`, n, n, next)
	}))
	t.Cleanup(s.Close)
	c, err := atoll.New(atoll.Options{Host: s.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Pages are requested in order, once each, and only when the caller needs them.
func TestListFollowsCursors(t *testing.T) {
	asked := make(chan int, 100)
	c := pagesServer(t, func(_ http.ResponseWriter, n int) bool { asked <- n; return false })
	var ids []string
	for b, err := range c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimPrefix(string(b.ID), "sb-"))
	}
	if got, want := strings.Join(ids, " "), "0-a 0-b 1-a 1-b 2-a 2-b 3-a 3-b 4-a 4-b"; got != want {
		t.Errorf("listed %s, want %s", got, want)
	}
	if len(asked) != 5 {
		t.Errorf("%d requests, want 5", len(asked))
	}
	for len(asked) > 0 {
		<-asked
	}
	for range c.List(t.Context(), atoll.ListOptions{}) {
		break
	}
	if len(asked) != 1 {
		t.Errorf("%d requests for one sandbox, want 1", len(asked))
	}
}

// An error in the middle comes after the sandboxes before it, and ends the
// listing.
func TestListBreaksOff(t *testing.T) {
	c := pagesServer(t, func(w http.ResponseWriter, n int) bool {
		if n == 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":"unavailable","detail":"away"}`)
		}
		return n == 3
	})
	got, failed := 0, error(nil)
	for _, err := range c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			failed = err
			continue
		}
		got++
	}
	if got != 6 || sandbox.CodeOf(failed) != sandbox.CodeUnavailable {
		t.Errorf("%d sandboxes, then %v; want 6, then %s", got, failed, sandbox.CodeUnavailable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed = nil
	for b, err := range pagesServer(t, nil).List(ctx, atoll.ListOptions{}) {
		if b.ID == "sb-2-a" {
			cancel()
		}
		failed = err
	}
	if sandbox.CodeOf(failed) != sandbox.CodeCanceled {
		t.Errorf("a listing whose context was canceled ended with %v, want %s", failed, sandbox.CodeCanceled)
	}
}
