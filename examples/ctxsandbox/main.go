// Command ctxsandbox is an agent's code on ctx.sandbox: it keeps notes in a
// workspace, works on them in one sandbox, and finds them again in another. It runs
// unchanged on every daemon and provider: ATOLL_HOST and ATOLL_KEY say which daemon.
//
//	go run ./examples/ctxsandbox
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/ctxsandbox"
)

func main() {
	client, err := atoll.New(atoll.Options{})
	if err == nil {
		err = errors.Join(run(context.Background(), ctxsandbox.New(client), os.Stdout), client.Close())
	}
	if errors.Is(err, ctxsandbox.Unavailable) {
		fmt.Fprintln(os.Stderr, "start a daemon first: atoll up --detach")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const timeout = time.Minute

// run is what the agent does.
func run(ctx context.Context, sandboxes *ctxsandbox.SandboxClient, out io.Writer) (err error) {
	labels := map[string]string{"team": "docs", "run": "7"}
	sandbox, err := sandboxes.Create(ctx, ctxsandbox.SandboxSpec{Labels: labels})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sandbox.Kill(ctx)) }()

	res, err := sandbox.Exec(ctx, "printf", []string{"%s\n", "one argument with spaces"}, timeout)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "exec: %d %q\n", res.ExitCode, res.Output())

	res, err = sandbox.Shell(ctx, "echo to a log; exit 3", timeout)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "shell: %d %t %q\n", res.ExitCode, res.OK(), res.Output())

	logs, err := sandbox.Logs(ctx, 1)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "logs: %q\n", logs)

	for found, err := range sandboxes.List(ctx, labels) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "list: %t\n", found.ID() == sandbox.ID())
	}

	res, err = sandboxes.RunShell(ctx, "echo $((6*7))", timeout, ctxsandbox.SandboxSpec{Labels: labels})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "run shell: %q\n", res.Output())
	return nil
}
