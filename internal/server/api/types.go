package api

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Command is a sandbox.Command in a request.
type Command struct {
	Args       []string            `json:"args,omitempty" doc:"the program and its arguments"`
	ArgsBase64 [][]byte            `json:"argsBase64,omitempty" doc:"instead of args, when they are not UTF-8"`
	Shell      string              `json:"shell,omitempty" doc:"a script for /bin/sh, instead of args"`
	Env        map[string]string   `json:"env,omitempty"`
	Dir        string              `json:"dir,omitempty"`
	User       string              `json:"user,omitempty"`
	TTY        *sandbox.WindowSize `json:"tty,omitempty" doc:"run on a terminal of this size; only over a WebSocket"`
	Stdin      bool                `json:"stdin,omitempty" doc:"standard input will be sent; only over a WebSocket"`
	TimeoutMS  int64               `json:"timeoutMs,omitempty" minimum:"0"`
	Background bool                `json:"background,omitempty" doc:"keep running when the caller disconnects"`
	HoldMS     int64               `json:"holdMs,omitempty" minimum:"0" maximum:"86400000" doc:"how long the command waits for its caller to attach again after a lost connection, without losing output; only over a WebSocket"`
}

// command converts it to a sandbox.Command.
func (c *Command) command() sandbox.Command {
	out := sandbox.Command{
		Args: c.Args, Shell: c.Shell, Env: c.Env, Dir: c.Dir, User: c.User, Stdin: c.Stdin,
		Timeout: milliseconds(c.TimeoutMS), Background: c.Background, Hold: milliseconds(c.HoldMS),
	}
	if len(c.ArgsBase64) > 0 {
		out.Args = make([]string, len(c.ArgsBase64))
		for i, a := range c.ArgsBase64 {
			out.Args[i] = string(a)
		}
	}
	if c.TTY != nil {
		out.TTY = &sandbox.WindowSize{Cols: c.TTY.Cols, Rows: c.TTY.Rows}
	}
	return out
}

// Milliseconds converts ms to a duration. A number that does not fit becomes
// the longest duration.
func milliseconds(ms int64) time.Duration {
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(ms, longest)) * time.Millisecond
}

// ExecRequest runs a command and waits for its end.
type ExecRequest struct {
	Command
	Input       string `json:"input,omitempty" doc:"standard input of the command"`
	InputBase64 []byte `json:"inputBase64,omitempty" doc:"instead of input, when it is not UTF-8"`
	OutputLimit int64  `json:"outputLimit,omitempty" minimum:"0" maximum:"16777216" doc:"bytes of each stream to return, 1 MiB if it is left out"`
}

// ExecResult is the exit and the output of a command. For a background command,
// only Process is set.
type ExecResult struct {
	Process sandbox.ProcessInfo `json:"process"`
	Exit    *sandbox.Exit       `json:"exit,omitempty"`
	Stdout  *Output             `json:"stdout,omitempty"`
	Stderr  *Output             `json:"stderr,omitempty"`
	Hint    string              `json:"hint,omitempty" doc:"how to allow hosts, if the command failed and its output says that a host could not be reached"`
}

// Output is the beginning of an output stream.
type Output struct {
	Data      string `json:"data"`
	Encoding  string `json:"encoding" enum:"utf-8,base64"`
	Truncated bool   `json:"truncated"`
	Dropped   int64  `json:"dropped,omitempty" doc:"bytes that are missing at the end"`
}
