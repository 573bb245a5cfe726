package sandbox

import (
	"strings"
	"unicode/utf8"
)

// MainCommand is the main command of a sandbox, as of a container. The daemon
// starts it when the sandbox is made or started again. When it has ended and is
// not restarted, the state of the sandbox is Exited, with the Exit of the
// command.
type MainCommand struct {
	// Args replace the image's command. If there are none, and the image has no
	// command either, nothing is started.
	Args []string `json:"args,omitempty" doc:"the program and its arguments; the image's command if left out"`
	// Entrypoint replaces the image's, together with its command; an empty one
	// means none. Nil keeps the image's.
	Entrypoint *string `json:"entrypoint,omitempty" doc:"replaces the image's entrypoint; empty for none"`
	// TTY runs it on a terminal of this size.
	TTY *WindowSize `json:"tty,omitempty"`
	// Stdin keeps its standard input open for clients that attach.
	Stdin bool `json:"stdin,omitempty" doc:"keep its standard input open for clients that attach"`
	// Restart says when it is started again after it has ended. Empty: never.
	Restart RestartPolicy `json:"restart,omitempty" enum:"no,on-failure,always" doc:"when to start it again; never if left out"`
	// MaxRestarts limits the restarts. Zero: no limit.
	MaxRestarts int `json:"maxRestarts,omitempty" minimum:"0" doc:"maximum number of restarts; no maximum if left out"`
	// Remove removes the sandbox when the command has ended.
	Remove bool `json:"remove,omitempty" doc:"remove the sandbox when the command has ended"`

	// Process is the id of the running command, or of the last one.
	Process string `json:"process,omitempty" readOnly:"true" doc:"id of the running command, or of the last one"`
	// Restarts is how often it was started again.
	Restarts int `json:"restarts,omitempty" readOnly:"true" doc:"how often it was started again"`
}

// RestartPolicy says when a main command that has ended is started again, after a
// pause that doubles from 100 ms to a minute.
type RestartPolicy string

// The restart policies.
const (
	RestartNo        RestartPolicy = "no"
	RestartOnFailure RestartPolicy = "on-failure" // after an exit code other than 0
	RestartAlways    RestartPolicy = "always"
)

// Again reports whether a command that ended with exit must be restarted.
func (m *MainCommand) Again(exit Exit) bool {
	if m.MaxRestarts > 0 && m.Restarts >= m.MaxRestarts {
		return false
	}
	return m.Restart == RestartAlways || m.Restart == RestartOnFailure && exit.Code != 0
}

func (m *MainCommand) validate() error {
	if m == nil {
		return nil
	}
	for _, a := range m.Args {
		if !utf8.ValidString(a) || strings.ContainsRune(a, 0) {
			return invalid("main", "an argument is not valid UTF-8 or has a NUL byte")
		}
	}
	switch m.Restart {
	case "", RestartNo, RestartOnFailure, RestartAlways:
	default:
		return invalid("main", "%q is not one of no, on-failure and always", clip(string(m.Restart)))
	}
	switch {
	case m.MaxRestarts < 0:
		return invalid("main", "the number of restarts is negative")
	case m.Remove && m.Restart != "" && m.Restart != RestartNo:
		return invalid("main", "a sandbox that is removed when its command ends cannot restart it")
	case m.TTY == nil:
		return nil
	}
	c := Command{Args: []string{"-"}, TTY: m.TTY}
	return c.Validate()
}
