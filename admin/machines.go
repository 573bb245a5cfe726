package admin

import (
	"context"
	"net/http"
	"net/url"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Machines lists the self-hosted machines, oldest first.
func (c *Client) Machines(ctx context.Context) ([]operator.Machine, error) {
	var out struct{ Machines []operator.Machine }
	return out.Machines, c.conn.Call(ctx, http.MethodGet, "/v1/machines", nil, nil, &out)
}

// Machine returns a self-hosted machine by its id or name.
func (c *Client) Machine(ctx context.Context, ref string) (m operator.Machine, err error) {
	return m, c.conn.Call(ctx, http.MethodGet, "/v1/machines/"+url.PathEscape(ref), nil, nil, &m)
}

// LookupMachine returns the machine that waits for approval with a code. Every
// failure is CodeNotFound.
func (c *Client) LookupMachine(ctx context.Context, code string) (m operator.Machine, err error) {
	return m, c.conn.Call(ctx, http.MethodGet, "/v1/machine-codes/"+url.PathEscape(code), nil, nil, &m)
}

// ApproveMachine approves the machine that waits with a code.
func (c *Client) ApproveMachine(ctx context.Context, a operator.MachineApproval) (m operator.Machine, err error) {
	return m, c.conn.Call(ctx, http.MethodPost, "/v1/machines", nil, a, &m)
}

// InviteMachine makes a token that enrols one machine within an hour.
func (c *Client) InviteMachine(ctx context.Context, n operator.NewMachineToken) (t operator.MachineToken, err error) {
	return t, c.conn.Call(ctx, http.MethodPost, "/v1/machine-tokens", nil, n, &t)
}

// RevokeMachine ends the enrolment of a machine, and closes its connection.
func (c *Client) RevokeMachine(ctx context.Context, ref string) error {
	return c.conn.Call(ctx, http.MethodDelete, "/v1/machines/"+url.PathEscape(ref), nil, nil, nil)
}
