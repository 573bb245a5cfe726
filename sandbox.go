package atoll

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandbox is a handle on one sandbox. Dropping it ends nothing. Its methods may
// be called concurrently.
type Sandbox struct {
	client *Client
	info   sandbox.Sandbox
	base   string // path of its resources; empty: by its id
}

// ID returns the id, which never changes.
func (s *Sandbox) ID() sandbox.ID { return s.info.ID }

// Name returns the name, which never changes.
func (s *Sandbox) Name() string { return s.info.Name }

// Info returns what was known when the handle was made; see [Client.Get].
func (s *Sandbox) Info() sandbox.Sandbox { return s.info }

func (s *Sandbox) path(rest string) string {
	if s.base != "" {
		return s.base + rest
	}
	return "/v1/sandboxes/" + url.PathEscape(string(s.info.ID)) + rest
}

func (s *Sandbox) processPath(id, rest string) string {
	return s.path("/processes/" + url.PathEscape(id) + rest)
}

// Destroy ends the sandbox with everything in it. What is gone is success.
func (s *Sandbox) Destroy(ctx context.Context) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path(""), nil, nil, nil)
}

// Wait blocks until the sandbox has ended, and says why.
func (s *Sandbox) Wait(ctx context.Context) (exit sandbox.Exit, err error) {
	return exit, s.client.conn.Call(ctx, http.MethodGet, s.path("/wait"), nil, nil, &exit)
}

// Processes lists the commands that were started, oldest first.
func (s *Sandbox) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	var out struct{ Processes []sandbox.ProcessInfo }
	return out.Processes, s.client.conn.Call(ctx, http.MethodGet, s.path("/processes"), nil, nil, &out)
}

// Kill signals a command by its id.
func (s *Sandbox) Kill(ctx context.Context, id string, sig int) error {
	return s.client.conn.Call(ctx, http.MethodPost, s.processPath(id, "/signal"), nil, map[string]int{"signal": sig}, nil)
}

// command is the form in which a command travels.
type command struct {
	Args       []string            `json:"args,omitempty"`
	ArgsBase64 [][]byte            `json:"argsBase64,omitempty"`
	Shell      string              `json:"shell,omitempty"`
	Env        map[string]string   `json:"env,omitempty"`
	Dir        string              `json:"dir,omitempty"`
	User       string              `json:"user,omitempty"`
	TTY        *sandbox.WindowSize `json:"tty,omitempty"`
	Stdin      bool                `json:"stdin,omitempty"`
	TimeoutMS  int64               `json:"timeoutMs,omitempty"`
	Background bool                `json:"background,omitempty"`
	HoldMS     int64               `json:"holdMs,omitempty"`
}

func commandOf(c *sandbox.Command) (out command, err error) {
	if err := c.Validate(); err != nil {
		return out, err
	}
	if err := utf8Map("env", c.Env); err != nil {
		return out, err
	}
	if !utf8.ValidString(c.Shell) || !utf8.ValidString(c.Dir) {
		return out, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "command", Message: "holds what is not UTF-8"}
	}
	out = command{
		Args: c.Args, Shell: c.Shell, Env: c.Env, Dir: c.Dir, User: c.User, TTY: c.TTY, Stdin: c.Stdin,
		TimeoutMS: client.Milliseconds(c.Timeout), Background: c.Background, HoldMS: client.Milliseconds(c.Hold),
	}
	for _, a := range c.Args {
		if utf8.ValidString(a) {
			continue
		}
		out.Args = nil
		for _, a := range c.Args {
			out.ArgsBase64 = append(out.ArgsBase64, []byte(a))
		}
		break
	}
	return out, nil
}

// Result is how a command ended and what it wrote.
type Result struct {
	Exit           sandbox.Exit
	Stdout, Stderr []byte
	// Truncated says that more was written than RunOptions.OutputLimit.
	Truncated bool
}

// RunOptions are the circumstances of a command. The zero value is usable.
type RunOptions struct {
	Input       []byte // what the command reads
	OutputLimit int64  // bytes of each stream to keep, at most 16 MiB; zero: 1 MiB
}

// Run runs a command, waits for its end, and returns what it wrote. A command
// that fails is no error. The options may be left out. See [Sandbox.Exec] for streams and terminals.
func (s *Sandbox) Run(ctx context.Context, cmd sandbox.Command, options ...RunOptions) (Result, error) {
	opts := optional(options)
	in, err := runnable(&cmd, opts)
	if err != nil {
		return Result{}, err
	}
	var out runOutput
	if err := s.client.conn.Call(ctx, http.MethodPost, s.path("/exec"), nil, in, &out); err != nil {
		return Result{}, err
	}
	return out.result()
}

// runCommand is a command to run to its end, as it travels.
type runCommand struct {
	command
	Input       []byte `json:"inputBase64,omitempty"`
	OutputLimit int64  `json:"outputLimit,omitempty"`
}

// runnable returns a command to run to its end.
func runnable(cmd *sandbox.Command, opts RunOptions) (runCommand, error) {
	if cmd.TTY != nil || cmd.Stdin || cmd.Background || cmd.Hold > 0 {
		return runCommand{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "process.run", Subject: "command", Message: "needs Exec and not Run"}
	}
	c, err := commandOf(cmd)
	return runCommand{c, opts.Input, opts.OutputLimit}, err
}

// runOutput is what became of a command, as it travels.
type runOutput struct {
	Exit           sandbox.Exit
	Stdout, Stderr output
}

func (o *runOutput) result() (res Result, err error) {
	res = Result{Exit: o.Exit, Truncated: o.Stdout.Truncated || o.Stderr.Truncated}
	if res.Stdout, err = o.Stdout.bytes(); err != nil {
		return Result{}, err
	}
	res.Stderr, err = o.Stderr.bytes()
	return res, err
}

// output is a captured stream as it travels.
type output struct {
	Data, Encoding string
	Truncated      bool
}

func (o *output) bytes() ([]byte, error) {
	if o.Encoding != "base64" {
		return []byte(o.Data), nil
	}
	data, err := base64.StdEncoding.DecodeString(o.Data)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "process.run", Message: "the answer makes no sense", Cause: err}
	}
	return data, nil
}

// LogOptions select a part of a command's log.
type LogOptions struct {
	Tail   int  // only the last so many lines; 0: all that is kept
	Follow bool // go on until the command ends
}

// Logs yields what a background command wrote, in order, and ends with the
// first error or with ctx.
func (s *Sandbox) Logs(ctx context.Context, id string, opts LogOptions) (*LogReader, error) {
	query := url.Values{}
	if opts.Tail != 0 {
		query.Set("tail", strconv.Itoa(opts.Tail))
	}
	if opts.Follow {
		query.Set("follow", "true")
	}
	r, err := s.client.conn.Request(ctx, http.MethodGet, s.processPath(id, "/logs"), query, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.conn.Do(r) //nolint:bodyclose // the reader closes it
	if err != nil {
		return nil, err
	}
	return &LogReader{ctx: ctx, body: resp.Body, dec: json.NewDecoder(resp.Body)}, nil
}

// LogReader reads a log. It has one user at a time; Close may be called by
// another.
type LogReader struct {
	ctx  context.Context
	body io.ReadCloser
	dec  *json.Decoder
}

// Next returns the next piece, io.EOF after the last.
func (r *LogReader) Next() (sandbox.LogChunk, error) {
	var line json.RawMessage
	if err := r.dec.Decode(&line); err != nil {
		if err == io.EOF {
			return sandbox.LogChunk{}, err
		}
		return sandbox.LogChunk{}, client.TransportError(r.ctx, err)
	}
	if err := lineError(line); err != nil {
		return sandbox.LogChunk{}, err
	}
	var c sandbox.LogChunk
	if err := json.Unmarshal(line, &c); err != nil {
		return sandbox.LogChunk{}, client.TransportError(r.ctx, err)
	}
	return c, nil
}

// Close ends the reading; a Next that waits returns.
func (r *LogReader) Close() error { return r.body.Close() }

// lineError returns the error that ended a stream of lines, if this is it.
func lineError(line []byte) error {
	if !bytes.HasPrefix(line, []byte(`{"error":`)) {
		return nil
	}
	var last struct{ Error json.RawMessage }
	if json.Unmarshal(line, &last) != nil {
		return nil
	}
	return client.ParseProblem(last.Error)
}
