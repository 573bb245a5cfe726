package mcpserver

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

type processArgs struct {
	sandboxArgs
	Action      string  `json:"action" jsonschema:"list, logs, wait or signal"`
	Process     string  `json:"process,omitempty" jsonschema:"id of the process; not needed for list"`
	TailLines   int     `json:"tail_lines,omitempty" jsonschema:"for logs: only the last lines; all that is kept if left out"`
	Signal      string  `json:"signal,omitempty" jsonschema:"for signal: TERM (if left out), KILL, INT, HUP, USR1 or USR2"`
	WaitSeconds float64 `json:"wait_seconds,omitempty" jsonschema:"for wait: how long at most; 60 if left out, at most 3600"`
}

type processesOut struct {
	Processes []processOut `json:"processes,omitempty" jsonschema:"for list"`
	Output    *execOut     `json:"output,omitempty" jsonschema:"for logs and wait"`
	Running   bool         `json:"running" jsonschema:"the process still runs, for logs, wait and signal"`
}

type processOut struct {
	Process    string    `json:"process" jsonschema:"its id"`
	PID        int       `json:"pid"`
	Args       []string  `json:"args"`
	Started    time.Time `json:"started"`
	Background bool      `json:"background,omitempty"`
	Running    bool      `json:"running"`
	ExitCode   *int      `json:"exit_code,omitempty"`
	Reason     string    `json:"reason,omitempty"`
}

// maxArgs bounds the length of a command in a result.
const maxArgs = 1 << 10

func processes(ctx context.Context, b *atoll.Sandbox) ([]processOut, error) {
	all, err := b.Processes(ctx)
	out := []processOut{}
	for _, p := range all {
		one := processOut{Process: p.ID, PID: p.PID, Started: p.Started, Background: p.Background, Running: p.Running, Args: []string{}}
		room := maxArgs
		for _, arg := range p.Args {
			if len(arg) > room {
				one.Args = append(one.Args, strings.ToValidUTF8(arg[:room], "")+"…")
				break
			}
			room -= len(arg)
			one.Args = append(one.Args, strings.ToValidUTF8(arg, "\uFFFD"))
		}
		if p.Exit != nil {
			one.ExitCode, one.Reason = &p.Exit.Code, string(p.Exit.Reason)
		}
		out = append(out, one)
	}
	return out, err
}

// signals are those that a caller may name.
var signals = map[string]int{"": 15, "TERM": 15, "KILL": 9, "INT": 2, "HUP": 1, "USR1": 10, "USR2": 12}

func onProcess(ctx context.Context, c *call, in processArgs) (out processesOut, err error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return out, err
	}
	if in.Action != "list" {
		if err := process(in.Process); err != nil {
			return out, err
		}
	}
	switch in.Action {
	case "list":
		out.Processes, err = processes(ctx, b)
		return out, err
	case "logs":
		return logs(ctx, b, in.Process, in.TailLines)
	case "wait":
		return wait(ctx, b, in)
	case "signal":
		number, known := signals[strings.TrimPrefix(strings.ToUpper(in.Signal), "SIG")]
		if !known {
			return out, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "signal", Message: "is not one of TERM, KILL, INT, HUP, USR1 and USR2"}
		}
		if err := b.Kill(ctx, in.Process, number); err != nil {
			return out, err
		}
		exit, err := ended(ctx, b, in.Process)
		out.Running = exit == nil
		return out, err
	}
	return out, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "action", Message: "is not one of list, logs, wait and signal"}
}

// ended returns the description of a process.
func ended(ctx context.Context, b *atoll.Sandbox, id string) (exit *sandbox.Exit, err error) {
	all, err := b.Processes(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.ID == id {
			return p.Exit, nil
		}
	}
	return nil, &sandbox.Error{
		Code: sandbox.CodeNotFound, Subject: id, Message: "there is no such process",
		Hint: "call sandbox_process with the action list to see the ids",
	}
}

func logs(ctx context.Context, b *atoll.Sandbox, id string, tail int) (processesOut, error) {
	exit, err := ended(ctx, b, id)
	if err != nil {
		return processesOut{}, err
	}
	log, err := b.Logs(ctx, id, atoll.LogOptions{Tail: max(tail, 0)})
	if err != nil {
		return processesOut{}, err
	}
	defer log.Close()
	var streams [2]excerpt
	var dropped int64
	for {
		piece, err := log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return processesOut{}, err
		}
		dropped += piece.Dropped
		_, _ = streams[min(max(piece.Stream-1, 0), 1)].Write(piece.Data)
	}
	out := &execOut{Process: id}
	out.Stdout, out.StdoutBytes = streams[0].text()
	out.Stderr, out.StderrBytes = streams[1].text()
	out.Truncated = dropped > 0 || out.StdoutBytes > maxOutput || out.StderrBytes > maxOutput
	if exit != nil {
		out.ExitCode, out.Reason = &exit.Code, string(exit.Reason)
	}
	return processesOut{Output: out, Running: exit == nil}, nil
}

// wait waits for the end of a background command, not longer than asked, and
// returns its log.
func wait(ctx context.Context, b *atoll.Sandbox, in processArgs) (processesOut, error) {
	most, err := seconds(in.WaitSeconds, defaultTimeout, maxTimeout)
	if err != nil {
		return processesOut{}, err
	}
	exit, err := ended(ctx, b, in.Process)
	if err != nil {
		return processesOut{}, err
	}
	if exit == nil {
		if err := await(ctx, b, in.Process, most); err != nil {
			return processesOut{}, err
		}
	}
	return logs(ctx, b, in.Process, in.TailLines)
}

// await returns when a command has ended or the time is over.
func await(ctx context.Context, b *atoll.Sandbox, id string, most time.Duration) error {
	p, err := b.Reconnect(ctx, id)
	if err != nil {
		return err
	}
	defer p.Close()
	go func() { _, _ = io.Copy(io.Discard, p.Stdout()) }()
	go func() { _, _ = io.Copy(io.Discard, p.Stderr()) }()
	short, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if _, err := p.Wait(short); err != nil && (short.Err() == nil || ctx.Err() != nil) {
		return err
	}
	return nil
}
