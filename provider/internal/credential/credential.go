// Package credential reads the secret of a provider's account from the
// environment, a file, or the output of a command. It keeps the secret only in
// memory.
package credential

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	// maxSecret limits the bytes of a file or an output.
	maxSecret = 64 << 10
	// running limits the run time of a command.
	running = time.Minute
)

// Source provides a secret. Its methods may be called concurrently.
type Source struct {
	name, value, file, command string
	program                    *program

	single chan struct{} // held while reading
	mu     sync.Mutex
	secret string
}

// New returns a source: a value, a file, or a command for /bin/sh. The first
// one that is set is used. name is the environment variable of the value, for
// errors; the variables of the others have the suffixes _FILE and _COMMAND.
func New(name, value, file, command string) *Source {
	return &Source{name: name, value: strings.TrimSpace(value), file: file, command: command, single: make(chan struct{}, 1)}
}

// program is a program whose output has the secret.
type program struct {
	argv, env []string // env is added to that of this process
	parse     func(output []byte) (string, error)
}

// Program returns a source that runs a program, and extracts the secret from its
// output. name is that of its setting, for errors.
func Program(name string, argv, env []string, parse func(output []byte) (string, error)) *Source {
	s := New(name, "", "", strings.Join(argv, " "))
	s.program = &program{argv, env, parse}
	return s
}

// FromEnvironment reads NAME, NAME_FILE and NAME_COMMAND from the environment.
func FromEnvironment(name string, lookup func(string) string) *Source {
	return New(name, lookup(name), lookup(name+"_FILE"), lookup(name+"_COMMAND"))
}

// Set reports whether there is a source.
func (s *Source) Set() bool { return s.value != "" || s.file != "" || s.command != "" }

// Account identifies the account: by the value itself, or else by the file or
// command, so that a new value belongs to the same account. The result can
// contain the secret.
func (s *Source) Account() string {
	switch {
	case s.value != "":
		return s.value
	case s.file != "":
		return "file " + s.file
	case s.command != "":
		return "command " + s.command
	}
	return ""
}

// Value returns a constant secret, or "" if the secret comes from a file or a
// command and may change.
func (s *Source) Value() string { return s.value }

// Get returns the secret, or "" if there is no source. stale is a secret that
// the service rejected: Get then reads the source again and fails if the secret
// is the same.
func (s *Source) Get(ctx context.Context, stale string) (string, error) {
	if !s.Set() {
		return "", nil
	}
	select {
	case s.single <- struct{}{}:
		defer func() { <-s.single }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if now := s.Current(); now != "" && now != stale {
		return now, nil
	}
	text, err := s.read(ctx)
	if err != nil {
		return "", err
	}
	if text == "" || text == stale {
		return "", s.refuse("holds no other secret than the one that is not taken", nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = text
	return text, nil
}

// Fresh ensures that there is a secret, unless there is no source. With
// refused, the service rejected the present one, and Fresh fails if there is no
// other.
func (s *Source) Fresh(ctx context.Context, refused bool) error {
	stale := ""
	if refused {
		if !s.Set() {
			return &sandbox.Error{Code: sandbox.CodeUnauthorized, Subject: s.name, Message: "is not set"}
		}
		stale = s.Current()
	}
	_, err := s.Get(ctx, stale)
	return err
}

// Current returns the secret that was read last.
func (s *Source) Current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secret
}

func (s *Source) read(ctx context.Context) (string, error) {
	switch {
	case s.value != "":
		return s.value, nil
	case s.file != "":
		f, err := os.Open(s.file)
		if err != nil {
			return "", s.refuse("cannot be read", err)
		}
		defer f.Close()
		text, err := io.ReadAll(io.LimitReader(f, maxSecret))
		if err != nil {
			return "", s.refuse("cannot be read", err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	ctx, cancel := context.WithTimeout(ctx, running)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", s.command)
	if s.program != nil {
		cmd = exec.CommandContext(ctx, s.program.argv[0], s.program.argv[1:]...)
		cmd.Env = append(os.Environ(), s.program.env...)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.WaitDelay = &out, time.Second
	// The output of a failed command may contain the secret and is not shown.
	if err := cmd.Run(); err != nil {
		return "", s.refuse("failed", err)
	}
	if s.program != nil {
		text, err := s.program.parse(out.Bytes())
		if err != nil {
			return "", s.refuse("has an output that cannot be used", err)
		}
		return text, nil
	}
	text, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
	return strings.TrimSpace(text), nil
}

// refuse returns an error that names the source.
func (s *Source) refuse(message string, err error) error {
	name := s.name
	switch {
	case s.value != "", s.program != nil:
	case s.file != "":
		name += "_FILE"
	default:
		name += "_COMMAND"
	}
	return &sandbox.Error{Code: sandbox.CodeUnauthorized, Subject: name, Message: message, Cause: err}
}
