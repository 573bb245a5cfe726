package view

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
	"github.com/atoll-run/atoll/stream"
)

const (
	// codeTTL is how long the link of a stream can be opened.
	codeTTL = 10 * time.Minute
	// maxGuesses is the number of wrong codes after which a link cannot be opened.
	maxGuesses = 5
)

// code is the one-time code in the link of a stream. It is guarded by the
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
	o.code, o.linked = &code{sum: sha256.Sum256([]byte(text)), expires: expires}, true
	return text, expires
}

// Redeem returns a token of a stream that has a link, for the code of the link,
// which works once, or for an earlier token. It needs no key: everyone who has these
// may do what they allow, while the key that made the link is accepted. If
// another sandbox serves the session of the stream now, the stream shows that one.
func (s *Service) Redeem(ctx context.Context, id string, with viewing.StreamRedemption) (out viewing.StreamAccess, err error) {
	o, expires := s.redeemed(id, with)
	switch {
	case o == nil && with.Token != "":
		return out, refused("the link was revoked, or the daemon was started again")
	case o == nil:
		return out, refused("the link was used already, or is too old")
	}
	if err := s.granted(ctx, o); errors.Is(err, errKey) {
		return out, refused("the key that made the link has ended")
	} else if err != nil {
		return out, err
	}
	now := s.present(o)
	if o.session != "" {
		moved, err := s.follow(ctx, o)
		switch sandbox.CodeOf(err) {
		case "":
			now = moved
		case sandbox.CodeNotFound:
			return out, &sandbox.Error{Code: sandbox.CodeNotFound, Op: "stream.redeem", Message: "the session of the link has ended", Cause: err}
		case sandbox.CodeUnavailable: // its socket says so, until another sandbox serves it
		default:
			return out, err
		}
	}
	now.Expires = expires // a link opens nothing for longer than it was made for
	return s.access(now, o)
}

func refused(why string) error {
	return &sandbox.Error{Code: sandbox.CodeUnauthorized, Op: "stream.redeem", Message: why, Hint: "ask whoever sent it for a new one"}
}

// redeemed returns the stream whose link has a code or an earlier token, and
// until when the next token opens sockets; else nil.
func (s *Service) redeemed(id string, with viewing.StreamRedemption) (*opened, time.Time) {
	c := stream.OpenViewer(s.cfg.Secret, with.Token, s.cfg.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.streams[id]
	if o == nil {
		return nil, time.Time{}
	}
	if with.Token != "" {
		if c == nil || !o.linked || c.Stream != id || c.LeaseEpoch > o.LeaseEpoch || !o.grants(c) {
			return nil, time.Time{}
		}
		return o, time.Unix(c.Expires, 0)
	}
	if o.code == nil {
		return nil, time.Time{}
	}
	found := o.code.opens(with.Code, s.cfg.Now())
	if found || o.code.guesses >= maxGuesses {
		o.code = nil
	}
	if !found {
		return nil, time.Time{}
	}
	return o, o.Expires
}

// present returns the present state of a stream.
func (s *Service) present(o *opened) viewing.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.Stream
}

// follow makes a stream show the sandbox that serves its session now, with the
// rights of its maker. It makes no sandbox.
func (s *Service) follow(ctx context.Context, o *opened) (now viewing.Stream, err error) {
	ctx = guard.WithPrincipal(ctx, o.who)
	id, epoch, err := s.cfg.Serving(ctx, o.session)
	if err != nil || o.Sandbox == id && o.LeaseEpoch == epoch {
		return s.present(o), err
	}
	sb, err := s.cfg.Find(ctx, string(id))
	if err != nil {
		return now, err
	}
	process, err := s.prepare(ctx, o.who, o, sb)
	if err != nil {
		return now, err
	}
	err = s.cfg.Guard.Do(ctx, operation(o), guard.Subject{Sandbox: sb.ID, Name: sb.Name, Subject: o.ID}, func(context.Context) error {
		_, now, err = s.rotate(o, sb, epoch, process, time.Time{})
		return err
	})
	return now, err
}
