package islo

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/atoll-run/atoll/driver"
)

// withBox is a call about one sandbox.
func (s *Server) withBox(f func(r *http.Request, b *box) (int, any, error)) call {
	return func(r *http.Request, tenant string) (int, any, error) {
		b, err := s.get(r.PathValue("name"), tenant)
		if err != nil {
			return 0, nil, err
		}
		return f(r, b)
	}
}

func wrongState(f facts) error {
	return fail(http.StatusConflict, "SANDBOX_INVALID_STATE", "sandbox is %s", f.Status)
}

// move changes the status if it is one of several, and reports whether it was.
func (s *Server) move(b *box, to string, from ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.forced != "" || !slices.Contains(from, b.Status) {
		return false
	}
	b.Status = to
	return true
}

// change moves a sandbox from some statuses over one to another, which f does. It
// is answered when that has begun, if it takes a while.
func (s *Server) change(b *box, over, to string, f func(ctx context.Context) error, from ...string) (int, any, error) {
	if !s.move(b, over, from...) {
		return 0, nil, wrongState(s.shown(b))
	}
	err := s.unlessSlow(func() error {
		err := f(context.Background())
		if err != nil {
			to = Failed
		}
		s.move(b, to, over)
		return err
	})
	return http.StatusOK, s.shown(b), err
}

// pause keeps what runs. Its connections end.
func (s *Server) pause(_ *http.Request, b *box) (int, any, error) {
	return s.change(b, Pausing, Paused, func(ctx context.Context) error {
		b.sleep()
		if p, ok := driver.As[driver.Pauser](b.in); ok {
			return p.Pause(ctx)
		}
		return nil
	}, Running)
}

// stop keeps the files and nothing that runs.
func (s *Server) stop(_ *http.Request, b *box) (int, any, error) {
	return s.change(b, Stopping, Stopped, func(ctx context.Context) error {
		b.sleep()
		saver, ok := driver.As[driver.Snapshotter](b.in)
		if !ok {
			return fail(http.StatusServiceUnavailable, "RESOURCE_UNAVAILABLE", "the fake cannot stop sandboxes")
		}
		saved, err := saver.Snapshot(ctx, driver.SnapshotOptions{ID: "stopped-" + newID()[:8], Stop: true})
		s.mu.Lock()
		defer s.mu.Unlock()
		b.frozen = &saved.Ref
		return err
	}, Running)
}

// resume has a sandbox run on, or start again.
func (s *Server) resume(_ *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	frozen := b.frozen
	s.mu.Unlock()
	return s.change(b, Resuming, Running, func(ctx context.Context) error {
		if frozen != nil {
			if err := s.start(ctx, b, frozen); err != nil {
				return err
			}
			return s.thaw(ctx, b)
		}
		if p, ok := driver.As[driver.Pauser](b.in); ok {
			if err := p.Resume(ctx); err != nil {
				return err
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.awaken(b)
		return nil
	}, Paused, Stopped)
}

// thaw removes what a stopped sandbox was kept in.
func (s *Server) thaw(ctx context.Context, b *box) error {
	s.mu.Lock()
	frozen := b.frozen
	b.frozen = nil
	s.mu.Unlock()
	if keeper, ok := driver.As[driver.SnapshotKeeper](s.backing); ok && frozen != nil {
		return keeper.RemoveSnapshot(ctx, *frozen)
	}
	return nil
}

// deleteCall refuses, for the moment, while the state changes.
func (s *Server) deleteCall(r *http.Request, b *box) (int, any, error) {
	if f := s.shown(b); slices.Contains([]string{Starting, Pausing, Stopping, Resuming}, f.Status) {
		return 0, nil, wrongState(f)
	}
	return http.StatusAccepted, nil, s.remove(context.WithoutCancel(r.Context()), b)
}

// Delete ends a sandbox as the service does by itself.
func (s *Server) Delete(ctx context.Context, name string) error {
	for _, b := range s.all() {
		if b.Name == name {
			return s.remove(ctx, b)
		}
	}
	return nil
}

// remove ends a sandbox. The service remembers it.
func (s *Server) remove(ctx context.Context, b *box) error {
	s.mu.Lock()
	first, now := b.Status != Deleted, time.Now().UTC()
	b.Status, b.Deleted = Deleted, &now
	in := b.in
	s.mu.Unlock()
	if !first || in == nil {
		return nil
	}
	b.sleep()
	b.timer.Set(0, nil)
	if err := in.Destroy(ctx); err != nil {
		return err
	}
	return s.thaw(ctx, b)
}
