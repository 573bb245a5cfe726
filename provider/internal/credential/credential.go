// Package credential reads the secret of a provider's account: from the
// environment, a file, or what a command writes. It keeps it in memory only.
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
	// maxSecret bounds a file or an output.
	maxSecret = 64 << 10
	// running is how long a command may take.
	running = time.Minute
)

// Source is where a secret comes from. Its methods may be called concurrently.
type Source struct {
	name, value, file, command string

	single chan struct{} // held by who reads
	mu     sync.Mutex
	secret string
}

// New returns a source: a value, a file, or a command for /bin/sh. The first one
// that is set counts. name is the variable of the environment for the value, for
// errors; with _FILE and _COMMAND it is that of the others.
func New(name, value, file, command string) *Source {
	return &Source{name: name, value: strings.TrimSpace(value), file: file, command: command, single: make(chan struct{}, 1)}
}

// FromEnvironment takes NAME, NAME_FILE and NAME_COMMAND from the environment.
func FromEnvironment(name string, lookup func(string) string) *Source {
	return New(name, lookup(name), lookup(name+"_FILE"), lookup(name+"_COMMAND"))
}

// Set reports whether there is a source at all.
func (s *Source) Set() bool { return s.value != "" || s.file != "" || s.command != "" }

// Account tells one source from another: by the value itself if there is only
// one, else by where values come from, so that a new value is the same account.
// It can hold the secret.
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

// Value returns the secret that was given as it is, or nothing if it comes from
// elsewhere and may change.
func (s *Source) Value() string { return s.value }

// Get returns the secret, or nothing if there is no source. stale is one that
// the service did not take: then it is read again, and an error if there is no
// other.
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

// Fresh sees to it that there is a secret, or none if there is no source. With
// refused, the service did not take the present one, and it has to be another.
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
	var out bytes.Buffer
	cmd.Stdout, cmd.WaitDelay = &out, time.Second
	// What it says of a failure may hold the secret, and is not shown.
	if err := cmd.Run(); err != nil {
		return "", s.refuse("failed", err)
	}
	text, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
	return strings.TrimSpace(text), nil
}

// refuse is an error that names the source.
func (s *Source) refuse(message string, err error) error {
	name := s.name
	switch {
	case s.value != "":
	case s.file != "":
		name += "_FILE"
	default:
		name += "_COMMAND"
	}
	return &sandbox.Error{Code: sandbox.CodeUnauthorized, Subject: name, Message: message, Cause: err}
}
