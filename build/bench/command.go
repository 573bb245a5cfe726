package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// program is a command line with its additional environment.
type program struct {
	args []string
	env  []string // added to this process's
}

// with returns the program with more arguments.
func (p program) with(args ...string) program {
	return program{append(append([]string(nil), p.args...), args...), p.env}
}

func (p program) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// output runs the program and returns its output without the last newline.
func (p program) output(ctx context.Context) (string, error) {
	cmd := p.command(ctx)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), p.explain(err, &errs)
}

// run runs the program.
func (p program) run(ctx context.Context) error {
	_, err := p.output(ctx)
	return err
}

// time measures a run of the program and, if it writes something, the time to
// its first output.
func (p program) time(ctx context.Context) (timing, error) {
	var t timing
	cmd := p.command(ctx)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return t, err
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err == nil {
		t.first = time.Since(began)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		return t, errors.Join(err, cmd.Wait())
	}
	err = cmd.Wait()
	t.whole = time.Since(began)
	return t, p.explain(err, &errs)
}

// as returns the program as a contestant.
func (p program) as(name string) contestant { return contestant{name, p.time} }

// explain adds the program's name and its error output to an error.
func (p program) explain(err error, said *bytes.Buffer) error {
	if err == nil {
		return nil
	}
	text, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
	return fmt.Errorf("%s: %w: %s", p.args[0], err, text)
}
