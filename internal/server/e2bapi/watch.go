package e2bapi

import (
	"context"
	"crypto/rand"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// watch watches a directory until ctx ends.
func (h *filesystemAPI) watch(ctx context.Context, c *call, req *envd.WatchRequest) (<-chan sandbox.FileEvent, string, error) {
	p, err := c.user.path(req.Path)
	if err != nil {
		return nil, "", err
	}
	info, err := c.resolve(ctx, p)
	if err != nil {
		return nil, "", err
	}
	if info.Type != sandbox.TypeDir {
		return nil, "", invalid("path", "%.200q is not a directory", p)
	}
	if !req.AllowNetworkMounts {
		if err := h.refuseVolume(ctx, info.Path); err != nil {
			return nil, "", err
		}
	}
	events, err := c.sandbox.Files().Watch(ctx, p, req.Recursive)
	return events, p, err
}

// refuseVolume fails for paths on a volume, because changes by other sandboxes
// are not visible.
func (h *filesystemAPI) refuseVolume(ctx context.Context, p string) error {
	mounts, err := h.entrance.Mounted(ctx, targetOf(ctx).ID)
	if err != nil {
		return err
	}
	for i := range mounts {
		m := &mounts[i]
		if at := path.Clean(m.Target()); m.Mode == sandbox.WorkspaceShared && (p == at || strings.HasPrefix(p, at+"/")) {
			return invalid("path", "cannot watch path on network filesystem: %.200s", p)
		}
	}
	return nil
}

var eventTypes = map[sandbox.FileOp]envd.EventType{
	sandbox.OpCreate: envd.EventCreate, sandbox.OpWrite: envd.EventWrite, sandbox.OpRemove: envd.EventRemove, sandbox.OpChmod: envd.EventChmod,
}

// event converts a change to E2B's format; nil if E2B has no such event.
func (c *call) event(ctx context.Context, root string, req *envd.WatchRequest, ev sandbox.FileEvent) *envd.FilesystemEvent {
	typ, ok := eventTypes[ev.Op]
	if !ok || ev.Path == "." {
		return nil
	}
	out := &envd.FilesystemEvent{Name: ev.Path, Type: typ}
	if req.IncludeEntry && typ != envd.EventRemove {
		if res, err := c.entryAt(ctx, path.Join(root, ev.Path)); err == nil {
			out.Entry = res.Entry
		}
	}
	return out
}

func (h *filesystemAPI) watchDir(ctx context.Context, c *call, req *envd.WatchRequest, out *connect.ServerStream[envd.WatchDirResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, root, err := h.watch(ctx, c, req)
	if err != nil {
		return err
	}
	if err := out.Send(&envd.WatchDirResponse{Start: &envd.Empty{}}); err != nil {
		return err
	}
	idle := keepaliveOf(c.header)
	silence := time.NewTimer(idle)
	defer silence.Stop()
	for {
		m := &envd.WatchDirResponse{}
		select {
		case ev, more := <-events:
			if !more {
				return h.watchEnded(ctx)
			}
			if m.Filesystem = c.event(ctx, root, req, ev); m.Filesystem == nil {
				continue
			}
		case <-silence.C:
			m.Keepalive = &envd.Empty{}
		}
		if err := out.Send(m); err != nil {
			return err
		}
		silence.Reset(idle)
	}
}

// watchEnded cuts off the stream if it ended because of the sandbox.
func (h *filesystemAPI) watchEnded(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, s, err := h.entrance.Enter(ctx, targetOf(ctx).ID, ""); err == nil && s.State != sandbox.Running {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// Limits of polled watchers.
const (
	maxWatchers = 64 // per sandbox
	maxEvents   = 4096
	// watcherLife is how long a watcher lives without being polled.
	watcherLife = 10 * time.Minute
)

// watcher collects events for a client that polls.
type watcher struct {
	sandbox sandbox.ID
	stop    context.CancelFunc
	idle    *time.Timer

	mu      sync.Mutex
	pending []*envd.FilesystemEvent
}

type watchers struct {
	mu    sync.Mutex
	known map[string]*watcher
	work  sync.WaitGroup
}

func (h *filesystemAPI) createWatcher(ctx context.Context, c *call, req *envd.WatchRequest) (*envd.WatcherRef, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	events, root, err := h.watch(life, c, req)
	if err != nil {
		stop()
		return nil, err
	}
	w := &watcher{sandbox: c.sandbox.ID(), stop: stop}
	id := rand.Text()
	if err := h.watchers.add(id, w); err != nil {
		stop()
		return nil, err
	}
	h.watchers.work.Go(func() {
		defer h.watchers.remove(id, w.sandbox)
		for ev := range events {
			if e := c.event(life, root, req, ev); e != nil {
				w.put(e)
			}
		}
	})
	return &envd.WatcherRef{WatcherID: id}, nil
}

// put adds an event. If there are too many, the oldest are dropped.
func (w *watcher) put(e *envd.FilesystemEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) >= maxEvents {
		w.pending = w.pending[1:]
	}
	w.pending = append(w.pending, e)
}

func (s *watchers) add(id string, w *watcher) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, other := range s.known {
		if other.sandbox == w.sandbox {
			n++
		}
	}
	if n >= maxWatchers {
		return &sandbox.Error{Code: sandbox.CodeExhausted, Subject: "watchers", Message: "too many of this sandbox", Hint: "remove some"}
	}
	if s.known == nil {
		s.known = map[string]*watcher{}
	}
	w.idle = time.AfterFunc(watcherLife, w.stop)
	s.known[id] = w
	return nil
}

func (s *watchers) find(id string, sb sandbox.ID) (*watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.known[id]
	if w == nil || w.sandbox != sb {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such watcher"}
	}
	w.idle.Reset(watcherLife)
	return w, nil
}

func (s *watchers) remove(id string, sb sandbox.ID) {
	w, err := s.find(id, sb)
	if err != nil {
		return
	}
	s.mu.Lock()
	delete(s.known, id)
	s.mu.Unlock()
	w.idle.Stop()
	w.stop()
}

func (s *watchers) close() {
	s.mu.Lock()
	for _, w := range s.known {
		w.idle.Stop()
		w.stop()
	}
	s.mu.Unlock()
	s.work.Wait()
}

func (h *filesystemAPI) watcherEvents(_ context.Context, c *call, req *envd.WatcherRef) (*envd.GetWatcherEventsResponse, error) {
	w, err := h.watchers.find(req.WatcherID, c.sandbox.ID())
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	res := &envd.GetWatcherEventsResponse{Events: w.pending}
	w.pending = nil
	return res, nil
}

func (h *filesystemAPI) removeWatcher(_ context.Context, c *call, req *envd.WatcherRef) (*envd.Empty, error) {
	if _, err := h.watchers.find(req.WatcherID, c.sandbox.ID()); err != nil {
		return nil, err
	}
	h.watchers.remove(req.WatcherID, c.sandbox.ID())
	return &envd.Empty{}, nil
}
