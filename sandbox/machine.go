package sandbox

import "time"

// Modes of a machine.
const (
	// ModeSandboxes makes sandboxes on the machine, apart from its owner's files.
	ModeSandboxes = "sandboxes"
	// ModeWholeMachine runs commands as the machine's owner, in one directory.
	ModeWholeMachine = "whole-machine"
)

// MachineState is the state of an enrolment.
type MachineState string

// The states of an enrolment.
const (
	MachinePending MachineState = "pending" // it asks to be approved, with a code
	MachineInvited MachineState = "invited" // a token for it was made and not used
	MachineActive  MachineState = "active"
	MachineRevoked MachineState = "revoked"
)

// Machine is a person's own machine that makes sandboxes for a daemon. It
// connects to the daemon; nobody has to reach it.
type Machine struct {
	ID   string `json:"id"`
	Name string `json:"name" doc:"what its owner calls it"`
	// Provider is the name of the provider that makes sandboxes there.
	Provider  string       `json:"provider,omitempty" doc:"the provider that makes sandboxes there; none before it is approved"`
	State     MachineState `json:"state" enum:"pending,invited,active,revoked"`
	Liveness  string       `json:"liveness" enum:"online,reconnecting,offline" doc:"whether it answers"`
	Mode      string       `json:"mode" enum:"sandboxes,whole-machine" doc:"what its owner offers: sandboxes, or commands with all rights of the owner"`
	Directory string       `json:"directory,omitempty" doc:"where commands of the mode whole-machine run"`
	OS        string       `json:"os,omitempty"`
	Arch      string       `json:"arch,omitempty"`
	Version   string       `json:"version,omitempty" doc:"of its program"`
	// Key is the public key that the machine proves to have.
	Key      string    `json:"key,omitempty" doc:"the public key that it proves to have"`
	Created  time.Time `json:"created,omitzero"`
	Approved time.Time `json:"approved,omitzero"`
	Expires  time.Time `json:"expires,omitzero" doc:"when a pending or invited machine is forgotten"`
	Revoked  time.Time `json:"revoked,omitzero"`
	Seen     time.Time `json:"seen,omitzero" doc:"when it was heard of last"`
}

// MachineApproval approves a machine for the caller's tenant.
type MachineApproval struct {
	// Code is the code that the machine shows.
	Code string `json:"code" minLength:"8" maxLength:"16" doc:"the code that the machine shows" example:"ABCD-EFGH"`
	// WholeMachine must be set for a machine of the mode whole-machine, and for no
	// other.
	WholeMachine bool `json:"wholeMachine,omitempty" doc:"agrees to the mode whole-machine, which has to be agreed to"`
}

// NewMachineToken describes a token that enrols one machine without a person.
type NewMachineToken struct {
	Name string `json:"name" maxLength:"63" doc:"name of the machine"`
	// WholeMachine allows the mode whole-machine. The machine's owner chooses.
	WholeMachine bool `json:"wholeMachine,omitempty" doc:"allow the mode whole-machine, too"`
}

// MachineToken enrols one machine, once.
type MachineToken struct {
	Machine Machine `json:"machine"`
	Token   string  `json:"token" doc:"only in this response"`
}
