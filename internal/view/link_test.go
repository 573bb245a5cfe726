package view

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// linking is a Service with streams that have links, at a time that the test
// chooses.
func linking(t *testing.T) (s *Service, now *time.Time, open func(id string, ttl time.Duration) (code string, expires time.Time)) {
	t.Helper()
	at := time.Unix(1_000_000, 0)
	s = New(Config{Secret: make([]byte, 32), Now: func() time.Time { return at }, Life: t.Context(), Valid: func(context.Context, string, string) error { return nil }})
	return s, &at, func(id string, ttl time.Duration) (string, time.Time) {
		o := s.open(&opened{who: key.Principal{Tenant: "t"}, Stream: viewing.Stream{ID: id, Kind: desktop, Mode: "view", Expires: at.Add(ttl)}})
		if err := s.add(o); err != nil {
			t.Fatal(err)
		}
		return s.offer(o)
	}
}

func redeems(t *testing.T, s *Service, name, id, code string, want bool) {
	t.Helper()
	a, err := s.Redeem(t.Context(), id, viewing.StreamRedemption{Code: code})
	if want != (err == nil) || want != (a.Token != "") || !want && sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
		t.Errorf("%s: %+v, %v; want success: %v", name, a, err, want)
	}
}

func TestALinkOpensOnceAndSoon(t *testing.T) {
	s, now, open := linking(t)
	code, expires := open("one", time.Hour)
	if want := now.Add(codeTTL); !expires.Equal(want) {
		t.Errorf("the code is valid until %v, want %v", expires, want)
	}
	redeems(t, s, "in time", "one", code, true)
	redeems(t, s, "again", "one", code, false)

	code, _ = open("late", time.Hour)
	*now = now.Add(codeTTL)
	redeems(t, s, "late", "late", code, false)

	if code, expires = open("short", time.Minute); !expires.Equal(now.Add(time.Minute)) {
		t.Errorf("the code of a short stream is valid until %v", expires)
	}
	*now = now.Add(time.Minute)
	redeems(t, s, "after the stream", "short", code, false)
}

func TestAttackGuessedLinks(t *testing.T) {
	s, _, open := linking(t)
	code, _ := open("one", time.Hour)
	for _, guess := range []string{"", code[:len(code)-1], code + "A", strings.ToLower(code)} {
		redeems(t, s, guess, "one", guess, false)
	}
	redeems(t, s, "after four guesses", "one", code, true)

	code, _ = open("two", time.Hour)
	for range maxGuesses {
		redeems(t, s, "guess", "two", "AAAAAAAAAAAAAAAAAAAAAAAAAA", false)
	}
	redeems(t, s, "after five guesses", "two", code, false)
	redeems(t, s, "of no stream", "none", code, false)
}
