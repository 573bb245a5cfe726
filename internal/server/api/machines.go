package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Machines manages the self-hosted machines of a tenant. A ref is the id or the
// name of a machine.
type Machines interface {
	Machines(ctx context.Context) ([]operator.Machine, error)
	Machine(ctx context.Context, ref string) (operator.Machine, error)
	// LookupMachine returns the machine that waits with a code.
	LookupMachine(ctx context.Context, code string) (operator.Machine, error)
	ApproveMachine(ctx context.Context, a operator.MachineApproval) (operator.Machine, error)
	InviteMachine(ctx context.Context, n operator.NewMachineToken) (operator.MachineToken, error)
	RevokeMachine(ctx context.Context, ref string) error
	// Connected reports whether machines can connect. Without, the other methods
	// fail with CodeNotFound.
	Connected() bool
}

type machineInput struct {
	Machine string `path:"machine" maxLength:"64" doc:"id or name of the machine"`
}

type machineCodeInput struct {
	Code string `path:"code" maxLength:"16" doc:"the code that the machine shows"`
}

type machineOutput struct{ Body operator.Machine }

type machinesOutput struct {
	Body struct {
		Machines []operator.Machine `json:"machines" doc:"oldest first"`
	}
}

type approveMachineInput struct{ Body operator.MachineApproval }

type inviteMachineInput struct{ Body operator.NewMachineToken }

type machineTokenOutput struct{ Body operator.MachineToken }

func (a *API) machines() {
	const tag, base = "Machines", "/v1/machines"
	huma.Register(a.huma, operation("listMachines", http.MethodGet, base, tag, "List self-hosted machines", ops.MachineList),
		func(ctx context.Context, _ *none) (*machinesOutput, error) {
			all, err := a.services.Machines.Machines(ctx)
			out := &machinesOutput{}
			out.Body.Machines = append([]operator.Machine{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getMachine", http.MethodGet, base+"/{machine}", tag, "Describe a self-hosted machine", ops.MachineList),
		func(ctx context.Context, in *machineInput) (*machineOutput, error) {
			m, err := a.services.Machines.Machine(ctx, in.Machine)
			return &machineOutput{m}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("lookupMachine", http.MethodGet, "/v1/machine-codes/{code}", tag, "Describe the machine that waits with a code", ops.MachineLookup),
		func(ctx context.Context, in *machineCodeInput) (*machineOutput, error) {
			m, err := a.services.Machines.LookupMachine(ctx, in.Code)
			return &machineOutput{m}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("approveMachine", http.MethodPost, base, tag, "Approve the machine that waits with a code", ops.MachineApprove),
		func(ctx context.Context, in *approveMachineInput) (*machineOutput, error) {
			m, err := a.services.Machines.ApproveMachine(ctx, in.Body)
			return &machineOutput{m}, a.problem(ctx, err)
		})
	invite := operation("inviteMachine", http.MethodPost, "/v1/machine-tokens", tag, "Make a token that enrols one machine; it is only in this response", ops.MachineInvite)
	invite.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, invite, func(ctx context.Context, in *inviteMachineInput) (*machineTokenOutput, error) {
		t, err := a.services.Machines.InviteMachine(ctx, in.Body)
		return &machineTokenOutput{t}, a.problem(ctx, err)
	})
	revoke := operation("revokeMachine", http.MethodDelete, base+"/{machine}", tag, "Revoke a self-hosted machine, and close its connection", ops.MachineRevoke)
	revoke.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, revoke, func(ctx context.Context, in *machineInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Machines.RevokeMachine(ctx, in.Machine))
	})
}
