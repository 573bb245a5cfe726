// Package guestkit makes a driver.Instance from any machine that can run
// programs: it uploads Atoll's guest, starts it, and forwards all calls inside
// the sandbox to it. This way commands, files, archives, ports and watching
// satisfy the driver contract, independent of the service's own calls.
//
// A driver supplies a [Machine]. The driver itself implements Create, Attach,
// List, Destroy and lifetimes.
package guestkit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/sandbox"
)

// Runner runs programs as root in one machine. Its methods may be called
// concurrently, and return *sandbox.Error.
type Runner interface {
	// Start starts a program and connects to its input and output. The context
	// limits only the start.
	Start(ctx context.Context, argv, env []string) (Program, error)
	// Upload writes a guest to a file, making the directories above it. The
	// file is not executed before Upload has returned.
	Upload(ctx context.Context, path string, guest *program.Program) error
}

// Program is a program that runs in a machine. Receive and Send are each called
// by one goroutine at a time.
type Program interface {
	// Receive waits for output. Nothing without an error is a sign of life. When
	// the program has ended, it returns an *Exit, and before that everything that
	// was written. The bytes are the caller's until the next call.
	Receive() ([]byte, error)
	// Send writes to the program's input and returns when that has taken all.
	Send(ctx context.Context, data []byte) error
	// Close disconnects from the program, which may continue, and makes Receive
	// return. Send still works.
	Close() error
}

// Exit is the end of a program.
type Exit struct {
	Code   int
	Status string // in the service's words
	Stderr []byte // perhaps cut
}

func (e *Exit) Error() string { return "the program has ended: " + e.Status }

// Status is the state of a sandbox according to its service.
type Status struct {
	State sandbox.State // Running or Paused
	Ends  time.Time     // the end of its lifetime; zero: not known
}

// Machine is a sandbox as its service knows it, in which programs can be run.
type Machine interface {
	Runner
	Service
}

// Service reports about a sandbox.
type Service interface {
	// Status asks the service. CodeGone means that the service itself reports that
	// the sandbox does not exist. Other errors say nothing about the sandbox.
	Status(ctx context.Context) (Status, error)
	// Answers reports whether the machine itself answers. False says nothing.
	Answers(ctx context.Context) bool
	// Cause says how the sandbox ended, after Status was CodeGone. The time is
	// the last known end of its lifetime.
	Cause(ends time.Time) sandbox.Exit
}

// Kit connects with guests.
type Kit struct {
	// Guest returns the guest for an architecture, as a GOARCH value.
	// CodeUnsupported means that there is none.
	Guest func(arch string) (*program.Program, error)
}

// The architectures of guests, and how the script gets the paths of theirs.
var architectures = []string{"amd64", "arm64"}

// script starts the guest for the machine's architecture. Its arguments are the
// path of each guest, empty for a missing one.
const script = `case "$(uname -m)" in x86_64|amd64) p=$1 ;; aarch64|arm64) p=$2 ;; *) p= ;; esac
[ -n "$p" ] || { uname -m >&2; exit 78; }
[ -z "$3" ] || chmod 0755 "$p"
[ -x "$p" ] || { uname -m >&2; exit 77; }
exec "$p" join`

// The exit statuses of the script.
const (
	exitMissing = 77 // the guest is not there
	exitForeign = 78 // no guest for the machine's architecture
)

// Dial connects with the guest in a machine, which is put there if it is not.
func (k *Kit) Dial(ctx context.Context, r Runner, opts guest.Options) (*guest.Client, error) {
	guests, paths, err := k.guests()
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "guest.dial", Message: "the guest's program cannot be read", Cause: err}
	}
	client, err := join(ctx, r, paths, opts, false)
	var exit *Exit
	if !errors.As(err, &exit) {
		return client, err
	}
	arch := goArch(strings.TrimSpace(string(exit.Stderr)))
	switch program := guests[arch]; {
	case exit.Code == exitForeign || exit.Code == exitMissing && program == nil:
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "guest.dial", Subject: "linux/" + arch, Message: "this atoll has no guest for the machine's architecture",
			Hint: "build atoll with make build",
		}
	case exit.Code != exitMissing:
		return nil, unjoined(exit)
	default:
		if err := r.Upload(ctx, pathOf(program), program); err != nil {
			return nil, err
		}
	}
	client, err = join(ctx, r, paths, opts, true)
	if errors.As(err, &exit) {
		return nil, unjoined(exit)
	}
	return client, err
}

// guests returns the guests that there are, and their paths for the script.
func (k *Kit) guests() (map[string]*program.Program, []string, error) {
	all, paths := map[string]*program.Program{}, make([]string, len(architectures))
	for i, arch := range architectures {
		p, err := k.Guest(arch)
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		all[arch], paths[i] = p, pathOf(p)
	}
	return all, paths, nil
}

// pathOf returns the path of a guest in a machine. Each build has its own path.
func pathOf(p *program.Program) string { return guest.NestedPrefix + p.Digest()[:16] }

// goArch translates what uname says.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return clip(machine)
}

// joining is how the command line begins of a process that joins the guest.
var joining = []string{"/bin/sh", "-c", script, "atoll"}

// Joins reports whether a command line belongs to a process that Dial started.
func Joins(argv []string) bool {
	return len(argv) >= len(joining) && slices.Equal(argv[:len(joining)], joining)
}

// join starts a process that joins the guest. The first one starts the guest.
// The error is an *Exit if there is no guest to join.
func join(ctx context.Context, r Runner, paths []string, opts guest.Options, fresh bool) (*guest.Client, error) {
	argv := append(slices.Clone(joining), paths...)
	if fresh {
		argv = append(argv, "fresh")
	}
	starting, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	p, err := r.Start(starting, argv, guest.Env())
	if err != nil && ctx.Err() == nil && starting.Err() != nil {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "guest.dial", Message: "the machine does not answer"}
	}
	if err != nil {
		return nil, err
	}
	l := newLink(p)
	client, err := guest.Dial(ctx, l, opts)
	if err != nil && ctx.Err() == nil && l.exited() != nil {
		return nil, l.exited()
	}
	return client, err
}

// unjoined is the error for a guest that exists but cannot be joined.
func unjoined(exit *Exit) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "guest.dial",
		Message: "the guest cannot be joined: " + clip(exit.Status) + " " + clip(string(exit.Stderr)),
	}
}

// maxText limits the length of foreign text in errors.
const maxText = 300

func clip(s string) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}
