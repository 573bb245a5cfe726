package e2bapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// processAPI serves the process service.
type processAPI struct {
	*guest
	commands commands
}

// register registers the procedures of the process service.
func (h *processAPI) register(rpc procedures) {
	unary(rpc, envd.ProcessList, ops.ProcessList, h.listProcesses)
	unary(rpc, envd.ProcessUpdate, ops.ProcessResize, h.updateProcess)
	unary(rpc, envd.ProcessSendInput, ops.ProcessReconnect, h.sendInput)
	unary(rpc, envd.ProcessSendSignal, ops.ProcessSignal, h.sendSignal)
	unary(rpc, envd.ProcessCloseStdin, ops.ProcessReconnect, h.closeStdin)
	serverStream(rpc, envd.ProcessStart, ops.ProcessExec, h.start)
	serverStream(rpc, envd.ProcessConnect, ops.ProcessReconnect, h.connectProcess)
	rpc.handle(envd.ProcessStreamInput, inside(ops.ProcessReconnect), connect.NewClientStreamHandler(envd.ProcessStreamInput, h.streamInput, rpcOptions()...))
}

type processStream = connect.ServerStream[envd.ProcessResponse]

// start runs a command and follows it.
func (h *processAPI) start(ctx context.Context, c *call, req *envd.StartRequest, out *processStream) error {
	cmd, err := h.command(ctx, c, req)
	if err != nil {
		return err
	}
	p, err := c.sandbox.Exec(ctx, *cmd)
	if err != nil {
		return err
	}
	if p.Info().PID == 0 {
		defer p.Close()
		exit, err := p.Wait(ctx)
		if err == nil {
			err = invalid("", "error starting process '%s': %s", clip(cmd.Args[0]), exit.Detail)
		}
		return err
	}
	run, f := h.commands.add(c.sandbox.ID(), p, req)
	return run.follow(ctx, c.header, f, out)
}

// command returns the command of a request.
func (h *processAPI) command(ctx context.Context, c *call, req *envd.StartRequest) (*sandbox.Command, error) {
	config := req.Process
	if config == nil || config.Cmd == "" {
		return nil, invalid("process", "no command given")
	}
	cmd := &sandbox.Command{
		Args: append([]string{config.Cmd}, config.Args...), User: c.user.name, Dir: c.workdir(ctx),
		Stdin: req.Stdin == nil || *req.Stdin, Background: true,
	}
	t := targetOf(ctx)
	cmd.Env = map[string]string{
		"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": publicID(t.ID), "E2B_TEMPLATE_ID": templateName(&t.Sandbox),
		"SHELL": c.user.shell, // as a login has it; bash would look it up, in 19 system calls
	}
	maps.Copy(cmd.Env, config.Envs)
	if req.PTY != nil {
		size, err := windowSize(req.PTY)
		if err != nil {
			return nil, err
		}
		cmd.TTY, cmd.Stdin = size, true
	}
	if at, ok := ctx.Deadline(); ok {
		cmd.Timeout = max(time.Until(at), time.Millisecond)
	}
	if config.Cwd == nil || *config.Cwd == "" {
		return cmd, nil
	}
	dir, err := c.user.path(*config.Cwd)
	if err != nil {
		return nil, err
	}
	if _, err := c.sandbox.Files().Stat(t.own, dir); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, invalid("", "cwd '%s' does not exist", clip(dir))
	}
	cmd.Dir = dir
	return cmd, nil
}

// workdir returns the default working directory of commands: the template's,
// for every user.
func (c *call) workdir(ctx context.Context) string {
	return cmp.Or(defaultsOf(&targetOf(ctx).Sandbox).dir, c.user.home)
}

func windowSize(pty *envd.PTY) (*sandbox.WindowSize, error) {
	if pty == nil || pty.Size == nil {
		return nil, invalid("pty", "no size given")
	}
	if pty.Size.Cols > 1<<16-1 || pty.Size.Rows > 1<<16-1 {
		return nil, invalid("pty", "%dx%d is not a window size", pty.Size.Cols, pty.Size.Rows)
	}
	return &sandbox.WindowSize{Cols: uint16(pty.Size.Cols), Rows: uint16(pty.Size.Rows)}, nil
}

func (h *processAPI) connectProcess(ctx context.Context, c *call, req *envd.ConnectRequest, out *processStream) error {
	run, err := h.commands.find(ctx, c.sandbox, req.Process)
	if err != nil {
		return err
	}
	return run.follow(ctx, c.header, run.join(), out)
}

func (h *processAPI) listProcesses(ctx context.Context, c *call, _ *envd.Empty) (*envd.ListResponse, error) {
	all, err := c.sandbox.Processes(ctx)
	if err != nil {
		return nil, err
	}
	res := &envd.ListResponse{}
	for _, info := range all {
		if !info.Running || !info.Background || len(info.Args) == 0 {
			continue
		}
		p := &envd.ProcessInfo{PID: uint32(info.PID), Config: &envd.ProcessConfig{Cmd: info.Args[0], Args: info.Args[1:]}}
		if run := h.commands.get(c.sandbox.ID(), info.ID); run != nil {
			p.Config, p.Tag = run.config, run.tag
		}
		res.Processes = append(res.Processes, p)
	}
	return res, nil
}

func (h *processAPI) updateProcess(ctx context.Context, c *call, req *envd.UpdateRequest) (*envd.Empty, error) {
	run, err := h.commands.find(ctx, c.sandbox, req.Process)
	if err != nil || req.PTY == nil {
		return &envd.Empty{}, err
	}
	size, err := windowSize(req.PTY)
	if err != nil {
		return nil, err
	}
	return &envd.Empty{}, run.process.Resize(ctx, *size)
}

func (h *processAPI) sendInput(ctx context.Context, c *call, req *envd.SendInputRequest) (*envd.Empty, error) {
	run, err := h.commands.find(ctx, c.sandbox, req.Process)
	if err != nil {
		return nil, err
	}
	return &envd.Empty{}, run.input(req.Input)
}

// streamInput writes one piece of input after another.
func (h *processAPI) streamInput(ctx context.Context, in *connect.ClientStream[envd.StreamInputRequest]) (*connect.Response[envd.Empty], error) {
	c, err := h.call(ctx, envd.ProcessStreamInput, inside(ops.ProcessReconnect), in.RequestHeader())
	if err != nil {
		return nil, rpcError(err)
	}
	var run *command
	for in.Receive() {
		m := in.Msg()
		switch {
		case m.Start != nil:
			run, err = h.commands.find(ctx, c.sandbox, m.Start.Process)
		case m.Data != nil && run == nil:
			err = invalid("process", "input comes before the message that says whose it is")
		case m.Data != nil:
			err = run.input(m.Data.Input)
		}
		if err != nil {
			return nil, rpcError(err)
		}
	}
	return connect.NewResponse(&envd.Empty{}), in.Err()
}

func (h *processAPI) sendSignal(ctx context.Context, c *call, req *envd.SendSignalRequest) (*envd.Empty, error) {
	if req.Signal != envd.SIGKILL && req.Signal != envd.SIGTERM {
		return nil, invalid("signal", "is neither SIGKILL nor SIGTERM")
	}
	run, err := h.commands.find(ctx, c.sandbox, req.Process)
	if err != nil {
		return nil, err
	}
	run.endNow()
	if err := run.process.Signal(ctx, int(req.Signal)); err != nil {
		return nil, err
	}
	if req.Signal == envd.SIGKILL { // after it, the next request must not find the command
		select {
		case <-run.ended:
		case <-time.After(killTime):
		case <-ctx.Done():
		}
	}
	return &envd.Empty{}, nil
}

// killTime is how long a request to kill a process waits for its end.
const killTime = time.Second

func (h *processAPI) closeStdin(ctx context.Context, c *call, req *envd.CloseStdinRequest) (*envd.Empty, error) {
	run, err := h.commands.find(ctx, c.sandbox, req.Process)
	if err != nil {
		return nil, err
	}
	if run.process.Info().TTY {
		return nil, connect.NewError(connect.CodeUnknown, errors.New("the input of a terminal cannot be closed; send Ctrl+D"))
	}
	run.closeInput()
	return &envd.Empty{}, nil
}

// keepalive is how long a stream may be silent.
const keepalive = 90 * time.Second

func keepaliveOf(header http.Header) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(header.Get("Keepalive-Ping-Interval")))
	if err != nil || n < 1 || n > 3600 {
		return keepalive
	}
	return time.Duration(n) * time.Second
}

// maxOutput limits the output of our own commands.
const maxOutput = 1 << 20

// output runs one of our own commands and returns its output.
func output(ctx context.Context, sb Sandbox, cmd sandbox.Command) (string, error) {
	p, err := sb.Exec(ctx, cmd)
	if err != nil {
		return "", err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	text, err := io.ReadAll(io.LimitReader(p.Stdout(), maxOutput))
	if err != nil {
		return "", err
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: cmd.Args[0], Message: "could not be run in the sandbox: " + exit.Detail}
	}
	return string(text), err
}
