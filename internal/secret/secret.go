// Package secret handles values that a sandbox may use but must not see.
//
// A value is encrypted when it is stored ([Sealer]), or stays in an external
// [Source], from which package source reads it. In memory it is a [Value],
// which cannot be printed by accident. A sandbox gets a [NewPlaceholder]
// instead. [Forms] and [Matcher] find values in server responses in any
// encoding, so that they can be removed.
package secret

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// MaxValue is the maximum size of a value in bytes. Private keys and service
// account files fit.
const MaxValue = 64 << 10

// hidden is the printed form of a Value.
const hidden = "[secret]"

// Value is the value of a secret. Printing, logging or encoding it does not
// reveal the value.
type Value struct{ p *held }

// held is behind a pointer because package fmt prints the fields of a struct
// for unsuitable verbs, regardless of its methods.
type held struct{ raw []byte }

// NewValue returns a Value that takes ownership of raw.
func NewValue(raw []byte) Value { return Value{&held{raw}} }

// Reveal returns the raw value. It belongs to the Value and must not be changed
// or retained.
func (v Value) Reveal() []byte {
	if v.p == nil {
		return nil
	}
	return v.p.raw
}

// Len returns the size in bytes.
func (v Value) Len() int { return len(v.Reveal()) }

// Clear overwrites the value in place. It does not reach copies made by us or
// by the runtime.
func (v Value) Clear() { clear(v.Reveal()) }

// String and the methods below implement the interfaces for printing and
// encoding.
func (v Value) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (v Value) GoString() string { return hidden }

// Format implements fmt.Formatter for all verbs.
func (v Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// LogValue implements slog.LogValuer.
func (v Value) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler, for JSON too.
func (v Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Kind is where the value of a secret is kept. The list is append-only.
type Kind string

// The kinds of sources.
const (
	Stored  Kind = "stored"  // sealed, in the store
	FromEnv Kind = "env"     // an environment variable of the daemon
	File    Kind = "file"    // a file on the daemon's machine
	Command Kind = "command" // the output of a program
	Vault   Kind = "vault"   // a field in HashiCorp Vault or a compatible server
)

// Source is where the value of a secret is kept. Kinds other than Stored access
// the daemon's machine, so only its owner may use them.
type Source struct {
	Kind Kind `json:"kind"`
	// Ref is the name of the variable, the absolute path of the file, the program
	// with its arguments, or PATH#FIELD.
	Ref string `json:"ref,omitempty"`
}

// Validate reports what is wrong with the source.
func (s Source) Validate() error {
	switch s.Kind {
	case Stored:
		if s.Ref == "" {
			return nil
		}
	case FromEnv:
		if s.Ref != "" && len(s.Ref) <= bounds.MaxLabelLen && !strings.ContainsAny(s.Ref, "=\x00\n") {
			return nil
		}
	case File:
		return sandbox.ValidatePath("source", s.Ref)
	case Command:
		if words := strings.Fields(s.Ref); len(words) > 0 && len(s.Ref) <= bounds.MaxPathLen && !strings.ContainsAny(s.Ref, "\x00\n") {
			return sandbox.ValidatePath("source", words[0])
		}
	case Vault:
		path, field, ok := strings.Cut(s.Ref, "#")
		if ok && field != "" && len(s.Ref) <= bounds.MaxPathLen && isVaultPath(path) {
			return nil
		}
	}
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Subject: "source",
		Message: "must be env:NAME, file:/PATH, command:/PATH ARGUMENT… or vault:PATH#FIELD",
	}
}

// isVaultPath checks that a path consists of plain names separated by slashes.
func isVaultPath(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || strings.Trim(part, ".") == "" || strings.ContainsFunc(part, func(r rune) bool {
			return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.@", r)
		}) {
			return false
		}
	}
	return true
}

// ParseSource parses "env:NAME", "file:/PATH", "command:/PATH ARGUMENT…" and
// "vault:PATH#FIELD". Empty text is Stored.
func ParseSource(s string) (Source, error) {
	kind, ref, _ := strings.Cut(s, ":")
	src := Source{Kind: Kind(kind), Ref: ref}
	if s == "" {
		src.Kind = Stored
	}
	return src, src.Validate()
}

// String returns the form that ParseSource parses.
func (s Source) String() string {
	if s.Kind == Stored || s.Kind == "" {
		return ""
	}
	return string(s.Kind) + ":" + s.Ref
}

// FromText returns the contents of a file or output of a program as a value,
// without a trailing newline. It takes ownership of raw.
func FromText(raw []byte) (Value, error) { return checked(NewValue(trimNewline(raw))) }

// trimNewline removes one trailing newline.
func trimNewline(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
	}
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b
}

// checked refuses an empty or too large value. The error does not quote it.
func checked(v Value) (Value, error) {
	switch {
	case v.Len() == 0:
		return Value{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: "it is empty"}
	case v.Len() > MaxValue:
		return Value{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: fmt.Sprintf("it is larger than %d bytes", MaxValue)}
	}
	return v, nil
}

// Check refuses an empty or too large value.
func Check(v Value) error {
	_, err := checked(v)
	return err
}

// NoHosts is the error for sending a secret that has no hosts.
func NoHosts(name string) error {
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Subject: name, Message: "the secret names no hosts, so only a stored profile, or a caller who may make one, can send it",
		Hint: "make it with --host, or use a profile that adds it",
	}
}
