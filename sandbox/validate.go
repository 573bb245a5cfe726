package sandbox

import (
	"fmt"
	"math"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Limits that no other package needs.
const (
	maxHostname   = 63
	maxWindowSize = 4096
)

func invalid(subject, format string, args ...any) error {
	return &Error{Code: CodeInvalid, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// ValidateName reports whether name can name a sandbox: 1 to 63 characters of
// [a-z0-9-], beginning with a letter and not ending with a hyphen.
func ValidateName(name string) error {
	if !isName(name) {
		return invalid("name", "%q is not 1 to %d characters of a-z, 0-9 and -, beginning with a letter", clip(name), bounds.MaxNameLen)
	}
	return nil
}

// isName uses no regular expression, because compiling one would slow down the
// start of every process of Atoll, including the one inside a sandbox.
func isName(s string) bool {
	if s == "" || len(s) > bounds.MaxNameLen || s[0] < 'a' || s[0] > 'z' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// Validate checks the Spec. The error is an *Error with CodeInvalid. Its
// Subject names the first invalid field.
func (s *Spec) Validate() error {
	if s.Name != "" {
		if err := ValidateName(s.Name); err != nil {
			return err
		}
	}
	if s.ID != "" && !isName(string(s.ID)) {
		return invalid("id", "%q is not a sandbox id", clip(string(s.ID)))
	}
	if s.Provider != "" && !isName(s.Provider) {
		return invalid("provider", "%q is not the name of a provider", clip(s.Provider))
	}
	if !s.Isolation.Valid() {
		return invalid("isolation", "%q is not one of none, kernel and hardware", clip(string(s.Isolation)))
	}
	if strings.ContainsRune(s.Image, 0) || len(s.Image) > bounds.MaxPathLen {
		return invalid("image", "not a usable reference")
	}
	if s.Snapshot != "" && !isName(s.Snapshot) {
		return invalid("snapshot", "%q is not the name or id of a snapshot", clip(s.Snapshot))
	}
	if s.Snapshot != "" && s.Image != "" {
		return invalid("snapshot", "cannot be used together with an image")
	}
	if err := s.Resources.Validate(); err != nil {
		return err
	}
	if err := validateEnv(s.Env); err != nil {
		return err
	}
	if err := s.Main.validate(); err != nil {
		return err
	}
	if s.Workdir != "" {
		if err := ValidatePath("workdir", s.Workdir); err != nil {
			return err
		}
	}
	if err := validateUser(s.User); err != nil {
		return err
	}
	if len(s.Hostname) > maxHostname || strings.ContainsAny(s.Hostname, "\x00\n/ ") {
		return invalid("hostname", "%q is not a host name", clip(s.Hostname))
	}
	if len(s.Mounts) > bounds.MaxMounts {
		return invalid("mounts", "%d mounts, at most %d", len(s.Mounts), bounds.MaxMounts)
	}
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		if err := ValidatePath("mounts", m.Source); err != nil {
			return err
		}
		if err := ValidatePath("mounts", m.Target); err != nil {
			return err
		}
		t := path.Clean(m.Target)
		switch {
		case t == "/" || under(t, "/proc") || under(t, "/sys") || under(t, "/dev"):
			return invalid("mounts", "%s cannot be a mount target", clip(t))
		case seen[t]:
			return invalid("mounts", "%s is mounted twice", clip(t))
		}
		seen[t] = true
	}
	if err := s.checkWorkspaces(); err != nil {
		return err
	}
	if err := validatePorts(s.Ports); err != nil {
		return err
	}
	if err := s.Network.Validate(); err != nil {
		return err
	}
	if err := validateSecrets(s.Secrets, s.Env); err != nil {
		return err
	}
	if err := s.Lifetime.Validate(); err != nil {
		return err
	}
	return ValidateLabels(s.Labels)
}

// ValidateLabels checks the number and size of labels, and that keys are not
// empty and hold neither '=' nor control characters.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > bounds.MaxLabels {
		return invalid("labels", "%d labels, at most %d", len(labels), bounds.MaxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > bounds.MaxLabelLen || len(v) > bounds.MaxLabelLen || !utf8.ValidString(k) || !utf8.ValidString(v) ||
			strings.ContainsFunc(k, func(r rune) bool { return r < ' ' || r == '=' || r == 0x7f }) ||
			strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return invalid("labels", "%q is not a usable label", clip(k))
		}
	}
	return nil
}

// Validate returns an *Error with CodeInvalid if the lifetime is not valid.
func (l Lifetime) Validate() error {
	if l.Timeout < 0 {
		return invalid("lifetime", "negative timeout")
	}
	if l.Idle < 0 {
		return invalid("lifetime", "negative idle time")
	}
	switch l.TimeoutAction {
	case "", IdleSleep, IdleStop, IdleDelete:
	default:
		return invalid("lifetime", "%q is not one of sleep, stop and delete", clip(string(l.TimeoutAction)))
	}
	switch l.IdleAction {
	case "", IdlePause, IdleSleep, IdleStop, IdleDelete:
		return nil
	}
	return invalid("lifetime", "%q is not one of pause, sleep, stop and delete", clip(string(l.IdleAction)))
}

// Validate returns an *Error with CodeInvalid for the first limit that is out
// of range.
func (r Resources) Validate() error {
	switch {
	case math.IsNaN(r.CPUs) || math.IsInf(r.CPUs, 0) || (r.CPUs > 0 && r.CPUs < 0.01) || r.CPUs > 4096:
		return invalid("cpus", "%v is not between 0.01 and 4096", r.CPUs)
	case r.Memory > 0 && r.Memory < bounds.MinMemory:
		return invalid("memory", "%d bytes is less than the %d a sandbox needs", r.Memory, bounds.MinMemory)
	case r.Memory > bounds.MaxMemory:
		return invalid("memory", "%d bytes is more than %d", r.Memory, int64(bounds.MaxMemory))
	case r.Disk > bounds.MaxDisk:
		return invalid("disk", "%d bytes is more than %d", r.Disk, int64(bounds.MaxDisk))
	case r.PIDs > bounds.MaxPIDs:
		return invalid("pids", "%d is more than %d", r.PIDs, bounds.MaxPIDs)
	case r.Disk > 0 && r.Disk < bounds.MinDisk:
		return invalid("disk", "%d bytes is less than %d", r.Disk, bounds.MinDisk)
	case r.PIDs > 0 && r.PIDs < bounds.MinPIDs:
		return invalid("pids", "%d is less than the %d a sandbox needs", r.PIDs, bounds.MinPIDs)
	}
	return nil
}

// Validate returns an *Error with CodeInvalid if the Command is not valid.
func (c *Command) Validate() error {
	switch {
	case len(c.Args) == 0 && c.Shell == "":
		return invalid("args", "no command given")
	case len(c.Args) > 0 && c.Shell != "":
		return invalid("args", "both args and shell given")
	case len(c.Args) > 0 && c.Args[0] == "":
		return invalid("args", "the program's name is empty")
	}
	total := len(c.Shell)
	if strings.ContainsRune(c.Shell, 0) {
		return invalid("shell", "holds a NUL byte")
	}
	for _, a := range c.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return invalid("args", "an argument holds a NUL byte")
		}
		total += len(a) + 1
	}
	if total > bounds.MaxArgsBytes {
		return invalid("args", "%d bytes of arguments, at most %d", total, bounds.MaxArgsBytes)
	}
	if err := validateEnv(c.Env); err != nil {
		return err
	}
	if c.Dir != "" {
		if err := ValidatePath("dir", c.Dir); err != nil {
			return err
		}
	}
	if c.Timeout < 0 {
		return invalid("timeout", "negative")
	}
	switch {
	case c.Hold < 0 || c.Hold > bounds.MaxHold:
		return invalid("hold", "%v is not between 0 and %v", c.Hold, bounds.MaxHold)
	case c.Hold > 0 && c.Background:
		return invalid("hold", "a background command outlives its caller anyway")
	}
	if c.TTY != nil && (c.TTY.Cols > maxWindowSize || c.TTY.Rows > maxWindowSize) {
		return invalid("tty", "%dx%d is not a window size", c.TTY.Cols, c.TTY.Rows)
	}
	return validateUser(c.User)
}

// ValidatePath checks that p is an absolute path of at most MaxPathLen bytes
// without NUL bytes. subject is the field named in the error.
func ValidatePath(subject, p string) error {
	switch {
	case p == "":
		return invalid(subject, "path is empty")
	case len(p) > bounds.MaxPathLen:
		return invalid(subject, "path of %d bytes, at most %d", len(p), bounds.MaxPathLen)
	case strings.IndexByte(p, 0) >= 0:
		return invalid(subject, "path holds a NUL byte")
	case p[0] != '/':
		return invalid(subject, "%q is not an absolute path", clip(p))
	}
	return nil
}

func validateEnv(env map[string]string) error {
	if len(env) > bounds.MaxEnv {
		return invalid("env", "%d variables, at most %d", len(env), bounds.MaxEnv)
	}
	for k, v := range env {
		// The value may be a secret: it never appears in the message.
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return invalid("env", "%q is not a variable name", clip(k))
		}
		if strings.IndexByte(v, 0) >= 0 {
			return invalid("env", "the value of %q holds a NUL byte", clip(k))
		}
	}
	return nil
}

func validateUser(u string) error {
	if len(u) > 128 || strings.ContainsAny(u, "\x00\n/ ") || strings.Count(u, ":") > 1 || strings.HasPrefix(u, ":") {
		return invalid("user", "%q is not USER or USER:GROUP", clip(u))
	}
	return nil
}

func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// clip keeps hostile input from filling an error message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
