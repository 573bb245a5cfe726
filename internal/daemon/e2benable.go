package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// e2bFace is the state of the E2B API.
type e2bFace struct {
	change sync.Mutex // held while it starts or stops

	mu   sync.Mutex
	opts E2B // Listen is empty if it is not served
	addr net.Addr
	end  func() error // nil: it is not served
	// kept means that the settings are from an earlier daemon.
	kept bool
	over bool // the daemon is closing
}

func (f *e2bFace) settings() E2B {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opts
}

func (f *e2bFace) address() net.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addr
}

func (f *e2bFace) opened(opts E2B, addr net.Addr, end func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opts, f.addr, f.end = opts, addr, end
}

// forget clears the state, except for TLS, which only a start can set. It
// returns the function that stops serving.
func (f *e2bFace) forget() func() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.end
	f.opts, f.addr, f.end = E2B{TLS: f.opts.TLS}, nil, nil
	return end
}

// close stops it when the daemon ends.
func (f *e2bFace) close() error {
	f.change.Lock()
	f.over = true
	f.change.Unlock()
	return f.stop()
}

// stop ends requests as when the daemon ends. It is idempotent.
func (f *e2bFace) stop() error {
	f.change.Lock()
	defer f.change.Unlock()
	if end := f.forget(); end != nil {
		return end()
	}
	return nil
}

// keptE2B returns the file in which EnableE2B stores settings for later starts.
func (d *Daemon) keptE2B() string { return filepath.Join(d.node.Dir(), "e2b-enabled.json") }

// openE2B determines the settings: those of this start, otherwise the stored
// ones.
func (d *Daemon) openE2B() error {
	d.e2b.opts = d.opts.E2B
	if d.opts.E2B.Listen != "" {
		return nil
	}
	text, err := os.ReadFile(d.keptE2B())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var asked operator.E2BSettings
	if err = errors.Join(err, json.Unmarshal(text, &asked)); err != nil {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.start", Subject: d.keptE2B(), Message: "cannot be read", Cause: err,
			Hint: "remove it, and enable it again with: atoll e2b enable",
		}
	}
	d.e2b.opts, d.e2b.kept = d.e2bOptions(asked), true
	return nil
}

// e2bOptions completes stored settings with the options of this start.
func (d *Daemon) e2bOptions(s operator.E2BSettings) E2B {
	opts := E2B{Listen: s.Listen, TLS: d.opts.E2B.TLS, Internet: s.Internet}
	host, _, _ := net.SplitHostPort(s.Listen)
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case s.Domain != nil:
		opts.Domain = *s.Domain
	case opts.TLS == nil && loopback:
		opts.Domain = operator.DefaultE2BDomain
	}
	opts.Plain = opts.TLS == nil && loopback
	return opts
}

// EnableE2B implements api.Machine.
func (o owned) EnableE2B(ctx context.Context, s operator.E2BSettings) (place operator.E2BPlace, err error) {
	err = o.AsOwner(ctx, ops.DaemonE2B, "enable", func(ctx context.Context) (err error) {
		place, err = o.d.enableE2B(ctx, s)
		return err
	})
	return place, err
}

// DisableE2B implements api.Machine.
func (o owned) DisableE2B(ctx context.Context) error {
	return o.AsOwner(ctx, ops.DaemonE2B, "disable", func(context.Context) error {
		if err := os.Remove(o.d.keptE2B()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return o.d.e2b.stop()
	})
}

func (d *Daemon) enableE2B(ctx context.Context, s operator.E2BSettings) (place operator.E2BPlace, err error) {
	d.e2b.change.Lock()
	defer d.e2b.change.Unlock()
	if d.e2b.over {
		return place, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon is shutting down"}
	}
	want := d.e2bOptions(s)
	if now := d.e2b.address(); now != nil {
		if is := d.e2b.settings(); is.Listen != want.Listen || is.Domain != want.Domain || is.Internet != want.Internet {
			return place, &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: now.String(), Message: "the E2B API is already served there, with other settings",
				Hint: "disable it first with: atoll e2b disable",
			}
		}
	} else if err := d.serveE2B(want); err != nil {
		return place, err
	}
	if err := d.keepE2B(s); err != nil {
		return place, err
	}
	g, err := d.node.Gateway()
	if err == nil {
		err = g.Reconfigure(ctx) // so that sandboxes cannot reach the new port
	}
	return operator.E2BPlace{Address: d.e2b.address().String(), Domain: want.Domain}, err
}

func (d *Daemon) keepE2B(s operator.E2BSettings) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	made := d.keptE2B() + ".new"
	return errors.Join(os.WriteFile(made, text, 0o600), os.Rename(made, d.keptE2B()))
}
