package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// The time that a body may take must not bound what is done with it: a command
// runs far longer than its request takes to arrive.
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
