package operator

import (
	"slices"
	"strings"
	"time"
)

// Modes of a machine.
const (
	// ModeSandboxes makes sandboxes on the machine, apart from its owner's files.
	ModeSandboxes = "sandboxes"
	// ModeWholeMachine runs commands as the machine's owner, in one directory.
	ModeWholeMachine = "whole-machine"
)

// Consent is something that the owner of a machine agrees to by itself, and may
// withdraw at any time.
type Consent string

// The consents.
const (
	ConsentSandboxes    Consent = ModeSandboxes    // the mode sandboxes
	ConsentWholeMachine Consent = ModeWholeMachine // the mode whole-machine
	ConsentScreen       Consent = "screen"         // callers see and use the screen of a whole machine
	ConsentUpdates      Consent = "updates"        // programs of the daemon replace the machine's
)

// Consents are what the owner of a machine agreed to.
type Consents []Consent

// Has reports whether the owner agreed to something.
func (c Consents) Has(to Consent) bool { return slices.Contains(c, to) }

// Known returns the consents that there are, each once, and leaves out all else.
func (c Consents) Known() (known Consents) {
	for _, to := range []Consent{ConsentSandboxes, ConsentWholeMachine, ConsentScreen, ConsentUpdates} {
		if c.Has(to) {
			known = append(known, to)
		}
	}
	return known
}

// String is the consents, with commas.
func (c Consents) String() string {
	all := make([]string, 0, len(c))
	for _, to := range c {
		all = append(all, string(to))
	}
	return strings.Join(all, ", ")
}

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
	// Consents are those of the last message of the machine. Before it is heard, they
	// are those with which it joined; of a pending machine, what it asks to be approved
	// with; of an invited one, what its token allows.
	Consents Consents `json:"consents,omitempty" enum:"sandboxes,whole-machine,screen,updates" doc:"what its owner agreed to, as it said last; of a pending machine, what it asks for; of an invited one, what its token allows"`
	OS       string   `json:"os,omitempty"`
	Arch     string   `json:"arch,omitempty"`
	Version  string   `json:"version,omitempty" doc:"of its program"`
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
	// Consents are those that the caller takes of what the machine asks for. The mode
	// whole-machine must be among them; a screen that is not is not shared.
	Consents Consents `json:"consents,omitempty" maxItems:"4" enum:"sandboxes,whole-machine,screen,updates" doc:"what the caller takes of what the machine's owner agreed to; whole-machine must be taken, and without screen it is not shared"`
	// WholeMachine is the same as ConsentWholeMachine in Consents.
	WholeMachine bool `json:"wholeMachine,omitempty" doc:"the same as whole-machine in consents"`
}

// NewMachineToken describes a token that enrols one machine without a person.
type NewMachineToken struct {
	Name string `json:"name" maxLength:"63" doc:"name of the machine"`
	// Consents are what the machine may be enrolled with, beside the mode sandboxes.
	// The machine's owner chooses.
	Consents Consents `json:"consents,omitempty" maxItems:"4" enum:"sandboxes,whole-machine,screen,updates" doc:"what the machine's owner may agree to, beside the mode sandboxes"`
	// WholeMachine is the same as ConsentWholeMachine in Consents.
	WholeMachine bool `json:"wholeMachine,omitempty" doc:"the same as whole-machine in consents"`
}

// MachineToken enrols one machine, once.
type MachineToken struct {
	Machine Machine `json:"machine"`
	Token   string  `json:"token" doc:"only in this response"`
}
