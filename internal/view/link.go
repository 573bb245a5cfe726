package view

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	// codeTTL is how long the link of a stream can be opened.
	codeTTL = 10 * time.Minute
	// maxGuesses is the number of wrong codes after which a link cannot be opened.
	maxGuesses = 5
)

// code is what the link of a stream has instead of a token. It is guarded by the
// Service's mutex.
type code struct {
	sum     [sha256.Size]byte
	expires time.Time
	guesses int
}

// opens reports whether a text is the code, which then opens nothing more.
func (c *code) opens(text string, now time.Time) bool {
	sum := sha256.Sum256([]byte(text))
	same := subtle.ConstantTimeCompare(sum[:], c.sum[:]) == 1
	if !same {
		c.guesses++
	}
	return same && now.Before(c.expires)
}

// offer gives a stream a code for a link.
func (s *Service) offer(o *opened) (text string, expires time.Time) {
	text = rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	expires = s.cfg.Now().Add(codeTTL).Truncate(time.Second)
	if o.Expires.Before(expires) {
		expires = o.Expires
	}
	o.code = &code{sum: sha256.Sum256([]byte(text)), expires: expires}
	return text, expires
}

// Redeem exchanges the code of a stream's link for the token of that stream. It
// needs no key: the code is the permission, and works once, while the key that
// made the link is accepted.
func (s *Service) Redeem(ctx context.Context, id, text string) (out sandbox.StreamAccess, err error) {
	s.mu.Lock()
	o := s.streams[id]
	found := false
	var now sandbox.Stream
	if o != nil && o.code != nil {
		found, now = o.code.opens(text, s.cfg.Now()), o.Stream
		if found || o.code.guesses >= maxGuesses {
			o.code = nil
		}
	}
	s.mu.Unlock()
	if !found {
		return out, &sandbox.Error{
			Code: sandbox.CodeUnauthorized, Op: "stream.redeem", Message: "the link was used already, or is too old",
			Hint: "ask whoever sent it for a new one",
		}
	}
	if err := s.granted(ctx, o); errors.Is(err, errKey) {
		return out, &sandbox.Error{
			Code: sandbox.CodeUnauthorized, Op: "stream.redeem", Message: "the key that made the link has ended",
			Hint: "ask whoever sent it for a new one",
		}
	} else if err != nil {
		return out, err
	}
	return s.access(now, o)
}
