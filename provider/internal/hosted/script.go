package hosted

import (
	"context"
	"errors"
	"strings"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// maxOutput limits the output that is read from a script.
const maxOutput = 64 << 10

// Script runs a script with input as a program that start starts, and returns
// its output, which must be short. It implements Inside.Run for services whose
// programs have standard input.
func Script(ctx context.Context, start func(ctx context.Context, argv, env []string) (guestkit.Program, error), script string, input []byte) (string, error) {
	p, err := start(ctx, []string{"/bin/sh", "-c", script}, nil)
	if err != nil {
		return "", err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	if len(input) > 0 {
		if err := p.Send(ctx, input); err != nil {
			return "", err
		}
	}
	var out []byte
	for {
		data, err := p.Receive()
		var exit *guestkit.Exit
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.As(err, &exit) && exit.Code != 0:
			return "", &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the command failed: " + strings.ToValidUTF8(string(exit.Stderr), "\ufffd")}
		case exit != nil:
			return string(out), nil
		case err != nil:
			return "", err
		case len(out) < maxOutput:
			out = append(out, data...)
		}
	}
}
