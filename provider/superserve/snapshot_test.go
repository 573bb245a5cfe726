package superserve

import (
	"errors"
	"net/http"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
)

// silent fails the test on each request.
type silent struct{ t *testing.T }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.t.Errorf("%s %s", r.Method, r.URL)
	return nil, errors.New("no request was expected")
}

// A snapshot whose record is removed while the records are listed is none.
func TestRemovedRecord(t *testing.T) {
	p, err := New(Options{DataURL: "http://127.0.0.1:1", Connection: hosted.Connection{
		Dir: t.TempDir(), Key: credential.New("SUPERSERVE_API_KEY", "key", "", ""), URL: "http://127.0.0.1:1", Transport: silent{t},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := (saver{p}).search(t.Context(), "gone", hosted.SavedRecord{}); !errors.Is(err, hosted.ErrNone) {
		t.Errorf("search: %v, want %v", err, hosted.ErrNone)
	}
}
