package daemon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// heartbeatEvery is how often a daemon gives a sign of life, and
	// staleAfter how long one that gave none may still be alive.
	heartbeatEvery = 5 * time.Second
	staleAfter     = 30 * time.Second
)

// membership is who this daemon is among those that share a store. It is kept
// in the state directory, because the sandboxes are there too.
type membership struct {
	Node string `json:"node"`
	// Instance is the latest run of a daemon here. The state directory is
	// locked, so that run has ended.
	Instance string `json:"instance"`
}

func membershipFile(dir string) string { return filepath.Join(dir, "node.json") }

// readMembership returns who this daemon was before, or makes up who it is.
func readMembership(dir string) (m membership, err error) {
	text, err := os.ReadFile(membershipFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		host, _ := os.Hostname()
		if sandbox.ValidateName(host) != nil {
			host = "node"
		}
		m.Node = fmt.Sprintf("%.40s-%s", strings.ToLower(host), strings.ToLower(rand.Text()[:8]))
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil && sandbox.ValidateName(m.Node) != nil {
		err = errors.New("it names no node")
	}
	if err != nil {
		return m, &sandbox.Error{
			Code: sandbox.CodeInternal, Op: "daemon.start", Subject: membershipFile(dir), Message: "cannot be read: " + err.Error(), Cause: err,
			Hint: "it says which sandboxes of the shared store are here; restore it from a copy",
		}
	}
	return m, nil
}

func (m membership) write(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := membershipFile(dir)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// join makes this daemon one of those that share the store. It takes the place
// of its own earlier run, and of nobody else.
func (d *Daemon) join(ctx context.Context) error {
	if !d.store.Shared() {
		d.member.Node = core.LocalNode
		return nil
	}
	m, err := readMembership(d.node.Dir())
	if err != nil {
		return err
	}
	earlier := m.Instance
	m.Instance = rand.Text()
	// Written first: should the daemon end right here, nobody has registered.
	if err := m.write(d.node.Dir()); err != nil {
		return err
	}
	err = d.store.Update(ctx, func(tx *store.Tx) error {
		if earlier != "" {
			if err := tx.Operator().Unregister(ctx, m.Node, earlier); err != nil {
				return err
			}
		}
		return tx.Operator().Register(ctx, store.Node{ID: m.Node, Instance: m.Instance, Address: d.opts.Listen}, staleAfter)
	})
	if err != nil {
		// Else the next start would not know whose place it may take.
		return errors.Join(err, membership{m.Node, earlier}.write(d.node.Dir()))
	}
	d.member = m
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return d.store.Update(ctx, func(tx *store.Tx) error { return tx.Operator().Unregister(ctx, m.Node, m.Instance) })
	})
	return nil
}

// beat gives signs of life until ctx ends. A daemon whose place was taken must
// not go on.
func (d *Daemon) beat(ctx context.Context) {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := d.store.Update(ctx, func(tx *store.Tx) error {
			return tx.Operator().Heartbeat(ctx, d.member.Node, d.member.Instance)
		})
		switch {
		case err == nil || ctx.Err() != nil:
		case sandbox.CodeOf(err) == sandbox.CodeStale:
			d.failed <- err
			return
		default:
			d.opts.Logger.Error("sending a heartbeat failed", "error", err)
		}
	}
}
