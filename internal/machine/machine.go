// Package machine is the protocol between a daemon and the self-hosted machines
// that connect to it, over NATS: subjects, messages, and streams that outlive
// the loss of messages and of connections. A stream carries a connection to the
// machine's own daemon, so every operation of a sandbox goes through it.
package machine

import (
	"strings"
	"time"
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

// Greeting says what a process of a machine is.
type Greeting struct {
	Started time.Time `json:"started"` // of the process
	Version string    `json:"version"`
	Mode    string    `json:"mode"`
	// Key is an API key of the machine's own daemon. It allows no more than the
	// machine's owner offered.
	Key string `json:"key,omitempty"`
	// Provider is the provider of the machine's own daemon.
	Provider string `json:"provider,omitempty"`
	// Screen says that the owner shares the machine's own screen.
	Screen bool `json:"screen,omitempty"`
	// Updates asks for newer programs for this system.
	Updates bool   `json:"updates,omitempty"`
	OS      string `json:"os,omitempty"`
	Arch    string `json:"arch,omitempty"`
}

// Farewell says why a process must not go on.
type Farewell struct {
	Reason  string `json:"reason"`
	Revoked bool   `json:"revoked,omitempty"` // the enrolment ended
}

// Enrolment asks for an enrolment, and again for its state.
type Enrolment struct {
	Name         string `json:"name"`
	Mode         string `json:"mode"`
	Directory    string `json:"directory,omitempty"`
	OS           string `json:"os"`
	Arch         string `json:"arch"`
	Version      string `json:"version"`
	Token        string `json:"token,omitempty"` // from an invitation; empty: a person approves
	ConsentWhole bool   `json:"consentWhole,omitempty"`
	// Poll asks for the state of an enrolment that was requested.
	Poll bool `json:"poll,omitempty"`
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
	Error   string        `json:"error,omitempty"`
}
