// Package secret keeps values that a sandbox may use and must not have.
//
// A value is sealed when it is stored ([Sealer]), or stays where the operator
// has it ([Source]), from where package source reads it. In the
// program it is a [Value], which prints as nothing. A sandbox gets a
// [NewPlaceholder] in its place. [Forms] and [Matcher] find a value again in
// what a server answers, however it is written, so that it can be taken out.
package secret

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxValue bounds a value, in bytes. Private keys and service accounts fit.
const MaxValue = 64 << 10

// hidden is the printed form of a Value.
const hidden = "[secret]"

// Value is the value of a secret. However it is printed, logged or encoded, it
// does not show what it holds.
type Value struct{ p *held }

// held is behind a pointer because package fmt shows the fields of a struct,
// whatever its methods say, when a verb does not suit it.
type held struct{ raw []byte }

// NewValue takes a value over: raw must not be used any more.
func NewValue(raw []byte) Value { return Value{&held{raw}} }

// Reveal returns the value itself. It belongs to the Value and must not be
// changed or kept.
func (v Value) Reveal() []byte {
	if v.p == nil {
		return nil
	}
	return v.p.raw
}

// Len is how many bytes the value has.
func (v Value) Len() int { return len(v.Reveal()) }

// Clear overwrites the value in place. Copies that were made of it, by us or
// by the runtime, are not reached.
func (v Value) Clear() { clear(v.Reveal()) }

// String and the methods below implement the interfaces through which values
// are shown.
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
	FromEnv Kind = "env"     // a variable of the daemon
	File    Kind = "file"    // a file that the daemon can read
	Command Kind = "command" // what a program writes
	Vault   Kind = "vault"   // a field in a Vault, or what speaks its API
)

// Source says where the value of a secret is kept. Others than Stored reach
// into the machine of the daemon: only its owner may name them.
type Source struct {
	Kind Kind `json:"kind"`
	// Ref is the name of the variable, the absolute path of the file, the
	// program with its arguments, or PATH#FIELD.
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
		if s.Ref != "" && len(s.Ref) <= sandbox.MaxLabelLen && !strings.ContainsAny(s.Ref, "=\x00\n") {
			return nil
		}
	case File:
		return sandbox.ValidatePath("source", s.Ref)
	case Command:
		if words := strings.Fields(s.Ref); len(words) > 0 && len(s.Ref) <= sandbox.MaxPathLen && !strings.ContainsAny(s.Ref, "\x00\n") {
			return sandbox.ValidatePath("source", words[0])
		}
	case Vault:
		path, field, ok := strings.Cut(s.Ref, "#")
		if ok && field != "" && len(s.Ref) <= sandbox.MaxPathLen && isVaultPath(path) {
			return nil
		}
	}
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Subject: "source",
		Message: "must be env:NAME, file:/PATH, command:/PATH ARGUMENT… or vault:PATH#FIELD",
	}
}

// isVaultPath wants plain names with slashes between them.
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

// ParseSource reads "env:NAME", "file:/PATH", "command:/PATH ARGUMENT…" and
// "vault:PATH#FIELD"; empty is Stored.
func ParseSource(s string) (Source, error) {
	kind, ref, _ := strings.Cut(s, ":")
	src := Source{Kind: Kind(kind), Ref: ref}
	if s == "" {
		src.Kind = Stored
	}
	return src, src.Validate()
}

// String is the form that ParseSource reads.
func (s Source) String() string {
	if s.Kind == Stored || s.Kind == "" {
		return ""
	}
	return string(s.Kind) + ":" + s.Ref
}

// FromText takes over what a file or a program holds: without the end of the
// line that editors and echo leave, and refused if it cannot be a value.
func FromText(raw []byte) (Value, error) { return checked(NewValue(trimNewline(raw))) }

// trimNewline takes away the end of the line that editors and echo leave.
func trimNewline(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
	}
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b
}

// checked refuses what cannot be a value. The error says nothing of it.
func checked(v Value) (Value, error) {
	switch {
	case v.Len() == 0:
		return Value{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: "it is empty"}
	case v.Len() > MaxValue:
		return Value{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: fmt.Sprintf("it is larger than %d bytes", MaxValue)}
	}
	return v, nil
}

// Check refuses what cannot be a value.
func Check(v Value) error {
	_, err := checked(v)
	return err
}

// NoHosts refuses to send a secret that names no hosts.
func NoHosts(name string) error {
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Subject: name, Message: "the secret names no hosts, so that only a stored profile, or who may make one, may send it",
		Hint: "make it with --host, or use a profile that adds it",
	}
}
