package e2bapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// remembered is how long the end of a command is available.
const remembered = 30 * time.Second

// commandKey identifies a command.
type commandKey struct {
	sandbox sandbox.ID
	id      string
}

// commands contains the commands that callers started or connected to.
type commands struct {
	mu     sync.Mutex
	known  map[commandKey]*command
	closed bool
	work   sync.WaitGroup
}

// add adds a new process.
func (s *commands) add(sb sandbox.ID, p driver.Process, req *envd.StartRequest) (*command, *follower) {
	c := newCommand(p, req.Process, req.Tag)
	c.noMore = req.PTY == nil && req.Stdin != nil && !*req.Stdin
	f := c.join() // before reading, so that the starter misses nothing
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(commandKey{sb, p.Info().ID}, c)
	return c, f
}

// keep remembers a command until a while after its end. The caller holds mu.
func (s *commands) keep(key commandKey, c *command) {
	if s.known == nil {
		s.known = map[commandKey]*command{}
	}
	s.known[key] = c
	if s.closed {
		_ = c.process.Close()
	}
	s.work.Go(func() {
		c.run()
		if c.lost { // it may be found again when its sandbox resumes
			s.forget(key, c)
			return
		}
		time.AfterFunc(remembered, func() { s.forget(key, c) })
	})
}

func (s *commands) forget(key commandKey, c *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key] == c {
		delete(s.known, key)
	}
}

func (s *commands) get(sb sandbox.ID, id string) *command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[commandKey{sb, id}]
}

// find returns the command of a sandbox for a selector. It finds commands of an
// earlier daemon by PID.
func (s *commands) find(ctx context.Context, sb Sandbox, sel *envd.ProcessSelector) (*command, error) {
	if sel == nil || sel.PID == nil && sel.Tag == nil {
		return nil, invalid("process", "none named")
	}
	s.mu.Lock()
	var found *command
	for key, c := range s.known {
		if key.sandbox != sb.ID() || found != nil && !c.running() {
			continue
		}
		if sel.PID != nil && uint32(c.process.Info().PID) == *sel.PID || sel.Tag != nil && c.tag != nil && *c.tag == *sel.Tag {
			found = c
		}
	}
	s.mu.Unlock()
	if found != nil {
		return found, nil
	}
	if sel.PID == nil {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: fmt.Sprintf("process with tag %.80s not found", *sel.Tag)}
	}
	return s.reconnect(ctx, sb, *sel.PID)
}

func (s *commands) reconnect(ctx context.Context, sb Sandbox, pid uint32) (*command, error) {
	all, err := sb.Processes(targetOf(ctx).own)
	if err != nil {
		return nil, err
	}
	for _, info := range all {
		if uint32(info.PID) != pid || !info.Running || !info.Background || len(info.Args) == 0 {
			continue
		}
		p, err := sb.Reconnect(ctx, info.ID)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		key := commandKey{sb.ID(), info.ID}
		if c := s.known[key]; c != nil {
			return c, p.Close()
		}
		c := newCommand(p, &envd.ProcessConfig{Cmd: info.Args[0], Args: info.Args[1:]}, nil)
		s.keep(key, c)
		return c, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: fmt.Sprintf("process with pid %d not found", pid)}
}

func (c *command) running() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// close disconnects from all commands.
func (s *commands) close() {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.known {
		_ = c.process.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}
