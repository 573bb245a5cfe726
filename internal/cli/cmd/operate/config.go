package operate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/atoll-run/atoll/sandbox"
)

// notInFile are flags that make no sense in a configuration file.
var notInFile = []string{"config", "detach", "help"}

// applyConfig sets the flags of cmd that a configuration file names and the
// command line does not. Every key of the file is the name of a flag; a list
// sets a flag that may be repeated.
func applyConfig(cmd *cobra.Command, file string) error {
	refuse := func(line int, format string, args ...any) error {
		subject := file
		if line > 0 {
			subject = fmt.Sprintf("%s:%d", file, line)
		}
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "config.read", Subject: subject, Message: fmt.Sprintf(format, args...),
			Hint: "docs/reference/atoll.yaml lists every setting",
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return refuse(0, "cannot be read: %v", errors.Unwrap(err))
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return refuse(0, "is not YAML: %v", err)
	}
	if len(doc.Content) == 0 {
		return nil // empty
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return refuse(top.Line, "must be a list of settings, one NAME: VALUE per line")
	}
	seen := map[string]bool{}
	for i := 0; i < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		flag := cmd.Flags().Lookup(key.Value)
		switch {
		case flag == nil || slices.Contains(notInFile, key.Value):
			return refuse(key.Line, "there is no setting %q", key.Value)
		case seen[key.Value]:
			return refuse(key.Line, "%s is set twice", key.Value)
		case flag.Changed: // the command line wins
			continue
		}
		seen[key.Value] = true
		values := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			values = value.Content
		}
		for _, v := range values {
			if v.Kind != yaml.ScalarNode {
				return refuse(v.Line, "%s takes a value, or a list of values", key.Value)
			}
			if err := cmd.Flags().Set(key.Value, v.Value); err != nil {
				return refuse(v.Line, "%s: %v", key.Value, err)
			}
		}
	}
	return nil
}
