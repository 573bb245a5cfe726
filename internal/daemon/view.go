package daemon

import (
	"context"
	"io"
	"path/filepath"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/code"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/desk"
	"github.com/atoll-run/atoll/internal/interpreter"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/view"
	"github.com/atoll-run/atoll/internal/view/record"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// codeSandbox adapts a sandbox to the code interpreter.
type codeSandbox struct{ *exec.Handle }

func (s codeSandbox) Write(ctx context.Context, path string, content io.Reader, opts driver.WriteOptions) error {
	_, err := s.Files().Write(ctx, path, content, opts)
	return err
}

// sourceSandbox adapts a sandbox to the services for source code.
type sourceSandbox struct{ *exec.Handle }

func (s sourceSandbox) Files() code.Files { return s.Sandbox.Files() }

// openView opens the streams for viewers, and the desktop and the code
// interpreter of sandboxes. It needs the other services.
func (d *Daemon) openView() error {
	signing, err := secretFile(filepath.Join(d.node.Dir(), "streams.key"))
	if err != nil {
		return err
	}
	s := d.services
	epoch := d.sessions.Holders.Watch
	d.desk = desk.New(desk.Config{
		Guard: s.Guard, Find: s.Sandboxes.Public().Get,
		Open: func(ctx context.Context, ref string) (desk.Commands, error) { return s.Exec.Open(ctx, ref) },
		Used: d.recordings.Used, Own: d.ownScreen,
	})
	d.code = interpreter.New(interpreter.Config{
		Guard: s.Guard, Find: s.Sandboxes.Public().Get, Dial: s.Exec.DialPort,
		Open: func(ctx context.Context, ref string) (interpreter.Sandbox, error) {
			sb, err := s.Exec.Open(ctx, ref)
			return codeSandbox{sb}, err
		},
		Own: func(ctx context.Context, id sandbox.ID) (context.Context, error) {
			ctx, _, err := s.Sandboxes.Entrance.Enter(ctx, id, "")
			return ctx, err
		},
	})
	d.source = code.New(code.Config{
		Guard: s.Guard, Find: s.Sandboxes.Public().Get,
		Open: func(ctx context.Context, ref string) (code.Sandbox, error) {
			sb, err := s.Exec.Open(ctx, ref)
			return sourceSandbox{sb}, err
		},
	})
	d.view = view.New(view.Config{
		Secret: signing, Rate: d.opts.StreamRate, Guard: s.Guard, Life: s.Life, Now: s.Store.Now, Find: s.Sandboxes.Public().Get, Dial: s.Exec.DialPort, KeepAlive: s.Tenants.KeepAlive,
		Open: func(ctx context.Context, ref string) (view.Commands, error) { return s.Exec.Open(ctx, ref) },
		Desktop: func(ctx context.Context, ref string) error {
			_, err := d.desk.Start(ctx, ref, viewing.Screen{}, true)
			return err
		},
		Streamed: func(ctx context.Context, sb sandbox.Sandbox, port uint16) error {
			own, err := d.ownScreen(ctx, sb)
			if err == nil && own && port != desk.VNCPort {
				err = desk.AsItIs(sb.Name)
			}
			return err
		},
		Epoch: epoch, Serving: d.sessions.Holders.Serving,
		Valid: func(ctx context.Context, tenant, keyID string) error {
			return s.Store.View(ctx, func(tx *store.Tx) error { return s.Tenants.Valid(ctx, tx, tenant, keyID) })
		},
	})
	d.recordings.Service, err = record.New(record.Config{
		Guard: s.Guard, Store: s.Store, Blobs: d.blobs, Dir: filepath.Join(d.node.Dir(), "recordings"), Node: d.member.Node, Life: s.Life,
		Terminals: d.view, Find: s.Sandboxes.Public().Get, KeepAlive: s.Tenants.KeepAlive, Epoch: epoch,
		Open: func(ctx context.Context, ref string) (record.Commands, error) { return s.Exec.Open(ctx, ref) },
		Desktop: func(ctx context.Context, ref string) (viewing.DesktopState, error) {
			return d.desk.Start(ctx, ref, viewing.Screen{}, false)
		},
		Session: func(ctx context.Context, ref string) (string, error) {
			one, err := d.sessions.Sessions.Get(ctx, ref)
			return one.Name, err
		},
		Redactor: func(ctx context.Context, id sandbox.ID) (*secret.Redactor, error) {
			ctx, cancel := context.WithCancel(ctx) // the sandbox is in use until ctx ends
			defer cancel()
			sb, err := s.Exec.Open(ctx, string(id))
			if err != nil {
				return nil, err
			}
			return sb.Redactor(), nil
		},
	})
	if err == nil {
		d.onClose(d.recordings.Close)
	}
	return err
}

// ownScreen reports whether the screen of a sandbox is that of a self-hosted
// machine itself. An error: the owner does not share it. A machine that is offline
// is asked when it is used.
func (d *Daemon) ownScreen(ctx context.Context, sb sandbox.Sandbox) (bool, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return false, err
	}
	m, err := d.services.Machines.State(ctx, who.Tenant, sb.Provider)
	if err != nil || m == nil || !m.Own {
		return false, err
	}
	if m.Liveness == catalog.MachineOnline && !m.Consented {
		return true, &sandbox.Error{
			Code: sandbox.CodeDenied, Subject: sb.Name, Message: "the owner of the machine does not share its screen (" + string(catalog.ConsentRequired) + ")",
			Hint: "the owner shares it there with: atoll machine screen on",
		}
	}
	return true, nil
}

// recordings are the recordings of the daemon. They are opened after what
// flushes them.
type recordings struct{ *record.Service }

func (r *recordings) TurnHolds(s store.Session, turn string, id sandbox.ID, epoch int64) {
	if r.Service != nil {
		r.Service.TurnHolds(s, turn, id, epoch)
	}
}

func (r *recordings) TurnOver(s store.Session, turn string) {
	if r.Service != nil {
		r.Service.TurnOver(s, turn)
	}
}

func (r *recordings) Used(ctx context.Context, id sandbox.ID) {
	if r.Service != nil {
		r.Service.Used(ctx, id)
	}
}

func (r *recordings) Flush(ctx context.Context, id sandbox.ID) {
	if r.Service != nil {
		r.Service.Flush(ctx, id)
	}
}
