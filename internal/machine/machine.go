// Package machine is the protocol between a daemon and the self-hosted machines
// that connect to it, over NATS: subjects, messages, and streams that outlive
// the loss of messages and of connections. A stream carries a connection to the
// machine's own daemon, so every operation of a sandbox goes through it.
package machine

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox/operator"
)

// Beat is how often a machine says that it lives. Fresh is how long a machine
// counts as online after it was heard.
const (
	Beat  = 5 * time.Second
	Fresh = 2*Beat + 2*time.Second
)

// MaxStreams is how many streams a machine serves at a time.
const MaxStreams = 512

// Subjects of a process of a machine. A process may publish only below Up, and
// subscribe only below Down, and both end with it: what it left behind cannot
// answer for the next process.
type Subjects struct{ Tenant, Machine, Instance string }

func (s Subjects) root() string {
	return "agent." + s.Tenant + "." + s.Machine + ".connection." + s.Instance
}

// Up is the begin of the subjects to daemons, with a dot.
func (s Subjects) Up() string { return s.root() + ".up." }

// Down is the begin of the subjects to the machine, with a dot.
func (s Subjects) Down() string { return s.root() + ".down." }

// Last parts of subjects.
const (
	Hello   = "hello"   // up: Greeting, after each connect
	Alive   = "events"  // up: Greeting, every Beat
	Leaving = "leaving" // up: the process ends
	End     = "end"     // down: the process must not go on; Farewell
	Offer   = "offer"   // down: update.Signed, for a Greeting that asks for updates
	Ops     = "op"      // down: op.DAEMON.STREAM; up: op.DAEMON.STREAM. A stream of the machine is a program of the daemon
)

// All matches the subjects of all machines to daemons.
const All = "agent.*.*.connection.*.up.>"

// Parse returns whose subject it is, and what follows Up or Down.
func Parse(subject string) (s Subjects, rest string, ok bool) {
	parts := strings.SplitN(subject, ".", 7)
	if len(parts) < 7 || parts[0] != "agent" || parts[3] != "connection" {
		return s, "", false
	}
	return Subjects{parts[1], parts[2], parts[4]}, parts[6], true
}

// EnrolSubject is the subject of requests of a process whose key is not enrolled.
// Answers come to the same subject with ReplySuffix.
func EnrolSubject(key string) string { return "enrol." + key }

// ReplySuffix is the last part of the subject of answers to an enrolment.
const ReplySuffix = ".answer"

// Greeting describes a process of a machine.
type Greeting struct {
	Started time.Time `json:"started"` // of the process
	Version string    `json:"version"`
	Mode    string    `json:"mode"`
	// Key is an API key of the machine's own daemon. It allows no more than the
	// machine's owner offered.
	Key string `json:"key,omitempty"`
	// Provider is the provider of the machine's own daemon.
	Provider string `json:"provider,omitempty"`
	// Consents are what the owner agrees to now. Those to updates ask for newer
	// programs for this system.
	Consents operator.Consents `json:"consents,omitempty"`
	OS       string            `json:"os,omitempty"`
	Arch     string            `json:"arch,omitempty"`
}

// UnmarshalJSON also reads what programs send in which every consent had a field.
func (g *Greeting) UnmarshalJSON(text []byte) error {
	type plain Greeting
	var old struct{ Screen, Updates bool }
	err := errors.Join(json.Unmarshal(text, (*plain)(g)), json.Unmarshal(text, &old))
	g.Consents = older(g.Consents, old.Screen, operator.ConsentScreen)
	g.Consents = older(g.Consents, old.Updates, operator.ConsentUpdates)
	return err
}

// older adds a consent of an older program, and leaves out what is none.
func older(c operator.Consents, has bool, to operator.Consent) operator.Consents {
	if has {
		c = append(c, to)
	}
	return c.Known()
}

// Farewell says why a process must not go on.
type Farewell struct {
	Reason  string `json:"reason"`
	Revoked bool   `json:"revoked,omitempty"` // the enrolment ended
}

// Enrolment asks for an enrolment, and again for its state.
type Enrolment struct {
	Name      string            `json:"name"`
	Mode      string            `json:"mode"`
	Directory string            `json:"directory,omitempty"`
	OS        string            `json:"os"`
	Arch      string            `json:"arch"`
	Version   string            `json:"version"`
	Token     string            `json:"token,omitempty"`    // from an invitation; empty: a person approves
	Consents  operator.Consents `json:"consents,omitempty"` // that the owner gave
	// Poll asks for the state of an enrolment that was requested.
	Poll bool `json:"poll,omitempty"`
}

// UnmarshalJSON also reads what programs send in which every consent had a field.
func (e *Enrolment) UnmarshalJSON(text []byte) error {
	type plain Enrolment
	var old struct{ ConsentWhole bool }
	err := errors.Join(json.Unmarshal(text, (*plain)(e)), json.Unmarshal(text, &old))
	e.Consents = older(e.Consents, old.ConsentWhole, operator.ConsentWholeMachine)
	return err
}

// States of an enrolment, for the machine.
const (
	Pending    = "pending"
	Authorized = "authorized"
	Denied     = "denied"
	Expired    = "expired"
)

// Answer answers an Enrolment.
type Answer struct {
	State   string        `json:"state"`
	Code    string        `json:"code,omitempty"` // for a person to approve
	Life    time.Duration `json:"life,omitempty"` // of the code
	Every   time.Duration `json:"every,omitempty"`
	Machine string        `json:"machine,omitempty"` // its id, when authorized
	Tenant  string        `json:"tenant,omitempty"`
	Signer  string        `json:"signer,omitempty"` // public key of the daemon's account, which signs programs
	// Consents are what the daemon takes of those that were asked for.
	Consents operator.Consents `json:"consents,omitempty"`
	Error    string            `json:"error,omitempty"`
}
