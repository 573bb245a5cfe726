// Package secret keeps values that a sandbox may use and must not have.
//
// A value is sealed when it is stored ([Sealer]), or stays where the operator
// has it, in the environment of the daemon or in a file ([Source]). In the
// program it is a [Value], which prints as nothing. A sandbox gets a
// [NewPlaceholder] in its place. [Forms] and [Matcher] find a value again in
// what a server answers, however it is written, so that it can be taken out.
package secret

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxValue bounds a value, in bytes. Private keys and service accounts fit.
const MaxValue = 64 << 10

// hidden is what a Value shows of itself.
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

// Format implements fmt.Formatter, for every verb.
func (v Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// LogValue implements slog.LogValuer.
func (v Value) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler, for JSON too.
func (v Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Kind is where the value of a secret is kept. The list is append-only.
type Kind string

// The kinds of sources.
const (
	Stored  Kind = "stored" // sealed, in the store
	FromEnv Kind = "env"    // a variable of the daemon
	File    Kind = "file"   // a file that the daemon can read
)

// Source says where the value of a secret is kept. Others than Stored reach
// into the machine of the daemon: only its owner may name them.
type Source struct {
	Kind Kind   `json:"kind"`
	Ref  string `json:"ref,omitempty"` // name of the variable, or absolute path
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
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "source", Message: "is none of stored, env:NAME and file:/PATH"}
}

// ParseSource reads "env:NAME" and "file:/PATH"; empty is Stored.
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

// Read returns the value from outside the store. lookup is os.LookupEnv.
func (s Source) Read(lookup func(string) (string, bool)) (Value, error) {
	unavailable := func(message string, cause error) error {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: s.String(), Message: message, Cause: cause}
	}
	switch s.Kind {
	case FromEnv:
		v, ok := lookup(s.Ref)
		if !ok {
			return Value{}, unavailable("the daemon has no such variable", nil)
		}
		return checked(NewValue([]byte(v)))
	case File:
		raw, err := readFile(s.Ref)
		if err != nil {
			return Value{}, unavailable("the file cannot be read", err)
		}
		return checked(NewValue(trimNewline(raw)))
	}
	return Value{}, unavailable("the value is kept in the store", nil)
}

// readFile reads a regular file that is not larger than a value may be.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxValue+2))
}

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
