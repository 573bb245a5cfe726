package superserve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
)

// move changes the status if it is one of several, and reports whether it was.
func (s *Server) move(b *box, to string, from ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, status := range from {
		if b.Status == status {
			b.Status = to
			return true
		}
	}
	return false
}

// transition waits as long as a change of state takes.
func (s *Server) transition() {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	time.Sleep(takes)
}

// pause pauses a sandbox that is active. Its connections end, and its token with
// them. It is removed instead if it was to be deleted when it is paused.
func (s *Server) pause(ctx context.Context, b *box) error {
	if !s.move(b, Pausing, Active) {
		return nil
	}
	b.sleep()
	b.timer.Set(0, nil)
	s.transition()
	if p, ok := driver.As[driver.Pauser](b.in); ok {
		if err := p.Pause(ctx); err != nil {
			s.move(b, Failed, Pausing)
			return err
		}
	}
	s.mu.Lock()
	b.Status, b.token = Paused, ""
	after := b.AutoDelete
	s.mu.Unlock()
	switch {
	case after == nil:
	case *after == 0:
		return s.remove(ctx, b)
	default:
		b.timer.Set(time.Duration(*after)*time.Second, func() { _ = s.remove(context.Background(), b) })
	}
	return nil
}

// wake continues a paused sandbox.
func (s *Server) wake(ctx context.Context, b *box) error {
	b.timer.Set(0, nil)
	s.transition()
	if p, ok := driver.As[driver.Pauser](b.in); ok {
		if err := p.Resume(ctx); err != nil {
			s.move(b, Failed, Resuming)
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaken(b)
	return nil
}

// remove ends a sandbox.
func (s *Server) remove(ctx context.Context, b *box) error {
	s.mu.Lock()
	first := b.Status != Deleted
	b.Status = Deleted
	s.mu.Unlock()
	if !first {
		return nil
	}
	b.sleep()
	b.timer.Set(0, nil)
	err := b.in.Destroy(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, b.ID)
	return err
}

// withBox is a call about one sandbox.
func (s *Server) withBox(f func(r *http.Request, b *box) (int, any, error)) call {
	return func(r *http.Request, team string) (int, any, error) {
		b, err := s.get(r.PathValue("id"), team)
		if err != nil {
			return 0, nil, err
		}
		return f(r, b)
	}
}

func conflict(code, message string) error { return fail(http.StatusConflict, code, "%s", message) }

// pauseCall answers when the sandbox is paused or, if the client prefers that,
// when it has begun.
func (s *Server) pauseCall(r *http.Request, b *box) (int, any, error) {
	ctx := context.WithoutCancel(r.Context())
	switch s.shown(b).Status {
	case Paused:
		return http.StatusNoContent, nil, nil
	case Active, Pausing:
	default:
		return 0, nil, conflict("conflict", "sandbox is not active")
	}
	if !strings.Contains(r.Header.Get("Prefer"), "respond-async") {
		return http.StatusNoContent, nil, s.pause(ctx, b)
	}
	s.work.Go(func() { _ = s.pause(ctx, b) })
	return http.StatusAccepted, map[string]string{"status": Pausing}, nil
}

// resume continues a paused sandbox, and refuses any other.
func (s *Server) resume(r *http.Request, b *box) (int, any, error) {
	if status := s.shown(b).Status; status != Paused || !s.move(b, Resuming, Paused) {
		return 0, nil, conflict("conflict", "sandbox is "+status)
	}
	return s.woken(r, b)
}

func (s *Server) woken(r *http.Request, b *box) (int, any, error) {
	if err := s.wake(context.WithoutCancel(r.Context()), b); err != nil {
		return 0, nil, err
	}
	return s.tokens(b)
}

func (s *Server) tokens(b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.StatusOK, withToken{b.facts, b.token, b.hint}, nil
}

// activate continues a paused sandbox and issues a new token.
func (s *Server) activate(r *http.Request, b *box) (int, any, error) {
	switch status := s.shown(b).Status; status {
	case Active:
		s.mu.Lock()
		s.rotate(b)
		s.mu.Unlock()
		return s.tokens(b)
	case Pausing:
		return 0, nil, conflict("sandbox_pausing", "sandbox is pausing")
	case Paused:
		if s.move(b, Resuming, Paused) {
			return s.woken(r, b)
		}
		return 0, nil, conflict("conflict", "sandbox is resuming")
	default:
		return 0, nil, conflict("conflict", "sandbox is "+status)
	}
}

// deleteCall refuses, for the moment, while the state changes.
func (s *Server) deleteCall(r *http.Request, b *box) (int, any, error) {
	switch status := s.shown(b).Status; status {
	case Starting, Pausing, Resuming, Migrating:
		return 0, nil, conflict("conflict", "sandbox is "+status)
	}
	return http.StatusNoContent, nil, s.remove(context.WithoutCancel(r.Context()), b)
}

// patch changes the given settings. Null removes a deadline.
func (s *Server) patch(r *http.Request, b *box) (int, any, error) {
	fields := map[string]json.RawMessage{}
	if err := json.NewDecoder(r.Body).Decode(&fields); err != nil {
		return 0, nil, fail(http.StatusBadRequest, "validation_error", "invalid body")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := fields["network"]; ok && b.Status != Active {
		return 0, nil, conflict("conflict", "sandbox is not active")
	}
	into := map[string]any{
		"metadata": &b.Metadata, "network": &b.Network, "timeout_seconds": &b.Timeout, "auto_delete_seconds": &b.AutoDelete, "preview_access": &b.Preview,
	}
	var errs []error
	for name, value := range fields {
		field, ok := into[name]
		if !ok {
			return 0, nil, fail(http.StatusBadRequest, "validation_error", "unknown field %s", name)
		}
		if name == "metadata" {
			b.Metadata = nil // it is replaced
		}
		errs = append(errs, json.Unmarshal(value, field))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, nil, fail(http.StatusBadRequest, "validation_error", "%v", err)
	}
	if _, ok := fields["timeout_seconds"]; ok && b.Status == Active {
		s.limit(b)
	}
	return http.StatusOK, b.facts, nil
}
