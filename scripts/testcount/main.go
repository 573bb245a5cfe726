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
//	testcount [-again N] go test -race -json ./...
//
// With -again, the tests that failed are run once more by themselves if they are
// at most N, so that one test that lost against a busy machine does not hide what
// four thousand others say. What passes then is counted and named as such: it is
// a defect to be mended. A race, a panic, a test that did not finish and a build
// that failed have no second attempt. Flags of go test must be written
// -name=value, to be told from packages.
package main

import (
	"context"
	"errors"
	"flag"
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
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: testcount [-again N] go test -json [flags] packages")
	}
	again := flag.Int("again", 0, "how many failed tests may have a second attempt")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, flag.Args(), *again, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
	}
	if !ok {
		os.Exit(1)
	}
}

// run executes argv and reports its results. It is true only when every test
// passed, at least one ran, and the command was content.
func run(ctx context.Context, argv []string, again int, stdout, stderr io.Writer) (bool, error) {
	rep := newReport(stdout)
	cmdErr, err := rep.follow(ctx, argv, stderr)
	if err == nil && ctx.Err() == nil && rep.mayRepeat(again) {
		err = rep.repeat(ctx, argv, stderr)
	}
	ok := rep.finish()
	switch {
	case err != nil:
		return false, err
	case cmdErr != nil && ok && len(rep.flaky) == 0:
		return false, fmt.Errorf("no test failed, and yet: %s: %w", argv[0], cmdErr)
	}
	return ok, nil
}

// follow executes argv and reads its events. cmdErr tells that it ended with
// another status than 0.
func (r *report) follow(ctx context.Context, argv []string, stderr io.Writer) (cmdErr, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	readErr := r.read(pipe)
	waitErr := cmd.Wait()
	r.close()
	var exit *exec.ExitError
	switch {
	case readErr != nil:
		return nil, readErr
	case waitErr != nil && !errors.As(waitErr, &exit):
		return nil, waitErr
	}
	return waitErr, nil
}
