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

// heartbeatEvery is the interval of heartbeats; see core.StaleAfter.
const heartbeatEvery = 5 * time.Second

// membership is the identity of this daemon among those that share a store. It
// is stored in the state directory, next to the sandboxes.
type membership struct {
	Node string `json:"node"`
	// Instance identifies the latest run of the daemon. The state directory is
	// locked, so that run has ended.
	Instance string `json:"instance"`
}

func membershipFile(dir string) string { return filepath.Join(dir, "node.json") }

// readMembership reads the identity of this daemon, or creates one.
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
		err = errors.New("it contains no node")
	}
	if err != nil {
		return m, &sandbox.Error{
			Code: sandbox.CodeInternal, Op: "daemon.start", Subject: membershipFile(dir), Message: "cannot be read: " + err.Error(), Cause: err,
			Hint: "it identifies the sandboxes of this node in the shared store; restore it from a backup",
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

// join registers this daemon with the shared store. It may replace only its own
// earlier run.
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
	// Write the file first: if the daemon ends here, it is not registered yet.
	if err := m.write(d.node.Dir()); err != nil {
		return err
	}
	err = d.store.Update(ctx, func(tx *store.Tx) error {
		if earlier != "" {
			if err := tx.Operator().Unregister(ctx, m.Node, earlier); err != nil {
				return err
			}
		}
		return tx.Operator().Register(ctx, store.Node{ID: m.Node, Instance: m.Instance, Address: d.opts.Listen}, core.StaleAfter)
	})
	if err != nil {
		// Otherwise the next start could not replace this registration.
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

// beat sends heartbeats until ctx ends. A daemon whose registration was
// replaced must stop.
func (d *Daemon) beat(ctx context.Context) {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	silent := map[string]time.Time{}
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
		case ctx.Err() != nil:
		case err == nil:
			if err := d.services.Sandboxes.Reconciler.ClaimAbandoned(ctx, silent); err != nil && ctx.Err() == nil {
				d.opts.Logger.Error("taking over the sandboxes of a daemon that has ended", "error", err)
			}
		case sandbox.CodeOf(err) == sandbox.CodeStale:
			d.failed <- err
			return
		default:
			d.opts.Logger.Error("sending a heartbeat failed", "error", err)
		}
	}
}
