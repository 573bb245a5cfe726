// Command testcount runs a `go test -json` command, shows what a person wants
// to read of it, and ends with one line of counts:
//
//	312 passed, 0 failed, 2 skipped
//
// A count is of tests that have no subtests, so that a table of ten cases
// counts ten and not eleven. The exit status is 1 when anything failed, when
// the command itself failed, and when no test ran at all: a run that tested
// nothing is not a success.
//
//	testcount go test -race -json ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// grace is how long the tests may take to clean up after an interrupt.
const grace = 30 * time.Second

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testcount go test -json [flags] packages")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
	}
	if !ok {
		os.Exit(1)
	}
}

// run executes argv and reports its results. It is true only when every test
// passed, at least one ran, and the command was content.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) (bool, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	rep := newReport(stdout)
	readErr := rep.read(pipe)
	waitErr := cmd.Wait()
	ok := rep.finish()
	var exit *exec.ExitError
	switch {
	case readErr != nil:
		return false, readErr
	case waitErr != nil && !errors.As(waitErr, &exit):
		return false, waitErr
	case waitErr != nil && ok:
		return false, fmt.Errorf("no test failed, and yet: %s: %w", argv[0], waitErr)
	}
	return ok && waitErr == nil, nil
}
