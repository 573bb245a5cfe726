package desk

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

//go:embed ensure.sh
var ensureScript string

// VNCPort is where the VNC server of a desktop listens, on localhost.
const VNCPort = 5900

const ensureTime = 60 * time.Second

// The exit codes of the script, and what was being started.
var stages = map[int]string{10: "lock", 11: "xvfb", 12: "x11vnc"}

// without is its exit code if the image has no desktop.
const without = 20

// Ensure starts the display of a sandbox, its session and, with vnc, its VNC
// server, unless they run. Concurrent calls start each once.
func Ensure(ctx context.Context, sb Commands, want viewing.Screen, vnc bool) (out viewing.DesktopState, err error) {
	args := []string{"/bin/sh", "-c", ensureScript, "desktop"}
	for _, n := range []int{want.Width, want.Height, want.DPI} {
		args = append(args, strconv.Itoa(n))
	}
	if vnc {
		out.Port = VNCPort
	}
	args = append(args, strconv.Itoa(int(out.Port)))
	r, err := execute(ctx, sb, args, "", ensureTime, maxOtherOutput)
	if err != nil {
		return viewing.DesktopState{}, err
	}
	if r.exit.Reason == sandbox.ReasonExited && r.exit.Code == 0 {
		last := r.stdout[strings.LastIndexByte(strings.TrimSpace(string(r.stdout)), '\n')+1:]
		if n, _ := fmt.Sscanf(string(last), "desktop %dx%d", &out.Width, &out.Height); n == 2 {
			return out, nil
		}
	}
	if r.exit.Code == without {
		return viewing.DesktopState{}, missing(nil)
	}
	stage := stages[r.exit.Code]
	if stage == "" {
		stage = "desktop"
	}
	return viewing.DesktopState{}, &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: op, Subject: stage,
		Message: fmt.Sprintf("the desktop did not start, exit code %d: %s", r.exit.Code, strings.TrimSpace(strings.ToValidUTF8(string(r.stderr), ""))),
	}
}
