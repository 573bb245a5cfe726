package atoll

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
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

// Handle returns a handle on the sandbox with that id. It makes no request: if
// there is no such sandbox, the first method call returns CodeNotFound. It is
// for programs that store ids.
func Handle(c *Client, id sandbox.ID) *Sandbox {
	return &Sandbox{client: c, info: sandbox.Sandbox{ID: id, Name: string(id)}}
}

// change sends a request that changes the sandbox, and returns the sandbox
// after the change.
func (s *Sandbox) change(ctx context.Context, method, rest string, in any) (info sandbox.Sandbox, err error) {
	return info, s.client.conn.Call(ctx, method, s.path(rest), nil, in, &info)
}

// Stop sends SIGTERM to the commands, waits for at most grace, and stops the
// sandbox. Its files are kept for Start. If the provider cannot keep them, Stop
// returns sandbox.CodeUnsupported and changes nothing.
func (s *Sandbox) Stop(ctx context.Context, grace time.Duration) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/stop", map[string]int64{"graceMs": client.Milliseconds(grace)})
}

// Start starts a stopped sandbox with the files it had. A running sandbox is
// success.
func (s *Sandbox) Start(ctx context.Context) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/start", nil)
}

// Pause pauses the sandbox in memory or on disk. Paused on disk, it has no
// memory and no processes. The time of its lifetime does not pass while it is
// paused. It must not be in use, and cannot be used before Resume.
func (s *Sandbox) Pause(ctx context.Context, kind sandbox.PauseKind) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/pause", map[string]bool{"toDisk": kind == sandbox.PauseDisk})
}

// Resume continues a paused sandbox. A running sandbox is success.
func (s *Sandbox) Resume(ctx context.Context) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPost, "/resume", nil)
}

// Update changes limits, labels, lifetime and idle policy of the sandbox. On an
// error it changes nothing.
func (s *Sandbox) Update(ctx context.Context, c sandbox.Change) (sandbox.Sandbox, error) {
	return s.change(ctx, http.MethodPatch, "", c)
}

// Fork makes copies of the sandbox, each with its own name and id. A copy has
// the files of the sandbox and, if the provider can do that, its processes with
// their memory. On an error there are no copies. With opts.IdempotencyKey, a
// repeated call returns the copies that the first call made.
func (s *Sandbox) Fork(ctx context.Context, opts durable.ForkRequest) ([]*Sandbox, error) {
	opts.Count = max(opts.Count, 1)
	text, err := json.Marshal(opts)
	if err != nil {
		return nil, err
	}
	var out struct{ Sandboxes []sandbox.Sandbox }
	if err := s.client.once(ctx, s.path("/fork"), text, opts.IdempotencyKey, nil, &out); err != nil {
		return nil, err
	}
	copies := make([]*Sandbox, len(out.Sandboxes))
	for i, info := range out.Sandboxes {
		copies[i] = &Sandbox{client: s.client, info: info}
	}
	return copies, nil
}

// Snapshot saves the state of the sandbox as a snapshot. The sandbox continues.
func (s *Sandbox) Snapshot(ctx context.Context, opts durable.SnapshotRequest) (snap durable.Snapshot, err error) {
	return snap, s.client.conn.Call(ctx, http.MethodPost, s.path("/snapshots"), nil, opts, &snap)
}

// GetSnapshot returns the snapshot of that name or id.
func (c *Client) GetSnapshot(ctx context.Context, ref string) (s durable.Snapshot, err error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return s, err
	}
	return s, c.conn.Call(ctx, http.MethodGet, "/v1/snapshots/"+ref, nil, nil, &s)
}

// Snapshots yields the snapshots that have all of the labels, newest first, and
// ends with the first error.
func (c *Client) Snapshots(ctx context.Context, labels map[string]string) iter.Seq2[durable.Snapshot, error] {
	return func(yield func(durable.Snapshot, error) bool) {
		query := url.Values{"limit": {strconv.Itoa(snapshotPage)}}
		for k, v := range labels {
			query.Add("label", k+"="+v)
		}
		for {
			var page struct {
				Snapshots []durable.Snapshot
				Next      string
			}
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/snapshots", query, nil, &page); err != nil {
				yield(durable.Snapshot{}, err)
				return
			}
			for _, s := range page.Snapshots {
				if !yield(s, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

const snapshotPage = 200

// RemoveSnapshot removes the snapshot of that name or id. Sandboxes made from
// it are not affected.
func (c *Client) RemoveSnapshot(ctx context.Context, ref string) error {
	if err := sandbox.ValidateName(ref); err != nil {
		return err
	}
	return c.conn.Call(ctx, http.MethodDelete, "/v1/snapshots/"+ref, nil, nil, nil)
}

// ExportSnapshot writes a snapshot as a tar stream, for ImportSnapshot of another
// daemon with the same provider. It may contain memory, and with it secrets.
func (c *Client) ExportSnapshot(ctx context.Context, ref string, w io.Writer) error {
	if err := sandbox.ValidateName(ref); err != nil {
		return err
	}
	r, err := c.conn.Request(ctx, http.MethodGet, "/v1/snapshots/"+ref+"/archive", nil, nil)
	if err != nil {
		return err
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return pour(ctx, w, resp.Body)
}

// ImportSnapshot stores a stream of ExportSnapshot under a new name. Its memory
// is trusted: only import what a daemon wrote. It needs the owner of the machine,
// or a key of the tenant default.
func (c *Client) ImportSnapshot(ctx context.Context, name string, labels map[string]string, r io.Reader) (s durable.Snapshot, err error) {
	if err := sandbox.ValidateName(name); err != nil {
		return s, err
	}
	query := url.Values{}
	for k, v := range labels {
		query.Add("label", k+"="+v)
	}
	source := &watched{r: r}
	req, err := c.conn.Request(ctx, http.MethodPut, "/v1/snapshots/"+name+"/archive", query, source)
	if err != nil {
		return s, err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	err = c.conn.Receive(req, &s)
	if failed := source.failure(); err != nil && failed != nil {
		return s, failed
	}
	return s, err
}

// ImportImage stores an image on the daemon's machine, under the digest of its
// content. Only daemons write the archive: one sends its nodes the images that no
// registry has. It needs the owner of the machine, or a key of the tenant default.
func (c *Client) ImportImage(ctx context.Context, digest string, r io.Reader) error {
	source := &watched{r: r}
	req, err := c.conn.Request(ctx, http.MethodPut, "/v1/images/"+url.PathEscape(digest)+"/archive", nil, source)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	err = c.conn.Receive(req, nil)
	if failed := source.failure(); err != nil && failed != nil {
		return failed
	}
	return err
}

// PruneSnapshots removes the snapshots with all of the labels from which no
// living sandbox was made, and returns them.
func (c *Client) PruneSnapshots(ctx context.Context, labels map[string]string) ([]durable.Snapshot, error) {
	var out struct{ Snapshots []durable.Snapshot }
	return out.Snapshots, c.conn.Call(ctx, http.MethodPost, "/v1/snapshots/prune", nil, map[string]any{"labels": labels}, &out)
}

// CreateProfile stores a profile under its name.
func (c *Client) CreateProfile(ctx context.Context, p sandbox.Profile) (out durable.StoredProfile, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/profiles", nil, p, &out)
}

// ApplyProfile stores a new version of the profile of that name, or its first,
// and applies it to the sandboxes that use it. If ifVersion is not 0 and the
// stored profile has another version, it is CodeConflict.
func (c *Client) ApplyProfile(ctx context.Context, p sandbox.Profile, ifVersion int64) (out durable.StoredProfile, err error) {
	query := url.Values{}
	if ifVersion != 0 {
		query.Set("ifVersion", strconv.FormatInt(ifVersion, 10))
	}
	return out, c.profile(ctx, http.MethodPut, p.Name, "", query, p, &out)
}

// Profile returns the given version of a profile. Version 0 is the newest.
func (c *Client) Profile(ctx context.Context, name string, version int64) (out durable.StoredProfile, err error) {
	query := url.Values{}
	if version != 0 {
		query.Set("version", strconv.FormatInt(version, 10))
	}
	return out, c.profile(ctx, http.MethodGet, name, "", query, nil, &out)
}

// Profiles lists the stored profiles by name.
func (c *Client) Profiles(ctx context.Context) ([]durable.StoredProfile, error) {
	var out struct{ Profiles []durable.StoredProfile }
	return out.Profiles, c.conn.Call(ctx, http.MethodGet, "/v1/profiles", nil, nil, &out)
}

// RemoveProfile removes a profile. A profile that a sandbox uses is
// CodeConflict.
func (c *Client) RemoveProfile(ctx context.Context, name string) error {
	return c.profile(ctx, http.MethodDelete, name, "", nil, nil, nil)
}

// profile makes a request about a profile. It checks the name, because an
// invalid one could address another resource.
func (c *Client) profile(ctx context.Context, method, name, rest string, query url.Values, in, out any) error {
	if err := sandbox.ValidateName(name); err != nil {
		return err
	}
	return c.conn.Call(ctx, method, "/v1/profiles/"+name+rest, query, in, out)
}

// TestProfile tells whether a stored profile would allow a request, and why. It
// sends no request to the target. target is a URL; the scheme tcp stands for a
// bare TCP connection.
func (c *Client) TestProfile(ctx context.Context, name, method, target string) (out operator.Explanation, err error) {
	in := map[string]string{"method": method, "url": target}
	return out, c.profile(ctx, http.MethodPost, name, "/test", nil, in, &out)
}

// CreateSecret stores a secret.
func (c *Client) CreateSecret(ctx context.Context, s durable.NewSecret) (out durable.StoredSecret, err error) {
	return out, c.conn.Call(ctx, http.MethodPost, "/v1/secrets", nil, s, &out)
}

// RotateSecret gives a secret a new value, which is used from the next request
// on. A secret that has a Source is read from it again; value must then be
// empty.
func (c *Client) RotateSecret(ctx context.Context, name string, value []byte) (out durable.StoredSecret, err error) {
	if err := sandbox.ValidateSecretName(name); err != nil {
		return out, err
	}
	return out, c.conn.Call(ctx, http.MethodPut, "/v1/secrets/"+name+"/value", nil, durable.SecretValue{Value: value}, &out)
}

// Secrets lists the secrets by name, without their values.
func (c *Client) Secrets(ctx context.Context) ([]durable.StoredSecret, error) {
	var out struct{ Secrets []durable.StoredSecret }
	return out.Secrets, c.conn.Call(ctx, http.MethodGet, "/v1/secrets", nil, nil, &out)
}

// RemoveSecret removes a secret. A secret that a sandbox or a profile uses is
// CodeConflict, unless force is set; they then continue without it.
func (c *Client) RemoveSecret(ctx context.Context, name string, force bool) error {
	if err := sandbox.ValidateSecretName(name); err != nil {
		return err
	}
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	return c.conn.Call(ctx, http.MethodDelete, "/v1/secrets/"+name, query, nil, nil)
}

// Dial connects to a TCP port inside the sandbox, from the sandbox's own
// loopback interface. So it also reaches servers that listen only on localhost.
// The context bounds the dialling only. A port on which no server listens is
// CodeUnavailable.
//
// The caller closes the connection. It has a method CloseWrite. Unlike with
// other connections, a deadline that passes closes it.
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	name := strconv.Itoa(int(port))
	ws, err := s.client.conn.WebSocket(ctx, s.path("/ports/"+name))
	if err != nil {
		return nil, err
	}
	return stream.NewTunnel(ws, s.Name()+":"+name), nil
}

// Publish makes the daemon listen on a port of its machine and forward
// connections to a port of the sandbox, as long as the sandbox exists. It
// returns p with the host port. A host port that is in use is CodeConflict.
// Only the owner of the machine may publish.
func (s *Sandbox) Publish(ctx context.Context, p sandbox.PublishedPort) (out sandbox.PublishedPort, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPost, s.path("/published-ports"), nil, p, &out)
}

// Unpublish makes the daemon stop listening on a host port for the sandbox, on
// every address.
func (s *Sandbox) Unpublish(ctx context.Context, hostPort uint16) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path("/published-ports/"+strconv.Itoa(int(hostPort))), nil, nil, nil)
}

// PublishedPorts returns the ports of the daemon's machine that are forwarded
// to sandboxes.
func (c *Client) PublishedPorts(ctx context.Context) ([]sandbox.Publication, error) {
	var out struct{ Ports []sandbox.Publication }
	err := c.conn.Call(ctx, http.MethodGet, "/v1/published-ports", nil, nil, &out)
	return out.Ports, err
}

// Preview asks the provider of the sandbox for a URL of an HTTP server inside.
// Requests to that URL do not pass through the daemon. Unless req.Public is
// set, they need the returned token in the returned header. If the port has a
// URL already, it is kept and gets a new token. A provider without such URLs is
// CodeUnsupported; see [Sandbox.PortURL] for the daemon's.
func (s *Sandbox) Preview(ctx context.Context, req sandbox.PreviewRequest) (p sandbox.Preview, err error) {
	return p, s.client.conn.Call(ctx, http.MethodPost, s.path("/previews"), nil, req, &p)
}

// Unpreview removes the provider's URL of a port. A port without one is
// success.
func (s *Sandbox) Unpreview(ctx context.Context, port uint16) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path("/previews/"+strconv.Itoa(int(port))), nil, nil, nil)
}

// Previews returns the ports that have a URL of the provider, without tokens.
func (s *Sandbox) Previews(ctx context.Context) ([]sandbox.Preview, error) {
	var out struct{ Previews []sandbox.Preview }
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/previews"), nil, nil, &out)
	return out.Previews, err
}

// PortTokenOptions are options of [Sandbox.PortToken]. The zero value is
// usable.
type PortTokenOptions struct {
	Ports   []uint16      // empty: all ports
	Expires time.Duration // from now; zero: a day
}

// TokenHeader is the header in which requests to a PortURL carry a token.
const TokenHeader = "Atoll-Token"

// PortToken makes a token for ports of the sandbox. It cannot be retrieved
// again.
func (s *Sandbox) PortToken(ctx context.Context, opts PortTokenOptions) (t sandbox.PortToken, err error) {
	in := map[string]any{"expiresMs": client.Milliseconds(opts.Expires)}
	if len(opts.Ports) > 0 {
		in["ports"] = opts.Ports
	}
	return t, s.client.conn.Call(ctx, http.MethodPost, s.path("/port-tokens"), nil, in, &t)
}

// PortURL returns the daemon's URL of an HTTP server on a port inside. Requests
// need a token from [Sandbox.PortToken] in [TokenHeader]. The Client must reach
// the daemon by a host name or over TCP on a loopback address; otherwise
// PortURL returns CodeUnsupported.
func (s *Sandbox) PortURL(port uint16) (string, error) {
	u, err := url.Parse(s.client.conn.Base)
	host := ""
	if err == nil && u.Host != localHost {
		host = u.Hostname()
	}
	if ip := net.ParseIP(host); ip != nil {
		if host = ""; ip.IsLoopback() {
			host = "localhost"
		}
	}
	label := strconv.Itoa(int(port)) + "-" + string(s.info.ID)
	if host == "" || port == 0 || len(label) > 63 {
		return "", &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "port.url", Subject: strconv.Itoa(int(port)), Message: "there is no host name for this port",
			Hint: "reach the daemon over TCP by a name that it was given with --host, or forward the port with: atoll port forward",
		}
	}
	host = label + "." + host
	if p := u.Port(); p != "" {
		host = net.JoinHostPort(host, p)
	}
	return u.Scheme + "://" + host, nil
}

// Usage returns the resources that the sandbox uses now.
func (s *Sandbox) Usage(ctx context.Context) (sandbox.Usage, error) {
	var out struct {
		CPUMS              int64 `json:"cpuMs"`
		Memory, Disk, PIDs int64
		Sampled            time.Time
	}
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/usage"), nil, nil, &out)
	u := sandbox.Usage{CPU: time.Duration(out.CPUMS) * time.Millisecond, Memory: out.Memory, Disk: out.Disk, PIDs: out.PIDs, Sampled: out.Sampled}
	if out.CPUMS < 0 {
		u.CPU = -1
	}
	return u, err
}
