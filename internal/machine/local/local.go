// Package local runs the daemon of a self-hosted machine: one that has a single
// provider, which is what the machine's owner offers.
package local

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Options configure the daemon of a machine.
type Options struct {
	Dir string // of the machine's files
	// Sandboxes makes the sandboxes of the mode sandboxes.
	Sandboxes providerset.Entry
	Pool      int
	Version   string
	Logger    *slog.Logger
}

// Daemon is the running daemon of a machine. It implements agent.Local.
type Daemon struct {
	opts    Options
	entry   providerset.Entry
	whole   bool
	screen  atomic.Bool // commands of a whole machine may use its screen
	epochs  *epochs
	running *running // nil: the commands of a whole machine are stopped
}

type running struct {
	daemon *daemon.Daemon
	client *atoll.Client
	key    string
}

// keyName is the name of the key that connections of the machine use.
const keyName = "machine"

// drain is how long requests go on when the daemon ends. The connection that they
// came over has ended before, and nobody reads their answers.
const drain = 100 * time.Millisecond

func stateDir(dir string) string { return filepath.Join(dir, "state") }

// Restore replaces the database of the daemon of a machine with files in dir,
// which does not run, with a backup.
func Restore(ctx context.Context, dir, backup string) error {
	replaced, err := daemon.Restore(ctx, stateDir(dir), backup)
	if err != nil {
		return err
	}
	return os.RemoveAll(replaced)
}

// Start starts the daemon of a machine.
func Start(ctx context.Context, e agent.Enrolled, o Options) (*Daemon, error) {
	d := &Daemon{opts: o, entry: o.Sandboxes, whole: e.Mode == operator.ModeWholeMachine}
	var err error
	if d.epochs, err = openEpochs(filepath.Join(o.Dir, "epochs.json")); err != nil {
		return nil, err
	}
	d.Share(e.Agreed().Has(operator.ConsentScreen))
	if d.whole {
		d.entry = providerset.Entry{Name: host.Name, Open: func(h providerset.Host) (driver.Provider, error) {
			return host.New(host.Options{Dir: h.Dir, Workdir: e.Directory, Screen: d.screen.Load()})
		}}
	}
	return d, d.start(ctx)
}

func (d *Daemon) start(ctx context.Context) (err error) {
	r := &running{}
	// Every connection needs a key, also those of the machine's other users.
	r.daemon, err = daemon.Start(ctx, daemon.Options{
		StateDir: stateDir(d.opts.Dir), Provider: d.entry.Name, Providers: []providerset.Entry{d.entry}, Listen: "127.0.0.1:0", Plain: true,
		Pool: d.opts.Pool, Drain: drain, Fence: d.epochs.check, Version: d.opts.Version, Logger: d.opts.Logger,
	})
	if err != nil {
		return err
	}
	r.client, err = atoll.New(atoll.Options{Transport: r.daemon.Memory().Transport()})
	if err == nil {
		err = r.renew(ctx)
	}
	if err != nil {
		return errors.Join(err, r.close())
	}
	d.running = r
	return nil
}

// renew makes a key, and revokes those of earlier processes.
func (r *running) renew(ctx context.Context) error {
	all, err := r.client.Admin().Keys(ctx)
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.Name == keyName && k.Revoked.IsZero() {
			if err := r.client.Admin().RevokeKey(ctx, k.ID); err != nil {
				return err
			}
		}
	}
	k, err := r.client.Admin().CreateKey(ctx, operator.NewKey{Name: keyName, Verbs: []string{"read", "write", "exec"}})
	r.key = k.Token
	return err
}

func (r *running) close() error {
	if r.client != nil {
		_ = r.client.Close()
	}
	return r.daemon.Close()
}

// Dial implements agent.Local.
func (d *Daemon) Dial(ctx context.Context) (net.Conn, error) {
	if d.running == nil {
		return nil, net.ErrClosed
	}
	return new(net.Dialer).DialContext(ctx, "tcp", d.running.daemon.TCP().String())
}

// Credentials implements agent.Local.
func (d *Daemon) Credentials() (key, provider string) {
	if d.running == nil {
		return "", d.entry.Name
	}
	return d.running.key, d.entry.Name
}

// each calls act for all sandboxes.
func (d *Daemon) each(ctx context.Context, act func(s *atoll.Sandbox) error) (failed error) {
	for info, err := range d.running.client.List(ctx, atoll.ListOptions{}) {
		if err != nil {
			return errors.Join(failed, err)
		}
		s, err := d.running.client.Get(ctx, string(info.ID))
		if err == nil {
			err = act(s)
		}
		if code := sandbox.CodeOf(err); code != sandbox.CodeNotFound && code != sandbox.CodeGone {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// Share implements agent.Local.
func (d *Daemon) Share(screen bool) { d.screen.Store(screen) }

// Halt implements agent.Local. The commands of a whole machine end; sandboxes
// are paused, so that nothing in them runs.
func (d *Daemon) Halt(ctx context.Context) error {
	if d.running == nil {
		return nil
	}
	if d.whole {
		r := d.running
		d.running = nil
		return r.close()
	}
	return d.each(ctx, func(s *atoll.Sandbox) error {
		if s.Info().State != sandbox.Running {
			return nil
		}
		_, err := s.Pause(ctx, "")
		return err
	})
}

// Continue implements agent.Local.
func (d *Daemon) Continue(ctx context.Context) error {
	if d.running == nil {
		return d.start(ctx)
	}
	return d.each(ctx, func(s *atoll.Sandbox) error {
		if s.Info().State != sandbox.Paused {
			return nil
		}
		_, err := s.Resume(ctx)
		return err
	})
}

// Sandboxes implements agent.Local.
func (d *Daemon) Sandboxes(ctx context.Context) (n int, err error) {
	if d.running == nil {
		return 0, nil
	}
	err = d.each(ctx, func(*atoll.Sandbox) error { n++; return nil })
	return n, err
}

// Backup implements agent.Local.
func (d *Daemon) Backup(ctx context.Context) (io.ReadCloser, error) {
	if d.running == nil {
		return nil, net.ErrClosed
	}
	return d.running.client.Admin().Backup(ctx)
}

// Clear implements agent.Local.
func (d *Daemon) Clear(ctx context.Context) error {
	if d.running == nil {
		if err := d.start(ctx); err != nil {
			return err
		}
	}
	return d.each(ctx, func(s *atoll.Sandbox) error { return s.Destroy(ctx) })
}

// Close implements agent.Local. Sandboxes go on, and commands of a whole machine
// end.
func (d *Daemon) Close() error {
	if d.running == nil {
		return nil
	}
	r := d.running
	d.running = nil
	return r.close()
}
