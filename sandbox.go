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

// Sandbox is a handle on one sandbox. Dropping it does not end the sandbox. Its
// methods may be called concurrently.
type Sandbox struct {
	client *Client
	info   sandbox.Sandbox
	base   string // request path; empty: derived from the id
}

// ID returns the id, which never changes.
func (s *Sandbox) ID() sandbox.ID { return s.info.ID }

// Name returns the name, which never changes.
func (s *Sandbox) Name() string { return s.info.Name }

// Info returns the state of the sandbox when the handle was made. [Client.Get]
// returns a fresh one.
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

// Destroy ends the sandbox and deletes everything in it. A sandbox that is
// already gone is success.
func (s *Sandbox) Destroy(ctx context.Context) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path(""), nil, nil, nil)
}

// Wait blocks until the sandbox has ended, and returns why it ended.
func (s *Sandbox) Wait(ctx context.Context) (exit sandbox.Exit, err error) {
	return exit, s.client.conn.Call(ctx, http.MethodGet, s.path("/wait"), nil, nil, &exit)
}

// Processes lists the commands that were started in the sandbox, oldest first.
func (s *Sandbox) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	var out struct{ Processes []sandbox.ProcessInfo }
	return out.Processes, s.client.conn.Call(ctx, http.MethodGet, s.path("/processes"), nil, nil, &out)
}

// Kill sends a signal, by its Linux number, to the command with that id.
func (s *Sandbox) Kill(ctx context.Context, id string, sig int) error {
	return s.client.conn.Call(ctx, http.MethodPost, s.processPath(id, "/signal"), nil, map[string]int{"signal": sig}, nil)
}

// command is a sandbox.Command as JSON.
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
		return out, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "command", Message: "is not valid UTF-8"}
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

// Result is the exit and the output of a command.
type Result struct {
	Exit           sandbox.Exit
	Stdout, Stderr []byte
	// Truncated says that the command wrote more than RunOptions.OutputLimit to a
	// stream.
	Truncated bool
	// Hint says how to allow hosts, if the command failed and its output says that
	// it could not reach one.
	Hint string
}

// Network returns which hosts the sandbox may reach. The zero value says that it
// has no network.
func (s *Sandbox) Network(ctx context.Context) (n sandbox.Network, err error) {
	return n, s.client.conn.Call(ctx, http.MethodGet, s.path("/network"), nil, nil, &n)
}

// RunOptions are options of [Sandbox.Run]. The zero value is usable.
type RunOptions struct {
	Input       []byte // standard input
	OutputLimit int64  // bytes of each stream to keep, at most 16 MiB; zero: 1 MiB
}

// Run runs a command, waits for its end, and returns its output. A command that
// exits with a code other than 0 is not an error. The options may be left out.
// See [Sandbox.Exec] for streams and terminals.
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

// runCommand is the JSON of a command that Run waits for.
type runCommand struct {
	command
	Input       []byte `json:"inputBase64,omitempty"`
	OutputLimit int64  `json:"outputLimit,omitempty"`
}

// runnable returns the JSON of cmd, or CodeInvalid if cmd needs Exec.
func runnable(cmd *sandbox.Command, opts RunOptions) (runCommand, error) {
	if cmd.TTY != nil || cmd.Stdin || cmd.Background || cmd.Hold > 0 {
		return runCommand{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "process.run", Subject: "command", Message: "has options that only Exec supports"}
	}
	c, err := commandOf(cmd)
	return runCommand{c, opts.Input, opts.OutputLimit}, err
}

// runOutput is the JSON of a Result.
type runOutput struct {
	Exit           sandbox.Exit
	Stdout, Stderr output
	Hint           string
}

func (o *runOutput) result() (res Result, err error) {
	res = Result{Exit: o.Exit, Truncated: o.Stdout.Truncated || o.Stderr.Truncated, Hint: o.Hint}
	if res.Stdout, err = o.Stdout.bytes(); err != nil {
		return Result{}, err
	}
	res.Stderr, err = o.Stderr.bytes()
	return res, err
}

// output is the JSON of a captured stream.
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
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "process.run", Message: "unexpected answer from the daemon", Cause: err}
	}
	return data, nil
}

// LogOptions select a part of a command's log.
type LogOptions struct {
	Tail   int  // number of last lines; 0: everything that is kept
	Follow bool // wait for more output until the command ends
}

// Logs opens the log of a background command. The caller closes the reader; it
// also ends when ctx ends.
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

// LogReader reads a log. Next must not be called concurrently; Close may be
// called while Next waits.
type LogReader struct {
	ctx  context.Context
	body io.ReadCloser
	dec  *json.Decoder
}

// Next returns the next chunk, and io.EOF after the last.
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

// Close closes the reader. A waiting Next returns.
func (r *LogReader) Close() error { return r.body.Close() }

// lineError returns the error in a line of the form {"error":…}, which ends a
// stream of lines.
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
