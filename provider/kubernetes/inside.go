package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/provider/internal/wsexec"
	"github.com/atoll-run/atoll/sandbox"
)

// inside runs commands in one pod.
type inside struct {
	p       *Provider
	id      sandbox.ID
	sandbox string
}

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.id), Message: message}
}

// protocols are the WebSocket protocols of API servers, the newest first.
var protocols = []string{"v5.channel.k8s.io", "v4.channel.k8s.io"}

// The channels of a command.
const (
	stdin = iota
	stdout
	stderr
	exitStatus
)

// Start implements guestkit.Runner. Another pod may have got the name meanwhile,
// so the UID is checked before the command gets any input.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	name := split(in.sandbox).name
	if len(env) > 0 {
		argv = append([]string{"/bin/sh", "-c", `export ` + hosted.Quote(env) + `; exec "$@"`, "atoll"}, argv...)
	}
	query := url.Values{"container": {mainName}, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}, "command": argv}
	api := in.p.api
	address := strings.TrimSuffix(api.Base.String(), "/") + api.pods(name) + "/exec?" + query.Encode()
	var ws *websocket.Conn
	err := api.Patient(ctx, func() (err error) {
		ws, err = api.Dial(ctx, address, protocols...)
		return err
	})
	if err != nil {
		return nil, in.refused(ctx, err)
	}
	if _, err = api.get(ctx, in.sandbox); err != nil {
		_ = ws.CloseNow()
		return nil, in.refused(ctx, err)
	}
	if ws.Subprotocol() == "" {
		_ = ws.CloseNow()
		return nil, in.broken("the API server does not know the protocol for commands")
	}
	return wsexec.New(in.p.Open, &in.p.Conns, ws, wsexec.Protocol{
		Stdin: []byte{stdin}, Stdout: stdout, Stderr: stderr, Status: exitStatus, MaxInput: 32 << 10, Ended: in.ended,
		Lost: func() error { return in.broken("the connection to the pod was lost") },
	}), nil
}

// refused explains why a command was not started. Only a look at the pod says
// that it is gone.
func (in *inside) refused(ctx context.Context, err error) error {
	if err == hosted.ErrNone {
		_, err = in.p.Find(ctx, in.id)
		if err == nil {
			err = in.broken("another pod has its name")
		}
		return err
	}
	if b, lookErr := in.p.api.Get(ctx, in.id, in.sandbox); lookErr == nil {
		if unusable := in.p.Usable(b); unusable != nil {
			return unusable // it says how the pod has failed
		}
	}
	if code := rest.RefusalOf(err).Status; code == http.StatusNotFound || code == http.StatusBadRequest {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.id), Message: "the pod runs no command: " + err.Error(), Cause: err}
	}
	return err
}

// looking limits asking about a pod that did not run a command.
const looking = 10 * time.Second

// ended parses how a command ended.
func (in *inside) ended(text, stderr []byte) error {
	var s status
	if json.Unmarshal(text, &s) != nil {
		return in.broken("the API server's message is invalid")
	}
	if s.Status == "Success" {
		return &guestkit.Exit{Status: "exited", Stderr: stderr}
	}
	if s.Reason == "NonZeroExitCode" {
		for _, c := range s.Details.Causes {
			if code, err := strconv.Atoi(c.Message); err == nil && c.Reason == "ExitCode" {
				return &guestkit.Exit{Code: code, Status: "exited", Stderr: stderr}
			}
		}
	}
	// The API server accepts a command before it asks the node.
	ctx, cancel := context.WithTimeout(in.p.Open, looking)
	defer cancel()
	return in.refused(ctx, in.broken("the node does not run the command: "+in.p.api.Clip(s.Message)))
}

// Upload implements guestkit.Runner. A file that did not arrive completely, for
// example because the connection was lost, is not used.
func (in *inside) Upload(ctx context.Context, file string, guest *program.Program) error {
	body, err := guest.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	size, q := strconv.Itoa(len(text)), hosted.Quote([]string{file})
	script := "umask 022; mkdir -p " + hosted.Quote([]string{path.Dir(file)}) + " && t=" + q + ".$$ && head -c " + size + ` >"$t" && [ "$(wc -c <"$t")" -eq ` + size + ` ] && chmod 0755 "$t" && mv "$t" ` + q
	_, err = hosted.Script(ctx, in.Start, script, text)
	return err
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return hosted.Script(ctx, in.Start, script, nil)
}

// Wake implements hosted.Inside. Pods do not sleep.
func (in *inside) Wake(context.Context) error { return nil }

// Instance is a pod. A guest inside runs commands and accesses files. Its methods
// may be called concurrently.
type Instance struct {
	*hosted.Instance
	p *Provider
}

// memory prints the bytes that a pod uses which shares the kernel of its node.
const memory = `cat /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory/memory.usage_in_bytes 2>/dev/null | head -n 1`

// Usage implements driver.Meter. What a pod shows of its node's memory and disk is
// not its own.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	u, err := in.Instance.Usage(ctx)
	if err != nil {
		return u, err
	}
	u.Disk = -1
	if text, err := in.Inside.Run(ctx, memory); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
			u.Memory = n
		}
	}
	return u, nil
}
