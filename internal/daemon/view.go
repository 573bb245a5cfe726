package daemon

import (
	"context"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/control/sandboxes"
	"github.com/atoll-run/atoll/internal/desk"
	"github.com/atoll-run/atoll/internal/view"
	"github.com/atoll-run/atoll/sandbox"
)

// openView opens the streams for viewers. It needs the other services.
func (d *Daemon) openView() error {
	secret, err := secretFile(filepath.Join(d.node.Dir(), "streams.key"))
	if err != nil {
		return err
	}
	s := d.services
	d.desk = desk.New(desk.Config{
		Guard: s.Guard, Find: sandboxes.Public{Service: s.Sandboxes}.Get,
		Open: func(ctx context.Context, ref string) (desk.Commands, error) { return s.Exec.Open(ctx, ref) },
	})
	d.view = view.New(view.Config{
		Secret: secret, Guard: s.Guard, Life: s.Life, Now: s.Store.Now, Find: sandboxes.Public{Service: s.Sandboxes}.Get, Dial: s.Exec.DialPort, KeepAlive: s.Tenants.KeepAlive,
		Open: func(ctx context.Context, ref string) (view.Commands, error) { return s.Exec.Open(ctx, ref) },
		Desktop: func(ctx context.Context, ref string) error {
			_, err := d.desk.Start(ctx, ref, sandbox.Screen{}, true)
			return err
		},
		Epoch: func(ctx context.Context, session string, epoch int64) error {
			r, err := d.sessions.Holders.Route(ctx, session, epoch, false)
			if err == nil {
				r.Done()
			}
			return err
		},
	})
	return nil
}
