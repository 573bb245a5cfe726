package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// The deadline of a body must not bound the processing: a command runs much
// longer than its request takes to arrive.
func TestBodyTimeoutIsForTheBody(t *testing.T) {
	a := New(Services{}, Options{})
	op := operation("slow", http.MethodPost, "/slow/{ref}", "Test", "Take longer than the body may")
	op.BodyReadTimeout = 10 * time.Millisecond
	huma.Register(a.huma, op, func(ctx context.Context, _ *stopInput) (*struct{}, error) {
		select {
		case <-ctx.Done():
			t.Error("the deadline of the body ended the request")
		case <-time.After(20 * op.BodyReadTimeout):
		}
		return nil, nil
	})
	s := httptest.NewServer(a)
	defer s.Close()
	resp, err := s.Client().Post(s.URL+"/slow/x", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestAttackSilentBody sends part of a body, or none of it, and keeps the
// connection open. Handlers must not wait for the rest forever, whether they
// read it or not. A slow body is read to its end, and processing it may take
// any time.
func TestAttackSilentBody(t *testing.T) {
	const rest = 300 * time.Millisecond
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer boundBody(w, r, rest)()
		status := http.StatusOK
		switch r.URL.Path {
		case "/read":
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				status = http.StatusRequestTimeout
			}
		case "/work":
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-r.Context().Done():
				t.Error("the deadline of the body ended the request")
			case <-time.After(3 * rest):
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	for name, tt := range map[string]struct {
		path string
		send []string // with pauses shorter than the deadline
		want int
	}{
		"read, nothing comes":     {"/read", nil, http.StatusRequestTimeout},
		"read, half of it comes":  {"/read", []string{"01234"}, http.StatusRequestTimeout},
		"not read, nothing comes": {"/", nil, http.StatusOK},
		"not read, half comes":    {"/", []string{"01234"}, http.StatusOK},
		"slow, but all of it":     {"/read", []string{"01", "23", "45", "67", "89"}, http.StatusOK},
		"long work":               {"/work", []string{"0123456789"}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", tt.path)
			for _, part := range tt.send {
				time.Sleep(rest / 2)
				_, _ = io.WriteString(c, part)
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != tt.want {
				t.Errorf("status %d, want %d", resp.StatusCode, tt.want)
			}
		})
	}
}

// Reading a body after its handler has returned does not end the next request
// on the connection.
func TestBodyIsReadLate(t *testing.T) {
	var body io.Reader
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			defer boundBody(w, r, time.Minute)()
			body = r.Body
			return
		}
		_, _ = body.Read(make([]byte, 1))
		select {
		case <-r.Context().Done():
			t.Error("the body of an earlier request ended this one")
		case <-time.After(100 * time.Millisecond):
		}
	}))
	defer s.Close()
	first, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL, strings.NewReader("x"))
	second, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	for _, r := range []*http.Request{first, second} {
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
