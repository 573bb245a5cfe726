package mcpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/atoll-run/atoll/sandbox"
)

// schemaOf returns the schema of a tool's arguments. It panics if In cannot be
// described, which a test of the server's tools finds.
func schemaOf[In any]() *jsonschema.Schema {
	s, err := jsonschema.For[In](nil)
	if err != nil {
		panic(err)
	}
	for _, p := range s.Properties {
		// Lists and maps may be null in Go's JSON. A model need not know.
		p.Types = slices.DeleteFunc(p.Types, func(t string) bool { return t == "null" })
		if len(p.Types) == 1 {
			p.Type, p.Types = p.Types[0], nil
		}
		p.Minimum, p.Maximum = nil, nil
	}
	return s
}

// decode reads the arguments of a tool. Errors name the argument that is wrong
// and list those that the tool takes.
func decode(raw json.RawMessage, takes *jsonschema.Schema, tool string, in any) error {
	wrong := func(argument, message string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: argument, Message: message, Hint: form(tool, takes)}
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil || given == nil {
		return wrong("arguments", "must be a JSON object")
	}
	for _, name := range names(given) {
		if takes.Properties[name] == nil {
			return wrong(name, "is not an argument of "+tool)
		}
		if string(given[name]) == "null" {
			delete(given, name)
		}
	}
	for _, name := range takes.Required {
		if given[name] == nil {
			return wrong(name, "is missing")
		}
	}
	for _, name := range names(given) {
		// One argument at a time, so that the error can name it.
		one, err := json.Marshal(map[string]json.RawMessage{name: given[name]})
		if err == nil {
			err = json.Unmarshal(one, in)
		}
		if bad := (*json.UnmarshalTypeError)(nil); errors.As(err, &bad) {
			return wrong(name, fmt.Sprintf("must be %s, not %s", described(takes.Properties[name]), bad.Value))
		}
		if err != nil {
			return wrong(name, "must be "+described(takes.Properties[name]))
		}
	}
	return nil
}

// names returns the names of arguments in order.
func names(given map[string]json.RawMessage) []string {
	all := make([]string, 0, len(given))
	for name := range given {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// described returns a type in words.
func described(s *jsonschema.Schema) string {
	switch s.Type {
	case "array":
		return "a list of strings"
	case "object":
		return "an object of strings"
	case "boolean":
		return "true or false"
	case "integer":
		return "a whole number in range"
	}
	return "a " + s.Type
}

// form returns the arguments of a tool in words, those that it needs first.
func form(tool string, takes *jsonschema.Schema) string {
	var needed, others []string
	for _, name := range takes.PropertyOrder {
		if slices.Contains(takes.Required, name) {
			needed = append(needed, name+" (needed)")
		} else {
			others = append(others, name)
		}
	}
	return tool + " takes " + strings.Join(append(needed, others...), ", ")
}
