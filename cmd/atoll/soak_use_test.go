package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// use performs one kind of operation on a sandbox, repeatedly until a daemon
// lives long enough to acknowledge it.
func (s *soaker) use(ctx context.Context, t *testing.T, sb *atoll.Sandbox, name string, i int) error {
	switch i % 6 {
	case 0:
		return persist(ctx, func() error {
			_, err := sb.Run(ctx, sandbox.Command{Shell: "echo $$ > /made"}, atoll.RunOptions{})
			return err
		})
	case 1:
		return persist(ctx, func() error { return s.write(ctx, sb, name) })
	case 2:
		return persist(ctx, func() error { return carry(ctx, sb) })
	case 3:
		err := persist(ctx, func() error { _, err := sb.Pause(ctx, sandbox.PauseMemory); return err })
		if err == nil {
			err = persist(ctx, func() error { _, err := sb.Resume(ctx); return err })
		}
		return err
	case 4:
		return s.save(ctx, sb, name)
	}
	return s.fork(ctx, sb, name)
}

// write writes a file, which may be acknowledged or not.
func (s *soaker) write(ctx context.Context, sb *atoll.Sandbox, name string) error {
	_, err := sb.Files().Write(ctx, "/acked", strings.NewReader(name), atoll.WriteOptions{})
	if err == nil {
		s.mu.Lock()
		s.files[sb.ID()] = name
		s.mu.Unlock()
	}
	return err
}

// carry sends bytes through a command while daemons may be killed.
func carry(ctx context.Context, sb *atoll.Sandbox) error {
	p, err := sb.Exec(ctx, sandbox.Command{Args: []string{"cat"}, Stdin: true, Hold: time.Minute})
	if err != nil {
		return err
	}
	defer p.Close()
	data := seeded(2 << 20)
	go func() {
		_, _ = p.Stdin().Write(data)
		_ = p.Stdin().Close()
	}()
	back, err := io.ReadAll(p.Stdout())
	if err != nil || !bytes.Equal(back, data) {
		return fmt.Errorf("%d bytes of %d came back, or others: %w: %w", len(back), len(data), err, errors.Unwrap(err))
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("cat ended with %d", exit.Code)
	}
	return err
}

// save takes a snapshot, with a new name for each attempt.
func (s *soaker) save(ctx context.Context, sb *atoll.Sandbox, name string) error {
	try := 0
	return persist(ctx, func() error {
		try++
		snap, err := sb.Snapshot(ctx, durable.SnapshotRequest{Name: "s-" + name + "-" + strconv.Itoa(try)})
		if err == nil {
			s.mu.Lock()
			s.snaps[snap.Name] = snap.ID
			s.mu.Unlock()
		}
		return err
	})
}

// fork makes a copy in the same way.
func (s *soaker) fork(ctx context.Context, sb *atoll.Sandbox, name string) error {
	try := 0
	return persist(ctx, func() error {
		try++
		copies, err := sb.Fork(ctx, durable.ForkRequest{Count: 1, Prefix: "f-" + name + "-" + strconv.Itoa(try)})
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range copies {
			s.alive[c.Name()] = c.ID()
			s.kept = append(s.kept, c.Name())
		}
		return err
	})
}

// compareKept fails unless all acknowledged files and snapshots exist.
func (s *soaker) compareKept(ctx context.Context, t *testing.T) {
	t.Helper()
	for name, id := range s.alive {
		want, written := s.files[id]
		if !written {
			continue
		}
		sb, err := s.client.Get(ctx, string(id))
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, sb, "cat /acked"); got != want {
			t.Errorf("the file of %s holds %q", name, got)
		}
	}
	there := map[string]string{}
	for snap, err := range s.client.Snapshots(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		there[snap.Name] = snap.ID
	}
	for name, id := range s.snaps {
		if there[name] != id {
			t.Errorf("the snapshot %s was acknowledged as %s and is %q", name, id, there[name])
		}
	}
	t.Logf("%d files and %d snapshots", len(s.files), len(s.snaps))
}
