package guest

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// execHeld starts a command that survives the loss of this connection for its
// Hold. An old guest without ExecHeld returns CodeUnsupported.
func (c *Client) execHeld(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	var e wire.Encoder
	wire.PutCommand(&e, cmd)
	e.Int(int64(cmd.Hold))
	p, err := c.start(ctx, wire.ExecHeld, e.B, cmd)
	if err != nil {
		return nil, c.failed("exec", "", err)
	}
	p.describe(cmd)
	p.held = true
	return p, nil
}

// Rejoin implements driver.Rejoiner.
func (c *Client) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	var e wire.Encoder
	e.String(id)
	e.Int(from.Stdout)
	e.Int(from.Stderr)
	e.Bool(skip)
	op, err := c.open(ctx, wire.Rejoin, e.B)
	if err != nil {
		return nil, from, c.failed("rejoin", id, err)
	}
	p, at, err := c.joined(ctx, op, joining{input: true, positions: true})
	if err != nil {
		return nil, from, c.failed("rejoin", id, err)
	}
	p.held = at.Stdin >= 0
	return p, at, nil
}

// Background implements driver.Backgrounder. An old guest returns
// CodeUnsupported.
func (p *process) Background(ctx context.Context) error {
	var e wire.Encoder
	e.String(p.info.ID)
	if _, err := p.client.call(ctx, wire.Background, e.B); err != nil {
		return p.client.failed("background", p.info.ID, err)
	}
	p.kept.Store(true)
	return nil
}

// letGoTimeout is how long Close waits for a guest that does not read.
const letGoTimeout = time.Second

// letGo tells the guest to kill a command at once. If the message is lost, the
// guest hangs the command up when its Hold is over.
func (p *process) letGo() {
	var e wire.Encoder
	e.String(p.info.ID)
	ctx, cancel := context.WithTimeout(context.Background(), letGoTimeout)
	defer cancel()
	_, _ = p.client.call(ctx, wire.LetGo, e.B)
}
