package sessions

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// movement is a move of a session by this daemon. Requests wait until open is
// closed.
type movement struct {
	open  chan struct{}
	quiet chan struct{} // has a value when a holder of this daemon is not used any more
}

func (m *movement) ended() {
	select {
	case m.quiet <- struct{}{}:
	default:
	}
}

// shut makes requests for a sandbox wait until open is called. It waits until the
// session is not being moved already.
func (p *presences) shut(ctx context.Context, at place) (m *movement, open func(), err error) {
	for {
		p.mu.Lock()
		other := p.moves[at]
		if other == nil {
			m = &movement{open: make(chan struct{}), quiet: make(chan struct{}, 1)}
			if p.moves == nil {
				p.moves = map[place]*movement{}
			}
			p.moves[at] = m
			p.mu.Unlock()
			return m, func() {
				p.mu.Lock()
				delete(p.moves, at)
				p.mu.Unlock()
				close(m.open)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-other.open:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// opening returns what is closed when a sandbox may be used again; nil: it may.
func (p *presences) opening(at place) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.moves[at]; m != nil {
		return m.open
	}
	return nil
}

// used reports whether a request of this daemon uses a sandbox, and which of its
// holders are this daemon's.
func (p *presences) used(at place) (uses int, own map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own = map[string]bool{}
	for h := range p.all {
		if h.at == at {
			uses += h.uses
			own[h.id] = true
		}
	}
	return uses, own
}

// quietTime is how long a move waits for the end of requests that are under way.
const quietTime = 15 * time.Second

// mover moves the sandboxes of a session. It implements session.Mover.
type mover struct {
	boxes
	move *movement
}

// Quiet implements session.Mover.
func (m mover) Quiet(ctx context.Context, l lease.Lease) error {
	at := place{m.tenant, l.Group}
	limit := time.NewTimer(quietTime)
	defer limit.Stop()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		busy, err := m.s.busy(ctx, at)
		if err != nil || !busy {
			return err
		}
		select {
		case <-m.move.quiet:
		case <-look.C: // at other daemons
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Op: "session.swap", Subject: m.row.Name, Message: "commands or transfers are under way in the session",
				Hint: "end them, or start commands in the background; they do not go along",
			}
		}
	}
}

// busy reports whether a daemon serves a request in the sandbox of a lease.
func (s *Service) busy(ctx context.Context, at place) (bool, error) {
	uses, own := s.present.used(at)
	if uses > 0 {
		return true, nil
	}
	l, err := leases{s, at.tenant}.Load(ctx, at.group)
	mine := s.holderID()
	for _, h := range l.Holders {
		ours := own[h.ID] || strings.HasPrefix(h.ID, daemonHolder+s.Node+"-") && len(h.ID) == len(mine)
		if strings.HasPrefix(h.ID, daemonHolder) && !ours {
			return true, err
		}
	}
	return false, err
}

// Settle implements session.Mover.
func (m mover) Settle(ctx context.Context, _ session.Box) (kept []sandbox.WorkspaceRef, err error) {
	for _, name := range m.saves() {
		version, err := m.s.cfg.Workspaces.PersistWorkspace(ctx, name, "session "+m.row.Name+" moves")
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			continue // a bucket has what was written already
		}
		if err != nil {
			return nil, err
		}
		kept = append(kept, versionOf(name, version.Number))
	}
	return kept, nil
}

// Carry implements session.Mover.
func (m mover) Carry(ctx context.Context, from, to session.Box) ([]string, error) {
	if carriesTree(m.row) {
		if err := m.s.copyTree(ctx, from.ID, to.ID); err != nil {
			return nil, err
		}
	}
	return []string{sandbox.LostProcesses, sandbox.LostMemory, sandbox.LostFiles}, m.s.cfg.Sandboxes.Reach(ctx, string(to.ID))
}

// carriesTree reports whether the files below /workspace are copied when a
// session moves: workspaces and directories of the machine are mounted again.
func carriesTree(row *store.Session) bool {
	for _, mount := range row.Spec.Mounts {
		if mount.Target == sandbox.WorkspaceDir || strings.HasPrefix(mount.Target, sandbox.WorkspaceDir+"/") {
			return false
		}
	}
	return len(row.Spec.Workspaces) == 0
}

// copyTree replaces the files below /workspace in one sandbox by those of
// another.
func (s *Service) copyTree(ctx context.Context, from, to sandbox.ID) error {
	r, w := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := s.exportTree(ctx, from, w)
		_ = w.CloseWithError(err)
		exported <- err
	}()
	err := s.importTree(ctx, to, r)
	_ = r.CloseWithError(err) // which ends the export too
	if failed := <-exported; failed != nil && err == nil {
		err = failed
	}
	return err
}

// exportTree writes the files below /workspace of a sandbox as a tar stream that
// begins with the directory itself. One without that directory has no files.
func (s *Service) exportTree(ctx context.Context, from sandbox.ID, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx) // the sandbox is in use until it ends
	defer cancel()
	files, err := s.cfg.Sandboxes.Files(ctx, string(from))
	if err != nil {
		return err
	}
	switch _, err := files.Stat(ctx, sandbox.WorkspaceDir); {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return tar.NewWriter(w).Close()
	case err != nil:
		return err
	}
	return files.Export(ctx, sandbox.WorkspaceDir, w, driver.ExportOptions{})
}

// importTree replaces the files below /workspace of a sandbox by those of a tar
// stream of exportTree.
func (s *Service) importTree(ctx context.Context, to sandbox.ID, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx) // the sandbox is in use until it ends
	defer cancel()
	files, err := s.cfg.Sandboxes.Files(ctx, string(to))
	if err != nil {
		return err
	}
	if err := ignore(files.Remove(ctx, sandbox.WorkspaceDir, true), sandbox.CodeNotFound); err != nil {
		return err
	}
	return files.Import(ctx, path.Dir(sandbox.WorkspaceDir), r, driver.ImportOptions{})
}
